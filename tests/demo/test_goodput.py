"""The arithmetic of `benchmarks.goodput`: what a report says was lost, and to what."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.goodput import Flags, Run, Struck, costs, lost_steps
from examples.demo.steplog import StepLog
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
def test_each_minute_has_one_fault_with_time_to_recover(seed: int) -> None:
    flags = Flags(10, 60.0, seed, 10.0, Path(), ())
    faults = flags.faults()
    assert faults == flags.faults()
    assert [int(fault.at_s // 60) for fault in faults] == list(range(10))
    assert all(6 <= fault.at_s % 60 <= 54 for fault in faults)
    assert [turn for turn, fault in enumerate(faults) if fault.node] == [2, 5, 8]
    assert all(fault.task.startswith("worker:") for fault in faults if fault.node)


def test_a_fault_costs_what_is_missing_until_the_next_at_the_pace_of_the_run(tmp_path: Path) -> None:
    """Ten steps in a second, for 40 s, but none in the third one; after it three steps are made again."""
    second = 1_000_000_000
    steps = [(ns, ns * 10 // second) for ns in range(0, 2 * second, second // 10)]
    steps += [(ns, ns * 10 // second - 13) for ns in range(3 * second, 40 * second, second // 10)]
    (tmp_path / "chief-0.1").write_text("".join(f"{ns} {step}\n" for ns, step in steps))
    log = StepLog(tmp_path)
    log.read()
    struck = [Struck("worker:1", "node-4", 2 * second - 1, 19), Struck("ps:0", "", 30 * second - 1, 286)]
    assert costs(log, struck, 40 * second - 1) == [
        {"task": "worker:1", "node": "node-4", "cost_steps": 13.0, "cost_s": 1.3},
        {"task": "ps:0", "node": "", "cost_steps": 0.0, "cost_s": 0.0},
    ]
    assert costs(log, [], 0) == []
