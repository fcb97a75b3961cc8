"""How far a job is."""

from __future__ import annotations

from recovery.decide.progress import newest_step
from tests.support.builders import beat


def test_before_the_first_beat() -> None:
    assert newest_step([]) == -1


def test_the_newest_view_of_the_global_step_counts() -> None:
    beats = (beat("worker.0", 40), beat("worker.1", 41), beat("ps.0"))
    assert newest_step(beats) == 41
