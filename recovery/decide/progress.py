"""How far a job is, from its tasks' beats. Every task reports the job's global step."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.contract.observed import TaskBeat


def newest_step(beats: Iterable[TaskBeat]) -> int:
    """The newest global step of any task, -1 before the first."""
    return max((beat.step for beat in beats), default=-1)


def job_rate(beats: Iterable[TaskBeat]) -> float:
    """Global steps per second: each task sees the same counter grow, so the quickest view of it counts."""
    return max((beat.rate for beat in beats), default=0.0)
