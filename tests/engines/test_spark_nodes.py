"""The nodes of a pool as its driver looks after them, in a real embedded cluster without Spark."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path

import pytest

from supervisor.api import saves
from supervisor.api.client import ControlClient
from supervisor.cli.local.cluster import LocalCluster
from supervisor.cli.options import Globals
from supervisor.cli.target import find_target
from supervisor.contract.errors import Conflict, NotFound, Unreachable
from supervisor.contract.views.jobs import SAVE_S
from supervisor.contract.views.nodes import CordonRequest, NodeAnswer, UncordonRequest
from supervisor.engines.spark import nodes as nodes_of_pools
from supervisor.engines.spark.nodes import PoolNodes
from supervisor.wire.rpc import Guard
from tests.api.services import FakeJobService, FakeNodeService, Place
from tests.cli.saving import SavingShell
from tests.control.leader import Leader
from tests.control.world import World
from tests.support.waiting import until, wait_until


async def drain(nodes: PoolNodes) -> None:
    """Drain all nodes, for 2 s at most."""
    await nodes.drain((await nodes.by_agent()).values(), "it ends", 2)


def test_tasks_that_find_no_room_save_again_before_their_agents_end(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "state", nodes=1, supervisors=1) as cluster:
        shell = SavingShell(cluster, tmp_path)
        shell.save_when_asked()
        shell("submit", str(shell.job))
        shell("wait", "count", "--for", "running", "--timeout", "60")
        wait_until(lambda: shell.step() > 20, "it makes steps")
        before = shell.step()
        asyncio.run(drain(PoolNodes(find_target(Globals(state=tmp_path / "state")).client, "p", [""])))
        first, last = sorted(each.ref.step for each in shell.list())
        assert before <= first < last
        assert shell.nodes() == {"node-0"}


class Failing(FakeNodeService):
    """Drains the nodes but those that `errors` is about. Each drain is remembered."""

    def __init__(self, **errors: Exception) -> None:
        super().__init__()
        self.errors = errors
        self.drains = 99
        """After so many drains the leader answers none."""
        self.takes_s = 0.2

    async def cordon(self, request: CordonRequest, *, drain_follows: bool = False) -> NodeAnswer:
        if error := self.errors.get(request.node):
            raise error
        if request.drain:
            self.drains -= 1
            await asyncio.sleep(self.takes_s if self.drains >= 0 else 600)
        return await super().cordon(request)

    def drained(self) -> list[str]:
        """The names of nodes, once for each drain."""
        return [each.node for each in self.asked if isinstance(each, CordonRequest) and each.drain]


async def test_a_node_that_cannot_be_drained_hinders_no_other(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        place, service = Place(tmp_path, stack), Failing(n0=NotFound("gone"), n1=Conflict("changed"))
        address = await place.serve("s0", FakeJobService(World().start().snapshot(), nodes=service))
        nodes = PoolNodes(lambda: ControlClient([address], Guard()), "p", [""])
        listed = (await ControlClient([address], Guard()).nodes()).nodes
        await nodes.drain(listed, "it ends", 0.5)
        assert service.drained() == ["n2", "n2"], "with what it has trained on"
        service.errors["n2"] = service.errors["n0"] = Conflict("changed")
        with pytest.raises(Conflict):
            await nodes.drain(listed, "it ends", 0.5)


@pytest.mark.parametrize(("drains", "drained"), [(0, []), (3, ["n0", "n1", "n2"])])
async def test_a_leader_that_hangs_is_not_waited_for_longer_than_the_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drains: int, drained: list[str]
) -> None:
    monkeypatch.setattr(nodes_of_pools, "SAVE_S", 0.5)
    monkeypatch.setattr(nodes_of_pools, "LEAST_S", 1.0)
    async with AsyncExitStack() as stack:
        place, service = Place(tmp_path, stack), Failing()
        address = await place.serve("s0", FakeJobService(World().start().snapshot(), nodes=service))
        nodes = PoolNodes(lambda: ControlClient([address], Guard()), "p", [""])
        listed = (await ControlClient([address], Guard()).nodes()).nodes
        service.drains = drains
        with nullcontext() if drains else pytest.raises(Unreachable, match="is not drained, as the leader"):
            await asyncio.wait_for(nodes.drain(listed, "it ends", 1.5), 10)
        assert sorted(service.drained()) == drained


async def test_a_short_notice_leaves_a_drain_the_time_of_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nodes_of_pools.LEAST_S > SAVE_S + saves._AGENT_S
    monkeypatch.setattr(nodes_of_pools, "LEAST_S", 10.0)
    async with AsyncExitStack() as stack:
        place, service = Place(tmp_path, stack), Failing()
        service.takes_s = 1.0
        address = await place.serve("s0", FakeJobService(World().start().snapshot(), nodes=service))
        nodes = PoolNodes(lambda: ControlClient([address], Guard()), "p", [""])
        listed = (await ControlClient([address], Guard()).nodes()).nodes
        await nodes.drain(listed, "it ends", 0.1)
        assert {"n0", "n1", "n2"} == {*service.drained()}


async def test_a_drain_that_an_operator_lifts_is_not_asked_for_again(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        leader, service = Leader(), Failing()
        place, jobs = Place(tmp_path, stack), FakeJobService(leader.world.start().snapshot(), nodes=service)
        address = await place.serve("s0", jobs)
        nodes = PoolNodes(lambda: ControlClient([address], Guard()), "p", [""])
        node = leader.world.node_of("chief.0")
        listed = [each for each in await nodes._all() if each.node == node]
        draining = asyncio.create_task(nodes.drain(listed, "it ends", 3))
        await until(lambda: service.drained() == [node])
        await leader.job_service.nodes.cordon(CordonRequest(node, "it ends", drain=True))
        await leader.job_service.nodes.uncordon(UncordonRequest(node))
        jobs.picture = leader.world.snapshot()
        await draining
        assert service.drained() == [node]
