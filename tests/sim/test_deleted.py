"""Jobs that are deleted amid trouble, and submitted again: nothing of them runs on, and all comes to rest."""

from __future__ import annotations

import pytest

from tests.sim.command import simulate


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 201, 8))
def test_a_deleted_job_leaves_nothing_that_runs_and_can_come_again(first: int) -> None:
    done = simulate("--deleted", "--seeds", f"{first}..{first + 7}", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " deletions" in done.stdout
