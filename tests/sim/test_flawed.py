"""A rule of the leader or of agents raises for one of two jobs, and nothing else is harmed."""

from __future__ import annotations

import pytest

from chaos.sim.trouble.flaws import agent_rules, rules
from tests.sim.command import simulate


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [f"{each}..{each + 19}" for each in range(1, 201, 20)])
def test_an_error_parks_that_job_alone(seeds: str) -> None:
    """Some of them meet a flaw that lasts."""
    done = simulate("--flawed", "--seeds", seeds, "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "jobs parked" in done.stdout


def test_every_decision_about_a_job_is_a_rule_that_may_raise() -> None:
    assert {"progress.find", "failures.find_need", "claims.claims_of", "generation.advance"} <= rules().keys()
    assert len(rules()) > 150
    assert {
        "agent.launcher_events._on_hello",
        "agent.tasks._pursue",
        "agent.reporting._record",
    } <= agent_rules().keys()
