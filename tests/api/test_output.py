"""`tail` through a real supervisor API and real agents' APIs over files as launchers write them."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agent.api import NodeApi
from agent.core.instructions import Follow
from agent.core.state import AgentState
from agent.logs import reading
from agent.logs.dump import DUMP
from agent.logs.reading import Place, bytes_of_lines, bytes_since, read_after, read_end, with_times
from agent.logs.storing import LogSender
from agent.logs.task_logs import AttemptFiles
from agent.operate import Operator
from agent.settings import AgentSettings
from recovery.logs.segments import attempt_directory
from recovery.stores.memory import MemoryCheckpointStore, MemoryDisk, Moment
from supervisor.adapters.clock import BootClock
from supervisor.adapters.files.config.supervisor import load_supervisor
from supervisor.api import output as api_output
from supervisor.api import stored_output
from supervisor.api.client import ControlClient
from supervisor.api.server import serve_api
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.desired import LeaderRecord
from supervisor.contract.errors import NotFound, Unreachable
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.observed import AttemptReport, NodeResources
from supervisor.contract.timing import FAST
from supervisor.contract.views.jobs import OutputPlace, TailChunk, TailRequest
from supervisor.control.decide.plan import put
from supervisor.control.decide.snapshot import Snapshot
from supervisor.wire.rpc import Guard
from tests.api.services import FakeJobService
from tests.control.world import World
from tests.support.builders import report
from tests.support.sinks import ListSink

TASK = TaskId("digits", "worker", 1)


@dataclass
class AgentDouble:
    """A real `NodeApi` over a real directory; no daemon behind it."""

    node: str
    root: Path
    files: AttemptFiles = field(init=False)
    api: NodeApi | None = None

    def __post_init__(self) -> None:
        self.files = AttemptFiles(self.root / self.node, ListSink())

    @property
    def listen(self) -> str:
        return f"unix:{self.root}/{self.node}.sock"

    async def open(self) -> None:
        settings = AgentSettings(self.node, "h", "", 1, 2, "/l", FAST, NodeResources(1.0, 1))
        state = AgentState(settings, "life", "boot", FAST.d_ms)
        operator = Operator(self.root, self.files, lambda: state, BootClock(), ListSink())
        self.api = NodeApi(self.listen, Guard(), self.files, operator)
        await self.api.open()

    async def close(self) -> None:
        if self.api is not None:
            await self.api.close()
            self.api = None

    def directory(self, generation: int, number: int) -> Path:
        attempt = AttemptId(TASK, generation, number)
        found = Path(self.files.directory("uuid", attempt))
        found.mkdir(parents=True, exist_ok=True)
        return found

    def write(self, data: str, generation: int = 1, number: int = 1) -> None:
        with (self.directory(generation, number) / "output.log").open("a") as file:
            file.write(data)

    def begin(self, generation: int = 1, number: int = 1) -> None:
        self.files.follow(Follow(AttemptId(TASK, generation, number), "uuid", (), 0))

    def end(self, generation: int = 1, number: int = 1) -> None:
        self.files.unfollow(AttemptId(TASK, generation, number))


class Cluster:
    """A leader's API whose snapshot names the agents above."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.world = World().start()
        self.agents = {node: AgentDouble(node, root) for node in ("n0", "n1", "n2")}
        self.job_service = FakeJobService(None, LeaderRecord("s0", f"unix:{root}/s0.sock", 1))
        self.stack = AsyncExitStack()
        self.store = MemoryCheckpointStore(MemoryDisk(prepared=True))
        self.job_service.open_logs = lambda _uri: self.store
        self.look()

    def look(self) -> None:
        self.job_service.picture = self.addressed(self.world.snapshot())

    def addressed(self, snap: Snapshot) -> Snapshot:
        nodes = {}
        for name, picture in snap.nodes.items():
            held = picture.incarnation
            assert held is not None
            moved = replace(held, value=replace(held.value, address=self.agents[name].listen))
            nodes[name] = replace(picture, incarnation=moved)
        return replace(snap, nodes=nodes)

    def runs(self, node: str, generation: int, number: int) -> None:
        """The attempt is reported by its node's agent, and nothing is told of earlier ones any more."""
        record: AttemptReport = report("worker.1", generation=generation, number=number, node=node)
        earlier = [keys.attempt(attempt) for attempt in self.world.job().attempts if attempt.task == TASK]
        self.world.write(*(Delete(key) for key in earlier if key != keys.attempt(record.attempt)))
        self.world.write(put(keys.attempt(record.attempt), record))
        self.look()

    async def serve(self) -> None:
        config = self.root / "s0.yaml"
        body = {
            "id": "s0",
            "cluster": "c",
            "etcd": {"endpoints": ["unix:/none"]},
            "listen": f"unix:{self.root}/s0.sock",
            "state_dir": str(self.root),
        }
        config.write_text(json.dumps(body))
        self.server = await serve_api(self.job_service, lambda _: None, load_supervisor(config))
        self.stack.push_async_callback(self.server.close, 0)

    async def keep(self, node: str, generation: int = 1, number: int = 1, *, whole: bool = True) -> None:
        """The node's agent stores what an attempt has written."""
        base = attempt_directory("uuid", TASK.member, generation, number)
        directory = self.agents[node].directory(generation, number)
        sender = LogSender(self.store, base, directory, node, dict, None)
        await sender.send(final=whole)

    async def client(self) -> ControlClient:
        client = ControlClient([f"unix:{self.root}/s0.sock"], Guard(), deadline_s=20)
        return await self.stack.enter_async_context(client)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    async with made.stack:
        for agent in made.agents.values():
            await agent.open()
            made.stack.push_async_callback(agent.close)
        await made.serve()
        yield made


def text(chunk: TailChunk) -> str:
    return base64.b64decode(chunk.data).decode()


async def tailed(client: ControlClient, last_bytes: int = 8192) -> list[tuple[str, str]]:
    """(attempt, output), one for each attempt."""
    found: dict[str, str] = {}
    async for chunk in client.tail(TailRequest(str(TASK), last_bytes=last_bytes)):
        if chunk.attempt:
            found[chunk.attempt] = found.get(chunk.attempt, "") + text(chunk)
    return list(found.items())


class Follower:
    """`tail -f` as the command line does it: it resumes after the last piece."""

    def __init__(self, client: ControlClient, last_bytes: int = 8192) -> None:
        self.client = client
        self.request = TailRequest(str(TASK), follow=True, last_bytes=last_bytes)
        self.notes: list[str] = []
        self.attempts: list[str] = []
        self.output = ""
        self.told = asyncio.Event()

    async def until_told(self, part: str) -> None:
        async with asyncio.timeout(10):
            while not any(part in note for note in self.notes):
                await self.told.wait()
                self.told.clear()

    async def until(self, end: str, *, also_attempts: int = 0) -> None:
        async with asyncio.timeout(20):
            while not (self.output.endswith(end) and len(self.attempts) >= also_attempts):
                try:
                    await self._listen(end, also_attempts)
                except Unreachable:
                    await asyncio.sleep(0.05)

    async def _listen(self, end: str, also_attempts: int) -> None:
        async with aclosing(self.client.tail(self.request)) as chunks:
            async for chunk in chunks:
                self.request = replace(self.request, after=chunk.place)
                self.output += text(chunk)
                if chunk.note:
                    self.notes.append(chunk.note)
                    self.told.set()
                if chunk.attempt and chunk.attempt not in self.attempts[-1:]:
                    self.attempts.append(chunk.attempt)
                if self.output.endswith(end) and len(self.attempts) >= also_attempts:
                    return


async def test_all_attempts_come_in_their_order_from_every_node(cluster: Cluster) -> None:
    cluster.agents["n1"].write("first\n", 1, 1)
    cluster.agents["n1"].write("third\n", 2, 1)
    cluster.agents["n2"].write("second\n", 1, 2)
    cluster.agents["n0"].write("last\n", 10, 1)
    cluster.agents["n0"].directory(10, 2)
    client = await cluster.client()
    assert await tailed(client) == [
        (f"{TASK}@1.1", "first\n"),
        (f"{TASK}@1.2", "second\n"),
        (f"{TASK}@2.1", "third\n"),
        (f"{TASK}@10.1", "last\n"),
        (f"{TASK}@10.2", ""),
    ]


async def test_of_each_attempt_its_end_is_shown_and_it_is_said_that_there_is_more(cluster: Cluster) -> None:
    cluster.agents["n1"].write("0123456789", 1, 1)
    cluster.agents["n1"].write("ab", 1, 2)
    client = await cluster.client()
    chunks = [chunk async for chunk in client.tail(TailRequest(str(TASK), last_bytes=4))]
    assert [(text(chunk), chunk.cut, chunk.node) for chunk in chunks] == [
        ("6789", True, "n1"),
        ("ab", False, "n1"),
    ]


async def test_without_any_output_it_is_not_found(cluster: Cluster) -> None:
    client = await cluster.client()
    with pytest.raises(NotFound, match="digits/worker:1 has not run, or its output is removed"):
        await tailed(client)
    with pytest.raises(NotFound, match="no task digits/worker:7; tasks of this job: digits/chief:0"):
        _ = [chunk async for chunk in client.tail(TailRequest("digits/worker:7"))]


async def test_output_of_an_earlier_life_of_the_agent_is_found(cluster: Cluster) -> None:
    agent = cluster.agents["n1"]
    agent.begin()
    agent.write("before\n")
    await agent.close()
    agent.files = AttemptFiles(cluster.root / "n1", ListSink())
    await agent.open()
    assert await tailed(await cluster.client()) == [(f"{TASK}@1.1", "before\n")]


async def test_following_loses_nothing_across_attempts_nodes_and_reconnects(cluster: Cluster) -> None:
    n1, n2 = cluster.agents["n1"], cluster.agents["n2"]
    cluster.runs("n1", 1, 1)
    n1.begin()
    n1.write("a1\n")
    follower = Follower(await cluster.client())
    await follower.until("a1\n")
    n1.write("a2\n")
    await follower.until("a2\n")

    # While nobody listens: more of this attempt, a whole attempt, and a move.
    n1.write("a3\n")
    n1.end()
    n1.begin(1, 2)
    n1.write("b1\n", 1, 2)
    n1.end(1, 2)
    cluster.runs("n2", 2, 1)
    n2.begin(2, 1)
    n2.write("c1\n", 2, 1)
    await follower.until("c1\n")

    # The leader goes in the middle; another attempt begins where the listener is not looking.
    await cluster.server.close(0)
    n2.write("c2\n", 2, 1)
    await cluster.serve()
    await follower.until("c2\n")
    n2.end(2, 1)
    cluster.runs("n2", 2, 2)
    n2.begin(2, 2)
    n2.write("d1\n", 2, 2)
    await follower.until("d1\n")
    assert follower.output == "a1\na2\na3\nb1\nc1\nc2\nd1\n"
    assert follower.attempts == [f"{TASK}@{number}" for number in ("1.1", "1.2", "2.1", "2.2")]


async def test_an_agent_that_is_restarted_interrupts_nothing(cluster: Cluster) -> None:
    agent = cluster.agents["n1"]
    cluster.runs("n1", 1, 1)
    agent.begin()
    agent.write("one\n")
    follower = Follower(await cluster.client())
    await follower.until("one\n")
    await agent.close()
    agent.write("two\n")
    agent.files = AttemptFiles(cluster.root / "n1", ListSink())
    agent.begin()
    await agent.open()
    agent.write("three\n")
    await follower.until("three\n")
    assert follower.output == "one\ntwo\nthree\n"


async def test_a_frozen_agent_is_told_of_and_left_for_the_next_node(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_output, "READ_S", 0.5)
    monkeypatch.setattr(api_output, "WAIT_MS", 100)
    monkeypatch.setattr(api_output, "LIST_S", 0.3)
    n1, n2 = cluster.agents["n1"], cluster.agents["n2"]
    cluster.runs("n1", 1, 1)
    n1.begin()
    n1.write("here\n")
    follower = Follower(await cluster.client())
    await follower.until("here\n")
    await n1.close()
    with socket.socket(socket.AF_UNIX) as mute:
        # The kernel takes connections for a process that is stopped.
        mute.bind(n1.listen.removeprefix("unix:"))
        mute.listen()
        listening = asyncio.create_task(follower.until("there\n"))
        await follower.until_told(f"waiting for n1, where {TASK}@1.1 runs")
        cluster.runs("n2", 2, 1)
        n2.begin(2, 1)
        n2.write("there\n", 2, 1)
        await listening
    assert follower.output == "here\nthere\n"
    assert len(follower.notes) == len(set(follower.notes))


async def test_an_agent_that_is_down_is_not_asked_without_a_pause(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    enough = asyncio.Event()
    on_disk = AttemptFiles.on_disk

    def counted(files: AttemptFiles, job_uuid: str, task: TaskId) -> tuple[AttemptId, ...]:
        asked.append(time.monotonic())
        if len(asked) > 30:
            loop.call_soon_threadsafe(enough.set)
        return on_disk(files, job_uuid, task)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(AttemptFiles, "on_disk", counted)
    n1, n2 = cluster.agents["n1"], cluster.agents["n2"]
    cluster.runs("n1", 1, 1)
    n1.begin()
    n1.write("here\n")
    follower = Follower(await cluster.client())
    await follower.until("here\n")
    await n2.close()
    listening = asyncio.create_task(follower.until("there\n"))
    cluster.runs("n2", 2, 1)
    async with asyncio.timeout(20):
        await enough.wait()
    assert asked[30] - asked[10] > 1, "ten rounds over the two agents that answer"
    n2.begin(2, 1)
    n2.write("there\n", 2, 1)
    await n2.open()
    await listening
    assert follower.output == "here\nthere\n"


async def test_who_follows_a_task_that_has_not_started_waits_for_it(cluster: Cluster) -> None:
    for attempt in [attempt for attempt in cluster.world.job().attempts if attempt.task == TASK]:
        cluster.world.write(Delete(keys.attempt(attempt)))
    cluster.look()
    follower = Follower(await cluster.client())
    listening = asyncio.create_task(follower.until("hello\n"))
    await follower.until_told("digits/worker:1 has not started yet")
    cluster.runs("n0", 1, 1)
    cluster.agents["n0"].begin()
    cluster.agents["n0"].write("hello\n")
    await listening


def test_a_place_survives_rotation_and_tells_when_output_is_gone(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"one\ntwo\n")
    piece = read_end(tmp_path, 4)
    assert (piece.data, piece.cut) == (b"two\n", True)
    log.rename(tmp_path / "output.log.1")
    log.write_bytes(b"three\n")
    piece = read_after(tmp_path, piece.place)
    assert (piece.data, piece.cut) == (b"three\n", False)
    end = read_after(tmp_path, piece.place)
    assert (end.data, end.place) == (b"", piece.place)
    assert read_end(tmp_path, 10).data == b"two\n"
    lost = read_after(tmp_path, Place(1, 0))
    assert (lost.data, lost.cut) == (b"one\ntwo\n", True)
    # Between two renames of a rotation there is a gap, behind which older output stays.
    (tmp_path / "output.log.1").rename(tmp_path / "output.log.2")
    assert read_end(tmp_path, 100).data == b"one\ntwo\n"


def test_another_file_with_the_inode_number_of_a_removed_one_is_not_taken_for_it(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"step 1\nstep 2\n")
    place = read_end(tmp_path, 100).place
    with log.open("rb+") as file:
        file.write(b"step 8\nstep 9\nstep 10\n")
    piece = read_after(tmp_path, place)
    assert (piece.data, piece.cut) == (b"step 8\nstep 9\nstep 10\n", True)
    assert read_after(tmp_path, piece.place).data == b""


def test_the_last_lines_are_found_across_files(tmp_path: Path) -> None:
    assert bytes_of_lines(tmp_path, 3) == 0
    (tmp_path / "output.log.1").write_bytes(b"one\ntwo\nthr")
    (tmp_path / "output.log").write_bytes(b"ee\nfour")
    found = {count: read_end(tmp_path, bytes_of_lines(tmp_path, count)) for count in (1, 2, 3, 9)}
    assert [(piece.data, piece.cut) for piece in found.values()] == [
        *((b"four", True), (b"thr", True), (b"two\nthr", True), (b"one\ntwo\nthr", False)),
    ]


def test_an_output_without_lines_is_not_read_to_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LINES_WITHIN", 1000)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 400)
    (tmp_path / "output.log").write_bytes(b"x" * 5000)
    assert bytes_of_lines(tmp_path, 1) == 1200


@pytest.mark.parametrize("where", ["disk", "store"])
async def test_of_each_attempt_its_last_lines_are_shown(cluster: Cluster, where: str) -> None:
    cluster.runs("n1", 1, 2)
    agent = cluster.agents["n1"]
    agent.write("1\n2\n3\n", 1, 1)
    agent.write("4\n5\n6\n", 1, 2)
    if where == "store":
        await cluster.keep("n1", 1, 1)
        await cluster.keep("n1", 1, 2)
        await agent.close()
    client = await cluster.client()
    request = TailRequest(str(TASK), last_lines=2)
    chunks = [chunk async for chunk in client.tail(request) if chunk.data]
    assert [(text(chunk), chunk.cut) for chunk in chunks] == [("2\n3\n", True), ("5\n6\n", True)]


async def test_following_shows_the_last_lines_and_all_that_comes(cluster: Cluster) -> None:
    agent = cluster.agents["n1"]
    cluster.runs("n1", 1, 1)
    agent.begin()
    agent.write("1\n2\n3\n")
    follower = Follower(await cluster.client())
    follower.request = replace(follower.request, last_lines=1)
    await follower.until("3\n")
    agent.write("4\n5\n")
    agent.end()
    agent.begin(1, 2)
    agent.write("6\n7\n", 1, 2)
    cluster.runs("n1", 1, 2)
    await follower.until("7\n")
    assert follower.output == "3\n4\n5\n6\n7\n"


async def test_a_place_in_the_api_is_checked(cluster: Cluster) -> None:
    client = await cluster.client()
    with pytest.raises(Exception, match="is not an attempt"):
        _ = [c async for c in client.tail(TailRequest(str(TASK), after=OutputPlace("x", 1, 1)))]


async def test_output_of_a_lost_node_comes_from_the_store_with_a_word_on_what_is_missing(
    cluster: Cluster,
) -> None:
    cluster.runs("n1", 1, 1)
    cluster.agents["n1"].write("one\ntwo\n")
    await cluster.keep("n1", whole=False)
    await cluster.agents["n1"].close()
    client = await cluster.client()
    chunks = [chunk async for chunk in client.tail(TailRequest(str(TASK)))]
    assert "".join(map(text, chunks)) == "one\ntwo\n"
    assert [chunk.node for chunk in chunks if chunk.data] == ["n1"]
    (note,) = filter(None, (chunk.note for chunk in chunks))
    assert re.search(rf"{TASK}@1.1: .*its output is stored up to \d\d:\d\d:\d\d UTC", note)


async def test_what_no_node_has_any_more_comes_from_the_store(cluster: Cluster) -> None:
    cluster.agents["n1"].write("long ago\n", 1, 1)
    await cluster.keep("n1", 1, 1)
    shutil.rmtree(cluster.agents["n1"].directory(1, 1))
    cluster.agents["n2"].write("now\n", 2, 1)
    await cluster.keep("n2", 2, 1, whole=False)
    client = await cluster.client()
    assert await tailed(client) == [(f"{TASK}@1.1", "long ago\n"), (f"{TASK}@2.1", "now\n")]


async def test_following_goes_over_to_the_store_and_to_the_next_node_without_a_gap(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_output, "WAIT_MS", 100)
    n1, n2 = cluster.agents["n1"], cluster.agents["n2"]
    cluster.runs("n1", 1, 1)
    n1.begin()
    n1.write("shown\n")
    follower = Follower(await cluster.client())
    await follower.until("shown\n")
    n1.write("stored alone\n")
    await cluster.keep("n1", whole=False)
    await n1.close()
    cluster.runs("n2", 2, 1)
    n2.begin(2, 1)
    n2.write("moved\n", 2, 1)
    await follower.until("moved\n")
    assert follower.output == "shown\nstored alone\nmoved\n"


async def test_a_store_that_hangs_or_fails_hides_nothing_of_nodes_that_answer(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_output, "LIST_S", 0.2)

    async def hang(_operation: str, _path: str, _moment: Moment) -> None:
        await asyncio.Event().wait()

    cluster.store.hook = hang
    cluster.runs("n1", 1, 1)
    cluster.agents["n1"].write("here\n")
    client = await cluster.client()
    assert await tailed(client) == [(f"{TASK}@1.1", "here\n")]
    await cluster.agents["n1"].close()
    with pytest.raises(NotFound, match="has not run, or its output is removed or cannot be reached"):
        await tailed(client)


async def test_stored_stacks_are_shown(cluster: Cluster) -> None:
    client, request = await cluster.client(), TailRequest(str(TASK), stacks=True)
    with pytest.raises(NotFound, match="no stacks of digits/worker:1 are stored: a dump is made"):
        _ = [chunk async for chunk in client.tail(request)]
    cluster.agents["n1"].write("prints\n")
    dump = cluster.agents["n1"].directory(1, 1) / DUMP
    for number, words in enumerate(("older", "newer")):
        dump.write_text(words)
        os.utime(dump, (number + 1, number + 1))
        await cluster.keep("n1", whole=False)
    chunks = [chunk async for chunk in client.tail(request)]
    assert [(text(chunk), chunk.node, chunk.attempt) for chunk in chunks] == [("newer", "n1", f"{TASK}@1.1")]


async def test_merged_streams_have_times_and_begin_at_one(cluster: Cluster) -> None:
    cluster.runs("n1", 1, 1)
    agent = cluster.agents["n1"]
    agent.write("old\nnew\n")
    inode = (agent.directory(1, 1) / "output.log").stat().st_ino
    times = [(inode, 0), (0, 1_000), (4, 5_000)]
    (agent.directory(1, 1) / "output.times").write_bytes(
        b"".join(struct.pack("<2Q", *each) for each in times)
    )
    client = await cluster.client()
    request = TailRequest(str(TASK), merged=True)
    chunks = [chunk async for chunk in client.tail(request) if chunk.data]
    assert [(text(chunk), chunk.times) for chunk in chunks] == [("old\nnew\n", (0, 1_000, 4, 5_000))]
    chunks = [chunk async for chunk in client.tail(replace(request, since_ms=4_000)) if chunk.data]
    assert [(text(chunk), chunk.times, chunk.cut) for chunk in chunks] == [("new\n", (0, 5_000), True)]


@pytest.mark.parametrize("rubbish", [b"", b"\xff" * 100, struct.pack("<6Q", 1, 0, 9, 9, 3, 2), bytes(1000)])
def test_times_that_a_program_has_written_do_no_harm(tmp_path: Path, rubbish: bytes) -> None:
    (tmp_path / "output.log").write_bytes(b"one\ntwo\n")
    inode = (tmp_path / "output.log").stat().st_ino
    for head in (b"", struct.pack("<2Q", inode, 0)):
        (tmp_path / "output.times").write_bytes(head + rubbish)
        piece, times = with_times(read_end(tmp_path, 100), tmp_path)
        assert piece.data == b"one\ntwo\n"
        assert all(0 <= at < 8 and 0 <= ms < 1 << 53 for at, ms in times)
        assert bytes_since(tmp_path, 1) <= 8


def test_a_chunk_with_very_many_times_is_cut(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_bytes(b"x\n" * 3000)
    inode = (tmp_path / "output.log").stat().st_ino
    notes = [(inode, 0), *((2 * each, 1_000 * (each + 1)) for each in range(3000))]
    (tmp_path / "output.times").write_bytes(b"".join(struct.pack("<2Q", *each) for each in notes))
    piece, times = with_times(read_end(tmp_path, 10_000), tmp_path)
    assert (len(piece.data), len(times)) == (2000, 1000)
    following, times = with_times(read_after(tmp_path, piece.place), tmp_path)
    assert (len(following.data), times[0]) == (2000, (0, 1_001_000))
    assert bytes_since(tmp_path, 2_999_500) == 2
