"""The jobs that save before a node is drained, with agents at a real socket, and failures meanwhile."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import grpc
import pytest

from supervisor.api import client as api_client
from supervisor.api.nodes import NodeMethods, node_list
from supervisor.api.saves import save_first
from supervisor.api.server import serve_api
from supervisor.contract import codec
from supervisor.contract.boundaries import Op
from supervisor.contract.errors import Conflict, Unreachable
from supervisor.contract.observed import SaverBeat
from supervisor.contract.views.jobs import Accepted, SaveRequest
from supervisor.contract.views.nodes import CordonRequest, NodeAnswer, UncordonRequest
from supervisor.control.decide.plan import Action
from supervisor.control.decide.snapshot import Snapshot
from supervisor.wire.rpc import Guard, Server
from supervisor.wire.tfsup_pb2 import Record
from tests.api.services import FakeJobService, FakeNodeService, Place
from tests.control.leader import Leader
from tests.control.world import World
from tests.support.waiting import until

Context: TypeAlias = "grpc.aio.ServicerContext[Record, Record]"
OTHER = "other"


class Agent:
    """The agent of all savers. It answers each when it is let; the job of `fails` gets no answer of ours."""

    def __init__(self, directory: Path) -> None:
        self.address = f"unix:{directory}/agent"
        self.asked: list[str] = []
        self.fails = ""
        self.let = asyncio.Event()
        self.server = grpc.aio.server()
        method = grpc.unary_unary_rpc_method_handler(
            self._save, request_deserializer=Record.FromString, response_serializer=Record.SerializeToString
        )
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("tfsup.v1.Node", {"Save": method}),)
        )
        self.server.add_insecure_port(self.address)

    async def _save(self, request: Record, context: Context) -> Record:
        job = codec.decode(SaveRequest, request.json).task.partition("/")[0]
        self.asked.append(job)
        if job == self.fails:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the agent ends")
        await self.let.wait()
        return Record(json=codec.encode(Accepted(job, "has saved")))

    def shown(self, snap: Snapshot) -> Snapshot:
        """The snapshot with its address, and with a second job whose saver it asks, too."""
        (job,) = snap.jobs.values()
        record = job.record.value
        other = replace(record, spec=replace(record.spec, name=OTHER))
        jobs = {**snap.jobs, OTHER: replace(job, name=OTHER, record=replace(job.record, value=other))}
        savers = {name: SaverBeat(name, job.switch.value.generation) for name in jobs}
        nodes = {}
        for name, node in snap.nodes.items():
            assert node.incarnation is not None
            assert node.beat is not None
            life = replace(node.incarnation, value=replace(node.incarnation.value, address=self.address))
            nodes[name] = replace(node, incarnation=life, beat=replace(node.beat, savers=savers))
        return replace(snap, jobs=jobs, nodes=nodes)


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    made = Agent(tmp_path)
    await made.server.start()
    yield made
    await made.server.stop(0)


async def test_a_job_saves_though_the_agent_has_no_answer_for_another(agent: Agent) -> None:
    agent.fails = "digits"
    snap = agent.shown(World().start().snapshot())
    saving = asyncio.create_task(save_first(Guard(), snap, ("digits", OTHER)))
    await until(lambda: sorted(agent.asked) == ["digits", OTHER])
    await asyncio.wait({saving}, timeout=0.3)
    agent.let.set()
    assert (await saving).startswith(f"; {OTHER}/")


async def test_a_node_gets_no_task_while_jobs_save_and_after_its_drain_is_given_up(agent: Agent) -> None:
    leader = Leader()
    leader.world.start()
    node = leader.world.node_of("chief.0")

    def state() -> tuple[str, str]:
        shown = {each.node: each for each in node_list(leader.world.snapshot()).nodes}
        return shown[node].state, shown[node].reason

    told: list[str] = []

    def tell(action: Action) -> tuple[Op, ...]:
        told.append(action.text)
        return ()

    leader.job_service._context._event = tell

    methods = NodeMethods(leader.job_service.nodes, lambda: agent.shown(leader.world.snapshot()), Guard())
    given_up = asyncio.create_task(methods.cordon(CordonRequest(node, "it ends", drain=True)))
    await until(lambda: bool(agent.asked))
    given_up.cancel()
    await asyncio.wait({given_up})
    assert state() == ("cordoned", "it ends")

    agent.asked.clear()
    draining = asyncio.create_task(methods.cordon(CordonRequest(node, "it ends", drain=True)))
    await until(lambda: bool(agent.asked))
    assert state() == ("cordoned", "it ends")
    agent.let.set()
    assert "has saved" in (await draining).detail
    assert state() == ("draining", "it ends")
    assert "it is drained already" in (await methods.cordon(CordonRequest(node, drain=True))).detail
    assert [text for text in told if text] == [
        f"node {node} is cordoned: it ends",
        f"node {node} is drained: it ends",
    ]


@pytest.mark.parametrize("cordoned_again", [False, True])
async def test_a_node_that_an_operator_lets_tasks_on_as_the_jobs_save_is_not_drained(
    agent: Agent, cordoned_again: bool
) -> None:
    leader = Leader()
    leader.world.start()
    node, nodes = leader.world.node_of("chief.0"), leader.job_service.nodes
    methods = NodeMethods(nodes, lambda: agent.shown(leader.world.snapshot()), Guard())
    draining = asyncio.create_task(methods.cordon(CordonRequest(node, "it ends", drain=True)))
    await until(lambda: bool(agent.asked))
    await lift(leader, node)
    if cordoned_again:
        await nodes.cordon(CordonRequest(node, "new fans"))
    agent.let.set()
    with pytest.raises(Conflict, match=f"the cordon of node {node} was lifted meanwhile"):
        await draining
    cordon = leader.world.snapshot().nodes[node].cordon
    assert (cordon.value.reason if cordon is not None else "") == ("new fans" if cordoned_again else "")
    assert cordon is None or not cordon.value.drain
    assert "has saved" in (await methods.cordon(CordonRequest(node, drain=True))).detail


class Deposed(FakeNodeService):
    """Does not lead any more once the jobs have saved."""

    async def cordon(self, request: CordonRequest, *, drain_follows: bool = False) -> NodeAnswer:
        await super().cordon(request)
        if request.drain:
            await asyncio.sleep(0.3)
            raise Unreachable("this supervisor does not lead")
        return NodeAnswer(request.node, "done")


@dataclass
class TwoLeaders:
    """Two supervisors, the second of which is asked if the first does not answer. Jobs save at one agent."""

    leader: Leader
    node: str
    client: api_client.ControlClient
    first: Server
    before: FakeNodeService
    after: FakeNodeService
    second: FakeJobService

    @classmethod
    async def over(cls, agent: Agent, directory: Path, stack: AsyncExitStack) -> TwoLeaders:
        place, leader, before, after = Place(directory, stack), Leader(), FakeNodeService(), FakeNodeService()
        snap = agent.shown(leader.world.start().snapshot())
        second = FakeJobService(snap, nodes=after)
        first = await serve_api(FakeJobService(snap, nodes=before), place.beats.append, place.config("s0"))
        stack.push_async_callback(first.close, 0)
        address = await place.serve("s1", second)
        client = await place.client(place.address("s0"), address, deadline_s=1.0)
        return cls(leader, leader.world.node_of("chief.0"), client, first, before, after, second)

    async def drain_until_the_jobs_save(self, agent: Agent) -> asyncio.Task[NodeAnswer]:
        draining = asyncio.create_task(self.client.cordon(self.node, "it ends", drain=True))
        await until(lambda: sorted(agent.asked) == ["digits", OTHER])
        return draining


@pytest.mark.parametrize("dies", [True, False])
async def test_the_next_leader_drains_a_node_whose_leader_dies_or_hangs_as_the_jobs_save(
    tmp_path: Path, agent: Agent, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    monkeypatch.setattr(api_client, "_SAVING_S", 3.0)
    async with AsyncExitStack() as stack:
        found = await TwoLeaders.over(agent, tmp_path, stack)
        draining = await found.drain_until_the_jobs_save(agent)
        if dies:
            await found.first.close(0)
        asked = len(agent.asked)
        await until(lambda: len(agent.asked) > asked)
        agent.let.set()
        assert "has saved" in (await draining).detail
        cordon, drain = CordonRequest(found.node, "it ends"), CordonRequest(found.node, "it ends", drain=True)
        assert [cordon, drain] == found.after.asked
        await until(lambda: [cordon, found.node] == found.before.asked)


async def test_a_drain_is_not_repeated_where_its_cordon_was_lifted_between_two_leaders(
    tmp_path: Path, agent: Agent
) -> None:
    async with AsyncExitStack() as stack:
        found = await TwoLeaders.over(agent, tmp_path, stack)
        draining = await found.drain_until_the_jobs_save(agent)
        await found.leader.job_service.nodes.cordon(CordonRequest(found.node, "it ends"))
        await lift(found.leader, found.node)
        found.second.picture = agent.shown(found.leader.world.snapshot())
        await found.first.close(0)
        with pytest.raises(Conflict, match=f"the cordon of node {found.node} was lifted meanwhile"):
            await draining
        assert not found.after.asked
        agent.let.set()
        assert "has saved" in (await found.client.cordon(found.node, "it ends", drain=True)).detail


async def test_a_drain_whose_outcome_nobody_can_tell_is_told_as_that(
    tmp_path: Path, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_client, "_SAVING_S", 2.0)
    async with AsyncExitStack() as stack:
        found = await TwoLeaders.over(agent, tmp_path, stack)
        began = time.monotonic()
        draining = await found.drain_until_the_jobs_save(agent)
        found.second.picture = None
        await found.first.close(0)
        with pytest.raises(Unreachable, match=r"s0 did not answer .* may or may not have been") as caught:
            await draining
        took = re.search(r"no leading supervisor answered within (\d+) s", str(caught.value))
        assert took is not None
        assert abs(int(took[1]) - (time.monotonic() - began)) <= 1.5


async def test_a_drain_waits_longer_for_a_leader_than_other_calls_do(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        place, snap = Place(tmp_path, stack), World().start().snapshot()
        leader = FakeJobService()
        client = await place.client(await place.serve("s0", leader), deadline_s=0.2)
        draining = asyncio.create_task(client.cordon("n1", drain=True))
        with pytest.raises(Unreachable):
            await client.nodes()
        await asyncio.wait({draining}, timeout=0.5)
        leader.picture = snap
        assert (await draining).detail == "done"


async def lift(leader: Leader, node: str) -> None:
    """As the operator does who has seen the cordon."""
    await leader.job_service.nodes.uncordon(UncordonRequest(node))


class DeposedJobs(FakeJobService):
    """Does not lead any more once the job has saved."""

    async def stop(self, job: str, *, save: bool = False) -> Accepted:
        await asyncio.sleep(0.3)
        raise Unreachable("this supervisor does not lead")


async def test_what_saves_first_is_asked_of_the_next_leader_however_long_the_save_was(
    tmp_path: Path, agent: Agent
) -> None:
    async with AsyncExitStack() as stack:
        place, snap = Place(tmp_path, stack), World().start().snapshot()
        leader = FakeJobService(snap)
        first = await place.serve("s0", DeposedJobs(snap, nodes=Deposed()))
        second = await place.serve("s1", leader)
        client = await place.client(first, second, deadline_s=0.2)
        assert (await client.cordon("n1", drain=True)).detail == "done"
        client = await place.client(first, second, deadline_s=0.2)
        assert (await client.stop("digits", save=True)).detail == "done"
        assert leader.asked == [("digits", True)]
