"""Faults that return until it is known whose they are: a checkpoint's, or a node's."""

import pytest

from chaos.sim.run import Result, run_seed
from chaos.sim.trouble.schedule import Fault

EVALUATED = (13, 15)
"""Seeds with an evaluator, which reads a checkpoint well that no trainer can restore."""


def played(seed: int, kind: str, pick: int, for_s: float, at_s: float = 2.6) -> Result:
    result = run_seed(seed, (Fault(at_s, kind, pick, for_s),))
    assert result.ok, (*result.violations, result.error)
    return result


@pytest.mark.parametrize("seed", [5, *EVALUATED])
@pytest.mark.parametrize("pick", [0, 1])
def test_a_checkpoint_that_no_program_restores_is_set_aside_and_training_goes_on(
    seed: int, pick: int
) -> None:
    result = played(seed, "checkpoints_bad", pick, 0.1)
    assert result.facts["suspected checkpoints"] == 1
    assert "job failed" not in result.covered


@pytest.mark.parametrize("seed", [1, 11, 25])
def test_where_programs_fail_on_one_node_their_job_goes_elsewhere(seed: int) -> None:
    result = played(seed, "node_bad", seed, 9.0)
    assert any(f"away from n{1 + seed % 3}" in line for line in result.trace)
    assert "job failed" not in result.covered


def test_a_node_on_which_several_tasks_fail_alike_is_avoided_by_all_jobs() -> None:
    """It depends on the moment which tasks fail there, and how often."""
    runs = (played(12, "node_bad", 0, 9.0, at_s) for at_s in (1.6, 2.0, 2.4, 3.2))
    assert any("cordon for a while" in each.covered for each in runs)
