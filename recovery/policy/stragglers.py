"""Stragglers: tasks of a role that are slower than their peers."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from supervisor.contract.ids import TaskId

FACTOR = 2.0


def stragglers(paces: Mapping[TaskId, float]) -> dict[TaskId, float]:
    """Straggler -> the factor by which it is slower than the median of its peers.

    `paces` are the steps per second of running tasks over half a minute (`TaskBeat.pace`), without unknown
    ones. A straggler is at least FACTOR times slower; one that makes no step at all is left to the detector
    of hangs. A role of one task has no peers.
    """
    found = {}
    for task, pace in paces.items():
        peers = [other for peer, other in paces.items() if peer.role == task.role and peer != task]
        if pace > 0 and peers and median(peers) >= FACTOR * pace:
            found[task] = round(median(peers) / pace, 1)
    return found
