"""Two jobs whose tasks fill two of three nodes: no node is overcommitted, whatever fails."""

from __future__ import annotations

import pytest

from chaos.sim.run import run_booked
from chaos.sim.trouble.fault import Fault
from tests.sim.command import simulate

BOTH_WAIT = (Fault(0.5, "node_kill", 0, 9.0), Fault(0.52, "node_kill", 1, 9.0))
"""Two nodes are lost at once, so that both jobs wait for the same room."""


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_two_jobs_that_wait_for_the_same_room_do_not_both_get_it(seed: int) -> None:
    result = run_booked(seed, BOTH_WAIT)
    assert result.ok, (*result.violations, result.error)
    assert result.facts["nodes filled by several jobs"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 11])
def test_nor_under_faults_of_all_kinds(first: int) -> None:
    done = simulate("--booked", "--seeds", f"{first}..{first + 9}", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nodes filled by several jobs" in done.stdout
