"""A disk without room for a checkpoint: the job goes to other nodes, and comes back when there is room."""

import pytest

from chaos.sim.run import run_seed
from chaos.sim.trouble.schedule import Fault

FULL_S = 12.0
RESTART = Fault(3.3, "operator_restart", 0, 0.1)


@pytest.mark.parametrize(("seed", "pick"), [(1, 1), (2, 0), (12, 2)])
def test_a_job_goes_to_nodes_that_have_room_for_its_base(seed: int, pick: int) -> None:
    result = run_seed(seed, (Fault(3.0, "disk_cramped", pick, FULL_S), RESTART))
    assert result.ok, (*result.violations, result.error)
    refused, left, begun = (
        next(float(line.split()[0]) for line in result.trace if what in line)
        for what in ("base is not staged here", "where nothing new can start: cannot write", "2 is in force")
    )
    assert refused < left < begun < 3.0 + FULL_S
