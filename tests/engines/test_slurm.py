"""A real Slurm holds the contract of all engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaos.slurm import SlurmCluster
from supervisor.engines import pools
from supervisor.engines.engine import Engine, Pool, State
from supervisor.engines.slurm import Slurm
from tests.engines.suite import EngineSuite, running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


class TestSlurm(EngineSuite):
    @pytest.fixture
    def engine(self, slurm_cluster: SlurmCluster) -> Iterator[Slurm]:
        found = Slurm(slurm_cluster.environment)
        yield found
        for name in {each.pool for each in pools.live(found)}:
            pools.end(found, name, 0)

    def no_such_queue(self) -> str:
        return "Invalid partition name specified"

    def test_a_step_that_slurm_kills_ends_its_agent_alone(
        self, engine: Engine, pool: Pool, slurm_cluster: SlurmCluster
    ) -> None:
        pools.start(engine, pool, 2)
        there = running(engine, 2)
        slurm_cluster.run("scancel", "--batch", "--signal=KILL", there[0].id)
        wait_until(lambda: [each.id for each in pools.live(engine)] == [there[1].id], "one has ended")
        ended = next(each for each in engine.agents("digits") if each.id == there[0].id)
        assert (ended.state, ended.word) == (State.ENDED, "FAILED")
        assert ended.reason
