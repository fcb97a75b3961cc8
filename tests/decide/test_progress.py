"""How far a job is."""

from __future__ import annotations

import pytest

from recovery.decide.progress import job_rate, newest_step
from tests.support.builders import beat


def test_before_the_first_beat() -> None:
    assert newest_step([]) == -1
    assert job_rate([]) == 0.0


def test_the_newest_view_of_the_global_step_counts() -> None:
    beats = (beat("worker.0", 40, rate=10.0), beat("worker.1", 41, rate=12.5), beat("ps.0"))
    assert newest_step(beats) == 41
    assert job_rate(iter(beats)) == pytest.approx(12.5)
