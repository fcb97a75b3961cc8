"""Daemons of a real cluster die at failpoints, and the job goes on as promised."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.cluster.cluster import cannot_isolate
from chaos.failpoints.grounds import GROUNDS
from chaos.failpoints.kept import Plan
from chaos.failpoints.points import names
from chaos.failpoints.strike import TRIES, Striker
from chaos.runner.record import Outcome
from chaos.runner.stage import Stage

PATIENCE = 4.0
"""Bounds are for a machine that is busy with other tests."""

AT_ONCE = 4

SAMPLE = {
    "launcher.exit_rename.before": "worker",
    "leader.restart_in_place.after": "worker",
    "commit.rename.after": "calm",
    "leader.flip.before": "ps",
    "agent.say_Kill.after": "ps",
    "membership.join.after": "agent",
    "state_file.rename.before": "worker",
}
"""One of each kind: an exit record, two decisions, a commit, a kill, an agent's entry, a state file."""


def strike(directory: Path, name: str, plan: Plan | None, at_once: int = 1) -> list[str]:
    """The faults that were struck on this ground; without a plan, all that its survey leads to."""
    assert not cannot_isolate(), cannot_isolate()
    said: list[str] = []
    ground = GROUNDS[name]
    with Stage(ground.shape, directory) as stage:
        striker = Striker(stage, ground, directory, said.append, PATIENCE, at_once)
        records = list(striker.strike(plan or striker.survey()[0]))
    for record in records:
        assert record.outcome is Outcome.PASSED, (record.why, record.violations, said)
    return [fault.name for record in records for fault in record.faults]


@pytest.mark.timeout(900)
def test_some_points(tmp_path: Path) -> None:
    plan = {point: (cause,) * TRIES for point, cause in SAMPLE.items()}
    assert strike(tmp_path, "small", plan) == list(SAMPLE)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", GROUNDS)
def test_every_point_that_a_ground_leads_to(name: str, tmp_path: Path) -> None:
    struck = set(strike(tmp_path, name, None, AT_ONCE))
    assert struck <= names()
    assert len(struck) >= 50
