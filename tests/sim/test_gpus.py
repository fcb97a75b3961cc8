"""Two jobs that share the GPUs of four nodes under random faults: no GPU is ever in two exclusive tasks."""

from __future__ import annotations

import re

import pytest

from chaos.sim.gpus import run_gpus
from chaos.sim.mutants import GPU_MUTANTS, Mutant
from tests.sim.test_seeds import simulate

BATCH = 10
FIRST_BATCHES = 2
ALL_BATCHES = 20
SEEDS = range(1, 13)


def run_batch(number: int) -> None:
    first = 1 + number * BATCH
    done = simulate("--gpus", "--seeds", f"{first}..{first + BATCH - 1}", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    told = {what: int(count) for count, what in re.findall(r"(\d+) ([a-zA-Z ]+)", done.stdout)}
    # It bit: tasks moved between GPUs, and some of those broke.
    assert told["attempts with GPUs"] > 4 * BATCH
    assert told.get("quarantines", 0) > 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(FIRST_BATCHES))
def test_no_gpu_is_in_two_exclusive_tasks(number: int) -> None:
    run_batch(number)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(FIRST_BATCHES, ALL_BATCHES))
def test_nor_in_many_more_seeds(number: int) -> None:
    run_batch(number)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", GPU_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(mutant: Mutant) -> None:
    with mutant.planted():
        for seed in SEEDS:
            result = run_gpus(seed, mutant.script)
            if any(f"[{mutant.promise}]" in line for line in result.violations):
                return
    pytest.fail(f"{len(SEEDS)} seeds did not find {mutant.name!r}")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mutant", GPU_MUTANTS, ids=lambda mutant: mutant.name)
def test_its_script_breaks_nothing_without_the_mutant(mutant: Mutant) -> None:
    result = run_gpus(1, mutant.script)
    assert result.ok, (*result.violations, result.error)
