"""Healthy programs that make no step for long: they are restarted in vain at most, and never failed."""

import pytest

from chaos.mutants.mistakes.by_leader import RESTS
from chaos.sim.run import Result, run_seed
from chaos.sim.trouble.schedule import Fault


def played(seed: int, script: tuple[Fault, ...]) -> Result:
    result = run_seed(seed, script)
    assert result.ok, (*result.violations, result.error)
    return result


def test_one_that_uses_its_processor_meanwhile_is_left_alone() -> None:
    calm = Fault(42.0, "etcd_leader", 0, 0.1)
    result = played(1, (Fault(0.5, "task_spin", 0, 40.0), calm))
    assert "cause hang" not in result.covered


@pytest.mark.slow
def test_one_that_does_nothing_meanwhile_is_restarted_a_few_times_and_goes_on() -> None:
    result = played(2, RESTS)
    assert "cause hang" in result.covered
    assert "job failed" not in result.covered
