"""Nodes fence what their stopped agents have left: a cluster that believes them keeps its promises."""

from __future__ import annotations

import pytest

from chaos.sim.cluster.fencing import Keeper
from chaos.sim.run import Result, run_stopped
from chaos.sim.trouble.fault import Fault
from tests.sim.command import simulate

STOPPED = (Fault(0.5, "agent_down", 0, 9.0),)
DEAD = "a lost node's tasks are dead before the flip"
FLIPPED_S = 2.5
"""Less than D, and all that comes with it."""


def flipped_s(result: Result) -> float:
    """The time from the fault until the job's next generation was in force."""
    (fault,) = [line for line in result.trace if "** agent_down" in line]
    after = result.trace[result.trace.index(fault) :]
    flip = next(line for line in after if "switches/" in line and "lost/" in line)
    return float(flip.split()[0]) - float(fault.split()[0])


def test_the_tasks_of_a_stopped_agent_are_replaced_without_a_wait_for_d() -> None:
    result = run_stopped(1, STOPPED)
    assert result.ok, (*result.violations, result.error)
    assert flipped_s(result) < FLIPPED_S
    waits = run_stopped(1, STOPPED, Keeper.NONE)
    assert flipped_s(waits) > FLIPPED_S


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_node_that_fences_late_breaks_nothing(seed: int) -> None:
    result = run_stopped(seed, STOPPED, Keeper.LATE)
    assert result.ok, (*result.violations, result.error)


def test_a_node_that_lies_breaks_a_promise() -> None:
    result = run_stopped(1, STOPPED, Keeper.LIES)
    assert any(f"[{DEAD}]" in each for each in result.violations)


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 11])
def test_nor_under_faults_of_all_kinds(first: int) -> None:
    done = simulate("--stopped", "--seeds", f"{first}..{first + 9}", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nodes that have fenced their tasks" in done.stdout
