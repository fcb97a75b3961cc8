"""How far a job is, from its tasks' beats. Every task reports the job's global step."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.contract.observed import TaskBeat


def newest_step(beats: Iterable[TaskBeat]) -> int:
    """The newest global step of any task, -1 before the first."""
    return max((beat.step for beat in beats), default=-1)
