"""Errors of the code: what fails a job at once, and what may be the checkpoint's fault instead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery.policy.history import Past, Present
from recovery.policy.repeats import first_error, raised_on
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.incident import Cause, Incident, Raised
from supervisor.contract.job.spec import Scope

ERROR = Raised("ValueError", "", ("t.py:3 in <module>",))
COMMIT = CheckpointRef(1, 50)
PRESENT = Present(Cause.PROGRAM_EXIT, Scope.TASK, "worker.0", "n0", False, None, None, 0, 0)


def test_an_error_before_any_sign_of_training_is_one_of_the_code() -> None:
    assert first_error(PRESENT, ERROR, trained=False) == ERROR


@pytest.mark.parametrize("present", [replace(PRESENT, base=COMMIT), replace(PRESENT, newest=COMMIT)])
def test_a_job_with_a_checkpoint_of_any_life_has_trained(present: Present) -> None:
    assert first_error(present, ERROR, trained=False) is None


@pytest.mark.parametrize(
    ("startup_ms", "after_ms", "counts"),
    [(600_000, 599_000, True), (600_000, 601_000, False), (1_000, 59_000, True), (None, 61_000, False)],
)
def test_the_same_error_counts_within_the_time_that_a_start_may_take(
    startup_ms: int | None, after_ms: int, *, counts: bool
) -> None:
    first = Incident(
        id="i",
        job="job",
        cause=Cause.PROGRAM_EXIT,
        task="job/worker:0",
        node="n1",
        rule="",
        scope=Scope.ALL,
        detail="",
        wall_ms=0,
        generation=2,
        error=ERROR,
    )
    later = replace(PRESENT, at_ms=after_ms, wall_ms=after_ms)
    assert bool(raised_on(ERROR, [Past(first, 0)], later, (), startup_ms)) is counts
