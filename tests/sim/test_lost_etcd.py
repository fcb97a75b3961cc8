"""Etcd loses all that it had, amid whatever else, and operators do what docs/checkpoints.md tells."""

from __future__ import annotations

import pytest

from chaos.sim.run import Result, run_seed
from chaos.sim.trouble.schedule import Fault

LOST = "losses of etcd"
STAY, GO = 0, 1
"""Picks with which agents outlive the loss, and die in it."""


def lost(seed: int, *others: Fault, at_s: float = 2.5, pick: int = STAY, for_s: float = 0.2) -> Result:
    """Training has saved something by then, unless it is early."""
    result = run_seed(seed, (Fault(at_s, "etcd_lost", pick, for_s), *others))
    assert result.ok, (*result.violations, result.error)
    assert result.facts[LOST] == 1
    return result


@pytest.mark.parametrize("pick", [STAY, GO])
@pytest.mark.parametrize("seed", range(1, 5))
def test_jobs_are_taken_up_again_with_all_that_was_committed(seed: int, pick: int) -> None:
    assert lost(seed, pick=pick).facts["recorded again"] > 0


@pytest.mark.parametrize("for_s", [0.2, 6.0])
def test_a_job_that_had_committed_nothing_begins_afresh(for_s: float) -> None:
    """The same numbers come again: nothing that ran before may pass for what is wanted now."""
    assert "recorded again" not in lost(1, at_s=0.1, for_s=for_s).facts


@pytest.mark.parametrize("seed", range(3, 7))
def test_a_job_waits_for_its_tasks_on_a_node_that_is_cut_off(seed: int) -> None:
    """A rebuild that did not wait gave their addresses to others."""
    result = run_seed(seed, (Fault(2.4, "cut_node_off", 2, 9.0), Fault(2.5, "etcd_lost", GO, 0.2)))
    assert result.ok, (*result.violations, result.error)


@pytest.mark.parametrize("seed", range(1, 7))
def test_nothing_is_decided_on_an_old_snapshot(seed: int) -> None:
    """Generations that are over would begin again, and what was committed since be taken for leftovers."""
    restart, back = Fault(3.2, "operator_restart", 0, 0.1), Fault(3.0, "etcd_restored", 0, 2.5)
    result = run_seed(seed, (back, restart, Fault(8.0, "task_kill", 0, 0.1)))
    assert result.ok, (*result.violations, result.error)
    assert result.facts[LOST] == 2, "the snapshot, and then the empty etcd that it should have been"
    assert any("a snapshot was restored" in line for line in result.trace)
    assert result.facts["recorded again"] > 0


def test_one_loss_may_follow_another() -> None:
    result = run_seed(2, (Fault(2.5, "etcd_lost", STAY, 0.2), Fault(5.0, "etcd_lost", STAY, 0.2)))
    assert result.ok, (*result.violations, result.error)
    assert result.facts[LOST] == 2
