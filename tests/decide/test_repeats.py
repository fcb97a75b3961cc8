"""Errors of the code: what fails a job at once, and what may be the checkpoint's fault instead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery.policy.history import Present
from recovery.policy.repeats import first_error
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.incident import Cause, Raised
from supervisor.contract.job.spec import Scope

ERROR = Raised("ValueError", "", ("t.py:3 in <module>",))
COMMIT = CheckpointRef(1, 50)
PRESENT = Present(Cause.PROGRAM_EXIT, Scope.TASK, "worker.0", "n0", False, None, None, 0, 0)


def test_an_error_before_any_sign_of_training_is_one_of_the_code() -> None:
    assert first_error(PRESENT, ERROR, trained=False) == ERROR


@pytest.mark.parametrize("present", [replace(PRESENT, base=COMMIT), replace(PRESENT, newest=COMMIT)])
def test_a_job_with_a_checkpoint_of_any_life_has_trained(present: Present) -> None:
    assert first_error(present, ERROR, trained=False) is None
