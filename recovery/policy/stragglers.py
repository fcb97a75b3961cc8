"""Stragglers: tasks of a role that are slower than their peers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from supervisor.contract.ids import TaskId

FACTOR = 2.0


def stragglers(paces: Mapping[TaskId, float]) -> dict[TaskId, float]:
    """Straggler -> the factor by which it is slower than the median of its peers.

    `paces` are the steps per second of running tasks over half a minute (`TaskBeat.pace`), without unknown
    ones. A straggler is at least FACTOR times slower; one that makes no step at all is left to the detector
    of hangs. A role of one task has no peers.
    """
    of_roles: dict[str, list[float]] = {}
    for task, pace in paces.items():
        of_roles.setdefault(task.role, []).append(pace)
    for each in of_roles.values():
        each.sort()
    found = {}
    for task, pace in paces.items():
        peers = of_roles[task.role]
        if pace > 0 and len(peers) > 1 and (usual := _median_without(peers, pace)) >= FACTOR * pace:
            found[task] = round(usual / pace, 1)
    return found


def _median_without(ordered: list[float], one: float) -> float:
    """The median of an ordered list without one of its values."""
    at, left = bisect_left(ordered, one), len(ordered) - 1
    middle = [ordered[each + (each >= at)] for each in ((left - 1) // 2, left // 2)]
    return sum(middle) / 2
