"""The arithmetic of `benchmarks.goodput`: what a report says was lost, and to what."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.goodput import Flags, Run, lost_steps
from supervisor.contract.incident import Outcome
from supervisor.contract.views.jobs import IncidentView


def incident(scope: str, phases_ms: dict[str, int], from_step: int = -1, to_step: int = -1) -> IncidentView:
    return IncidentView(
        id="i",
        job="digits",
        cause="killed",
        task="digits/ps:0",
        node="node-0",
        rule="",
        scope=scope,
        detail="",
        from_step=from_step,
        to_step=to_step,
        phases_ms=phases_ms,
        total_ms=sum(phases_ms.values()),
        outcome=Outcome.RECOVERED,
        generation=1,
        wall_ms=0,
    )


def test_a_whole_restart_costs_the_full_rate_and_what_it_rolls_back() -> None:
    run = Run(steps=890, seconds=10, incidents=(incident("all", {"restored": 500}, 340, 300),))
    assert lost_steps(run, rate=100.0) == {"restored": 50.0, "rolled_back": 40.0, "rest": 20.0}


def test_one_replica_of_three_costs_a_third() -> None:
    run = Run(steps=1000, seconds=10, incidents=(incident("task", {"first_step": 600}, 340, 300),))
    assert lost_steps(run, rate=100.0) == {"first_step": 20.0, "rest": -20.0}


@pytest.mark.parametrize("seed", range(5))
def test_each_minute_has_one_kill_with_time_to_recover(seed: int) -> None:
    flags = Flags(10, 60.0, seed, 10.0, Path(), ())
    kills = flags.kills()
    assert kills == flags.kills()
    assert [int(kill.at_s // 60) for kill in kills] == list(range(10))
    assert all(6 <= kill.at_s % 60 <= 54 for kill in kills)
