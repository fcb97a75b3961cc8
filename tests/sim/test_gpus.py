"""Two jobs that share the GPUs of four nodes under random faults: no GPU is ever in two exclusive tasks."""

from __future__ import annotations

import re

import pytest

from tests.sim.command import simulate

BATCH = 5
ALL_BATCHES = 40


def run_batch(number: int) -> None:
    first = 1 + number * BATCH
    done = simulate("--gpus", "--seeds", f"{first}..{first + BATCH - 1}", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    told = {what: int(count) for count, what in re.findall(r"(\d+) ([a-zA-Z ]+)", done.stdout)}
    # It bit: tasks moved between GPUs, and some of those broke.
    assert told["attempts with GPUs"] > 4 * BATCH
    assert told.get("quarantines", 0) > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", range(ALL_BATCHES))
def test_no_gpu_is_in_two_exclusive_tasks(number: int) -> None:
    run_batch(number)
