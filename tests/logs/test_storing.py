"""What an attempt prints comes to its job's store: bounded, masked, whole at its end, and in nobody's way."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from pathlib import Path

import pytest

from agent.inside.launcher.pump import Pump
from agent.logs import storing
from agent.logs.dump import DUMP
from agent.logs.storing import LogSender, LogSettings, NodeLogs
from agent.secret_masks import TaskSecrets
from recovery.io import daemon_threads
from recovery.io.daemon_threads import DaemonThreads
from recovery.logs.segments import (
    MOST_ATTEMPTS,
    SEGMENT_BYTES,
    SegmentName,
    attempt_directory,
    decode_segment,
    directory_of,
)
from recovery.logs.stored import StoredLog, stored_attempts
from recovery.stores.local import LocalStore
from recovery.stores.memory import MemoryCheckpointStore, Moment
from recovery.stores.open import Stores
from supervisor.adapters.clock import BootClock
from supervisor.adapters.files.hadoop import HadoopSettings
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.errors import OutOfSpace
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.observed import LOGS_LATE
from tests.support.sinks import ListSink
from tests.support.waiting import until

TASK = TaskId("digits", "worker", 0)
ATTEMPT = AttemptId(TASK, 1, 1)
BASE = attempt_directory("uuid", TASK.member, 1, 1)
SECRET = "hunter2-secret"
ALL = 1 << 40


@pytest.fixture(params=["local", "memory", "hdfs"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CheckpointStore]:
    if request.param == "hdfs":
        cluster = request.getfixturevalue("hdfs")
        stores = Stores(HadoopSettings(conf_dir=str(cluster.conf_dir)))
        made, _ = stores.open_logs(cluster.fresh_uri("logs"))
        await made.prepare()
        yield made
        await stores.close()
        return
    made = LocalStore(tmp_path / "store") if request.param == "local" else MemoryCheckpointStore()
    await made.prepare()
    yield made


class Attempt:
    """An attempt's directory, as a launcher fills it, and who sends it."""

    def __init__(self, directory: Path, store: CheckpointStore) -> None:
        self.directory = directory
        self.store = store
        self.secrets: dict[str, str] = {}
        self.limit_bytes = storing.LIMIT_BYTES
        directory.mkdir(exist_ok=True)
        self.sender = self.successor()

    def successor(self) -> LogSender:
        threads: Executor | None = None
        return LogSender(
            self.store, BASE, self.directory, "n0", lambda: self.secrets, threads, self.limit_bytes
        )

    def write(self, data: bytes) -> None:
        with (self.directory / "output.log").open("ab") as file:
            file.write(data)

    async def stored(self, last_bytes: int = ALL, last_lines: int = 0) -> tuple[bytes, bool]:
        """What a reader finds, and whether it is whole."""
        log, found = StoredLog(self.store, "uuid", ATTEMPT), b""
        await log.begin(0, 0, last_bytes, last_lines=last_lines)
        while (chunk := await log.next()) is not None:
            found += chunk.data
        return found, log.is_whole

    async def names(self) -> list[SegmentName | None]:
        listing = await self.store.list(BASE)
        return [SegmentName.parse(file.path.rpartition("/")[2]) for file in listing.files]


@pytest.fixture
def attempt(tmp_path: Path, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    monkeypatch.setattr(storing, "PAUSE_S", 0)
    return Attempt(tmp_path / "attempt", store)


async def test_it_grows_in_the_store_and_is_whole_at_its_end(attempt: Attempt) -> None:
    await attempt.sender.send(final=False)
    assert await attempt.names() == []
    attempt.write(b"one\n")
    await attempt.sender.send(final=False)
    assert await attempt.stored() == (b"one\n", False)
    attempt.write(b"two\nhalf a li")
    await attempt.sender.send(final=False)
    assert await attempt.stored() == (b"one\ntwo\nhalf a li", False)
    assert len(await attempt.names()) == 1
    attempt.write(b"ne")
    await attempt.sender.send(final=True)
    assert await attempt.stored() == (b"one\ntwo\nhalf a line", True)


memory = pytest.mark.parametrize("store", ["memory"], indirect=True)


@memory
async def test_a_successor_goes_on_where_its_agent_died(attempt: Attempt) -> None:
    attempt.write(b"before\n")
    await attempt.sender.send(final=False)
    attempt.write(b"after\n")
    await attempt.successor().send(final=True)
    assert await attempt.stored() == (b"before\nafter\n", True)
    before = await attempt.names()
    await attempt.successor().send(final=True)
    assert await attempt.names() == before, "it is whole already"


@memory
async def test_hostile_output_is_stored_as_it_is_and_the_oldest_goes(attempt: Attempt) -> None:
    attempt.limit_bytes = 3 * SEGMENT_BYTES
    attempt.sender = attempt.successor()
    hostile = b"\x00\x1b[2J\r\xff" * 100 + b"x" * (10 * SEGMENT_BYTES)
    attempt.write(hostile)
    await attempt.sender.send(final=True)
    found, whole = await attempt.stored()
    assert whole
    assert hostile.endswith(found)
    assert 2 * SEGMENT_BYTES < len(found) <= 4 * SEGMENT_BYTES + 1
    tail, _ = await attempt.stored(last_bytes=100)
    assert tail == hostile[-100:]


@memory
async def test_its_last_lines_are_found_across_segments(attempt: Attempt) -> None:
    lines = [b"%06d\n" % number for number in range(3 * SEGMENT_BYTES // 7)]
    attempt.write(b"".join(lines))
    await attempt.sender.send(final=True)
    assert len(await attempt.names()) > 1
    for count in (1, 2, len(lines) // 2, len(lines) + 1):
        assert (await attempt.stored(last_lines=count))[0] == b"".join(lines[-count:])
    assert (await attempt.stored(last_bytes=9, last_lines=5))[0] == b"".join(lines)[-9:]


@memory
async def test_output_that_the_node_removed_first_is_told_of(attempt: Attempt) -> None:
    attempt.write(b"one\n")
    await attempt.sender.send(final=False)
    # It is not deleted, so that its inode number is not used again.
    (attempt.directory / "output.log").rename(attempt.directory / "gone")
    attempt.write(b"two\n")
    await attempt.sender.send(final=True)
    assert await attempt.stored() == (b"one\n" + storing.MISSING + b"two\n", True)


async def test_no_secret_is_stored(attempt: Attempt) -> None:
    """What a launcher lets through: a program writes to its log by itself, and reads come in any pieces."""
    attempt.secrets = {"TOKEN": SECRET}
    attempt.write(f"{SECRET} a {SECRET[:8]}".encode())
    await attempt.sender.send(final=False)
    attempt.write(f"{SECRET[8:]} b\n{SECRET[:10]}".encode())
    (attempt.directory / DUMP).write_text(f"stacks {SECRET}")
    await attempt.sender.send(final=False)
    # As when its agent has forgotten it.
    attempt.secrets = {}
    attempt.write(f"{SECRET[10:]} c\n".encode())
    await attempt.sender.send(final=True)
    found, _ = await attempt.stored()
    assert found == b"*** a *** b\n*** c\n"
    for file in (await attempt.store.list(BASE)).files:
        content = decode_segment(await attempt.store.read_bytes(file.path, 1 << 20))
        assert SECRET.encode() not in content.data
        assert content.data or file.size


@memory
async def test_a_reader_goes_on_from_the_place_up_to_which_the_node_has_shown(attempt: Attempt) -> None:
    data = b"0123456789" * (SEGMENT_BYTES // 5)
    attempt.write(data)
    await attempt.sender.send(final=True)
    inode = (attempt.directory / "output.log").stat().st_ino
    log = StoredLog(attempt.store, "uuid", ATTEMPT)
    for start in (1, SEGMENT_BYTES + 13, len(data) - 1):
        await log.begin(inode, start)
        chunk = await log.next()
        assert chunk is not None
        assert chunk.data == data[start : start + len(chunk.data)]
        assert (chunk.file, chunk.offset, chunk.cut) == (inode, start + len(chunk.data), False)
    await log.begin(inode, len(data))
    assert await log.next() is None
    await log.begin(1, 5)
    chunk = await log.next()
    assert chunk is not None
    assert (chunk.data[:10], chunk.cut) == (data[:10], True)


@memory
async def test_times_come_with_it_and_since_begins_there(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr("agent.inside.launcher.pump.time.time", lambda: now_s)
    reader, writer = os.pipe()
    pump = Pump(reader, str(attempt.directory), 1 << 20, 2)
    for at_s, text in ((1_000.0, b"a\n"), (1_000.5, b"b\n"), (1_002.0, b"c\n"), (1_010.0, b"d\n")):
        now_s = at_s
        os.write(writer, text)
        pump.read_some(1 << 20)
    os.close(writer)
    pump.close()
    await attempt.sender.send(final=True)
    log = StoredLog(attempt.store, "uuid", ATTEMPT)
    await log.begin(0, 0, ALL)
    chunk = await log.next()
    assert chunk is not None
    assert (chunk.data, chunk.times) == (b"a\nb\nc\nd\n", ((0, 1_000_000), (4, 1_002_000), (6, 1_010_000)))
    await log.begin(0, 0, ALL, since_ms=1_001_000)
    chunk = await log.next()
    assert chunk is not None
    assert (chunk.data, chunk.cut) == (b"c\nd\n", True)


class Node:
    """`NodeLogs` over directories of one test."""

    def __init__(self, root: Path, opener: storing.LogOpener) -> None:
        self.root = root
        self.sink = ListSink()
        self.secrets = TaskSecrets()
        self.logs = NodeLogs(
            *("n0", self.directory, opener, self.secrets.of, BootClock(), self.sink), LogSettings(100)
        )

    def directory(self, _job_uuid: str, attempt: AttemptId) -> str:
        return str(self.root / attempt.dirname)

    def write(self, data: bytes, attempt: AttemptId = ATTEMPT) -> None:
        directory = Path(self.directory("uuid", attempt))
        directory.mkdir(exist_ok=True)
        with (directory / "output.log").open("ab") as file:
            file.write(data)

    def late(self) -> list[str]:
        return [notice.text for notice in self.logs.notices() if notice.kind == LOGS_LATE]


async def test_a_full_store_holds_up_nothing_is_told_and_gets_all_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = True
    store = MemoryCheckpointStore()

    async def hook(operation: str, _path: str, _moment: Moment) -> None:
        if full and operation == "write_bytes":
            raise OutOfSpace("no space left")

    await store.prepare()
    store.hook = hook
    monkeypatch.setattr(storing, "LATE_MS", 50)
    monkeypatch.setattr(storing, "REFUSED_MS", (10, 20))
    node = Node(tmp_path, lambda _uri: (store, DaemonThreads(1, "logs")))
    node.write(b"one\n")
    node.logs.begin(ATTEMPT, "uuid", "memory://", over=False)
    await until(lambda: any("no space left" in text for text in node.late()))
    full = False
    node.logs.over(ATTEMPT)
    await until(lambda: _is_over(node))
    log = StoredLog(store, "uuid", ATTEMPT)
    await log.begin(0, 0, ALL)
    chunk = await log.next()
    assert chunk is not None
    assert chunk.data == b"one\n"
    assert log.is_whole
    assert node.late() == []


def _is_over(node: Node) -> bool:
    node.logs.check()
    return not node.logs._attempts


class Hanging(LocalStore):
    """A directory whose file system does not answer until it is let go."""

    def __init__(self, root: Path, executor: Executor) -> None:
        super().__init__(root, executor)
        self.free = threading.Event()

    def _open_root(self) -> int:
        self.free.wait(60)
        return super()._open_root()


async def test_a_store_that_hangs_holds_up_no_other_store_and_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "STORE_S", 0.2)
    stores = Stores()
    good, good_threads = stores.open_logs((tmp_path / "good").as_uri())
    await good.prepare()
    _, threads = stores.open_logs((tmp_path / "bad").as_uri())
    hanging = Hanging(tmp_path / "bad", threads)
    assert stores.open_logs((tmp_path / "bad").as_uri())[1] is threads
    node = Node(tmp_path, lambda uri: (hanging, threads) if uri.endswith("bad") else (good, good_threads))
    other = AttemptId(TaskId("other", "worker", 0), 1, 1)
    try:
        node.write(b"stuck\n")
        node.write(b"goes\n", other)
        node.logs.begin(ATTEMPT, "uuid", "file:///bad", over=False)
        await until(lambda: any("cannot be stored" in line for _, line, _ in node.sink.lines))
        node.logs.begin(other, "uuid", "file:///good", over=False)
        node.logs.over(other)
        node.logs.over(ATTEMPT)
        await until(lambda: {key[1] for key in node.logs._attempts} == {ATTEMPT} or _is_over(node))
        log = StoredLog(good, "uuid", other)
        async with asyncio.timeout(20):
            while not log.is_whole:
                await log.look()
        node.logs.check()
        assert {key[1] for key in node.logs._attempts} == {ATTEMPT}
        async with asyncio.timeout(5):
            await node.logs.close()
    finally:
        hanging.free.set()


async def test_a_thread_without_work_ends_and_another_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(daemon_threads, "IDLE_S", 0.05)
    threads = DaemonThreads(1, "idle", nice=5)
    for number in range(3):
        assert await asyncio.wrap_future(threads.submit(abs, number)) == number
        await until(lambda: not any(each.name == "idle" for each in threading.enumerate()))


async def test_of_a_task_the_newest_attempts_stay(tmp_path: Path) -> None:
    store = MemoryCheckpointStore()
    await store.prepare()
    node = Node(tmp_path, lambda _uri: (store, DaemonThreads(1, "logs")))
    attempts = [AttemptId(TASK, generation, 1) for generation in range(1, MOST_ATTEMPTS + 4)]
    for attempt in attempts:
        node.write(b"x", attempt)
        node.logs.begin(attempt, "uuid", "memory://", over=True)
        await until(lambda: _is_over(node))
    assert await stored_attempts(store, "uuid", TASK) == attempts[-MOST_ATTEMPTS:]
    assert (await store.list(directory_of("uuid", TASK.member))).files == ()
