"""`tfsup-agent --fence`: what a dead agent has left is ended, and only then etcd is told so (rule 3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agent.boundaries import Process
from agent.core.saved.record import AgentRecord
from agent.fencing import Fencing, fence_node
from agent.runtimes.process import ProcessRuntime
from agent.state_file import LockedStateFile
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.adapters.etcd.memory_store import MemoryStore
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Compare, Op, Put, TxnResult
from supervisor.contract.errors import Conflict, Refused, UserError
from supervisor.contract.observed import Incarnation, NodeResources
from supervisor.contract.timing import FAST
from tests.agent.cluster import Job, Node, fence_by_command, is_alive
from tests.support.etcd_server import EtcdServer
from tests.support.sinks import ListSink

ME = Incarnation("n1", "mine", "boot", FAST.d_ms, "h", "", 1, 2, 3, NodeResources(1, 1))
MINE = AgentRecord("n1", "boot", "mine")


# A real agent.


@pytest.fixture
async def node(etcd: EtcdServer) -> AsyncIterator[Node]:
    made = Node(etcd.endpoint, name="fenced", profile="default")
    yield made
    await made.close()


async def test_what_a_killed_agent_has_left_is_dead_when_its_key_says_so(node: Node) -> None:
    node.start()
    life = await node.until_joined()
    report = await Job(node, life).run()
    refused = await fence_by_command(node)
    assert (refused.returncode, is_alive(report)) == (Conflict.exit_code, True), refused.stderr
    assert "another agent is running" in refused.stderr
    node.kill()
    assert is_alive(report)
    done = await fence_by_command(node)
    assert done.returncode == 0, done.stderr
    assert not is_alive(report)
    assert await node.incarnation() == replace(life, fenced=True)
    # The next agent takes the node over as ever, and says that its task is dead.
    node.start()
    successor = await node.until_joined(other_than=life.incarnation)
    assert (successor.succeeds, successor.fenced) == ((life.incarnation,), False)


# Its parts.


class Etcd(MemoryCoordination):
    """Holds a node's key. `meanwhile` happens just before each transaction."""

    def __init__(self, holder: Incarnation | None) -> None:
        self.store = MemoryStore()
        super().__init__(self.store)
        if holder is not None:
            self.write(holder)
        self.meanwhile: Callable[[], None] = lambda: None

    def write(self, holder: Incarnation) -> None:
        assert self.store.commit([], [Put(keys.node("n1"), codec.encode(holder))], []).succeeded

    def holder(self) -> Incarnation:
        return codec.decode(Incarnation, self.store.read(keys.node("n1"))[0].value)

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        self.meanwhile()
        return await super().txn(compares, then, otherwise)


class Stubborn(ProcessRuntime):
    """A machine with one process of this node, which dies when it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "launchers", root / "socket", FAST)
        self.let_go = asyncio.Event()
        self.kills = asyncio.Event()

    async def living(self) -> Mapping[str, tuple[Process, ...]]:
        return {} if self.let_go.is_set() else {"mine-1": (Process(1, 1),)}

    async def fence(self, launcher_id: str, processes: tuple[Process, ...]) -> int:
        self.kills.set()
        return len(await self.living())


async def given_for(root: Path, etcd: Etcd, record: AgentRecord | None = MINE) -> tuple[Fencing, Stubborn]:
    """A machine on which nothing is left, and an agent that has saved this record, and is dead."""
    directory, runtime = root / "state", Stubborn(root)
    if record is not None:
        agents = LockedStateFile(directory, root)
        agents.read()
        await agents.save(record)
        agents.close()
    runtime.let_go.set()
    file = LockedStateFile(directory, root)
    return Fencing("n1", FAST, file, runtime, etcd, BootClock(), ListSink()), runtime


async def test_nothing_is_told_while_a_process_lives(tmp_path: Path) -> None:
    etcd = Etcd(ME)
    given, runtime = await given_for(tmp_path, etcd)
    runtime.let_go.clear()
    fencing = asyncio.create_task(fence_node(given))
    for _ in range(3):
        runtime.kills.clear()
        await runtime.kills.wait()
        assert etcd.holder() == ME
    runtime.let_go.set()
    await fencing
    assert etcd.holder() == replace(ME, fenced=True)


async def test_a_life_that_the_last_one_had_succeeded_is_over_too(tmp_path: Path) -> None:
    """The last one may have died before it had the key."""
    etcd = Etcd(replace(ME, incarnation="older"))
    given, _ = await given_for(tmp_path, etcd, AgentRecord("n1", "boot", "mine", ("older",)))
    await fence_node(given)
    assert etcd.holder().fenced


async def test_the_key_of_another_agent_is_left_alone(tmp_path: Path) -> None:
    etcd = Etcd(replace(ME, incarnation="other"))
    given, _ = await given_for(tmp_path, etcd)
    with pytest.raises(Refused, match="another agent, incarnation other"):
        await fence_node(given)
    assert not etcd.holder().fenced


async def test_a_key_that_is_written_meanwhile_is_looked_at_again(tmp_path: Path) -> None:
    etcd = Etcd(ME)
    given, _ = await given_for(tmp_path, etcd)
    other = replace(ME, incarnation="other")
    etcd.meanwhile = lambda: etcd.write(other)
    with pytest.raises(Refused, match="another agent, incarnation other"):
        await fence_node(given)
    assert etcd.holder() == other


async def test_a_key_that_is_gone_is_not_made(tmp_path: Path) -> None:
    etcd = Etcd(None)
    given, _ = await given_for(tmp_path, etcd)
    with pytest.raises(Refused, match="gone"):
        await fence_node(given)
    assert not etcd.store.read(keys.node("n1"))


async def test_while_an_agent_runs_nothing_is_killed(tmp_path: Path) -> None:
    etcd = Etcd(ME)
    given, runtime = await given_for(tmp_path, etcd)
    agents = LockedStateFile(tmp_path / "state", tmp_path)
    agents.read()
    with pytest.raises(Conflict, match="another agent is running"):
        await fence_node(given)
    agents.close()
    assert not runtime.kills.is_set()
    assert etcd.holder() == ME


async def test_the_state_of_another_node_is_refused(tmp_path: Path) -> None:
    given, runtime = await given_for(tmp_path, Etcd(ME), AgentRecord("n2", "boot", "mine"))
    with pytest.raises(UserError, match="n2"):
        await fence_node(given)
    assert not runtime.kills.is_set()


async def test_where_no_agent_has_run_there_is_nothing_to_do(tmp_path: Path) -> None:
    etcd = Etcd(ME)
    given, _ = await given_for(tmp_path, etcd, None)
    await fence_node(given)
    assert etcd.holder() == ME
