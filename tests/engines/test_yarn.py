"""A real YARN holds the contract of all engines, and an agent whose container is taken gets another."""

from __future__ import annotations

import getpass
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.yarn import AGENT_MIB, PLACES, YarnCluster
from supervisor.engines import pools
from supervisor.engines.engine import Engine, Pool, State
from supervisor.engines.yarn.yarn import Yarn
from tests.engines.on_yarn import place_other_than, processes
from tests.engines.pool_shell import wait_long
from tests.engines.suite import EngineSuite, notes, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class TestYarn(EngineSuite):
    memory_mib = AGENT_MIB

    @pytest.fixture
    def engine(self, yarn: Yarn) -> Yarn:
        return yarn

    def origin(self) -> str:
        return rf"yarn:[\w.-]+_\d+:{getpass.getuser()}"

    def no_such_queue(self) -> str:
        return "to unknown queue: nowhere"

    def test_a_container_that_somebody_kills_ends_its_agent_alone(
        self, engine: Yarn, pool: Pool, yarn_cluster: YarnCluster, tmp_path: Path
    ) -> None:
        pools.start(engine, pool, 2)
        there = running(engine, 2)
        notes(tmp_path, there)
        yarn_cluster.yarn("container", "-signal", yarn_cluster.container_of(there[0].id), "FORCEFUL_SHUTDOWN")
        wait_long(lambda: [each.id for each in pools.live(engine)] == [there[1].id], "one has ended")
        ended = next(each for each in engine.agents("digits") if each.id == there[0].id)
        assert (ended.state, ended.word) == (State.ENDED, "FAILED")
        assert ended.reason.startswith("the agent's container ended with 137")
        # The agent had time to end by itself all the same.
        wait_long(lambda: (tmp_path / ended.id).read_text().endswith("SIGTERM"), "it was told")

    def test_an_application_master_that_dies_takes_no_agent_with_it(
        self, engine: Yarn, pool: Pool, yarn_cluster: YarnCluster, tmp_path: Path
    ) -> None:
        pools.start(engine, pool, 1)
        [agent] = running(engine, 1)
        noted = notes(tmp_path, [agent])
        (master,) = processes(agent.id, "tfsup.yarn.Master")
        (before,) = processes(agent.id, "agent.py")
        master.kill()
        wait_long(lambda: bool(processes(agent.id, "tfsup.yarn.Master")), "there is another one")
        wait_long(lambda: pools.live(engine) == [agent], "it has the agent")
        assert processes(agent.id, "agent.py") == [before]
        assert notes(tmp_path, [agent]) == noted
        # The next one tells it of notices.
        (tmp_path / agent.id).rename(tmp_path / "before")
        (tmp_path / agent.id).symlink_to(tmp_path / "before")
        try:
            yarn_cluster.decommission(agent.place)
            wait_long(lambda: (tmp_path / "before").read_text() == f"{agent.place} SIGUSR2", "it is told")
        finally:
            yarn_cluster.restore()

    def test_a_machine_that_is_decommissioned_is_a_notice_and_the_agent_gets_another(
        self, engine: Yarn, pool: Pool, yarn_cluster: YarnCluster, tmp_path: Path
    ) -> None:
        pools.start(engine, pool, 1)
        [agent] = running(engine, 1)
        notes(tmp_path, [agent])
        (tmp_path / agent.id).rename(tmp_path / "before")
        (tmp_path / agent.id).symlink_to(tmp_path / "before")
        try:
            yarn_cluster.decommission(agent.place)
            wait_long(lambda: (tmp_path / "before").read_text() == f"{agent.place} SIGUSR2", "it is told")
            assert place_other_than(engine, agent.place) in PLACES
        finally:
            yarn_cluster.restore()

    def test_a_queue_that_wants_its_share_back_is_a_notice(
        self, engine: Yarn, pool: Pool, tmp_path: Path
    ) -> None:
        pools.start(engine, pool, 3)
        there = running(engine, 3)
        notes(tmp_path, there)
        pools.start(engine, replace(pool, name="urgent", queue="urgent"), 1)
        wait_long(
            lambda: any(each.pool == "urgent" and each.place for each in pools.live(engine)), "it has a place"
        )
        [told] = [each for each in there if "SIGUSR2" in (tmp_path / each.id).read_text()]
        # The one that had to go waits for a place, and its id stays.
        wait_long(
            lambda: (
                {told.id} == {each.id for each in pools.live(engine, "digits") if each.state is State.WAITING}
            ),
            "it waits",
        )

    def test_a_machine_that_is_lost_is_replaced(
        self, engine: Yarn, pool: Pool, yarn_cluster: YarnCluster, tmp_path: Path
    ) -> None:
        pools.start(engine, pool, 1)
        [agent] = running(engine, 1)
        notes(tmp_path, [agent])
        (left,) = processes(agent.id, "agent.py")
        daemon = f"nodemanager{PLACES.index(agent.place)}"
        yarn_cluster.script("kill", daemon)
        try:
            assert place_other_than(engine, agent.place) in PLACES
            # Containers of a NodeManager run on without it, and end when one is back.
            assert left.is_running()
        finally:
            yarn_cluster.restore()
        wait_long(lambda: not left.is_running(), "the one that was left behind has ended")

    def test_the_log_of_an_agent_is_yarns(
        self, engine: Yarn, pool: Pool, yarn_cluster: YarnCluster, tmp_path: Path
    ) -> None:
        told = replace(pool, command=("python3", "-c", "print('the agent says this')"))
        pools.start(engine, told, 1)
        wait_long(lambda: not pools.live(engine), "it has ended")
        [agent] = [each for each in engine.agents("digits") if each.word == "SUCCEEDED"][-1:]
        assert agent.log == f"`yarn logs -applicationId {agent.id}`"
        wait_long(lambda: "the agent says this" in yarn_cluster.logs(agent.id), "YARN has collected it")

    def test_an_agent_that_is_wrong_says_why(self, engine: Engine, pool: Pool) -> None:
        program = "import sys; sys.stderr.write('tfsup-keeper: line 3 is wrong\\n'); sys.exit(2)"
        pools.start(engine, replace(pool, command=("python3", "-c", program)), 1)
        wait_long(lambda: not pools.live(engine), "it has ended")
        assert engine.agents("digits")[-1].reason == "the agent's container ended with 2: line 3 is wrong"
