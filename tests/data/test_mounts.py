"""Mounts of data on one node, by FUSE on a local store: shared, checked, healed, and ended when unused."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from agent.checkpoints import healing
from agent.checkpoints.healing import MountHealer
from agent.data import mounts
from agent.data.mounts import DATA, DataMounts
from agent.host.task_users import TaskUsers
from recovery.mount import control, data, kernel
from recovery.mount.backends.backend import Entry
from recovery.mount.backends.local import LocalBackend, LocalReader
from recovery.mount.control import MountState
from recovery.mount.data import DataFiles
from recovery.mount.filesystem import Stat
from recovery.mount.kernel import MountOptions, ReadOperations
from recovery.mount.layout import SIGN
from recovery.mount.points import layers
from recovery.mount.reading import CHUNK_BYTES, ChunkedReader, ChunkPool
from recovery.mount.record import MountAnswer, MountBeat, MountFiles, MountWish, Trouble
from recovery.stores.allowed import AllowedStores
from recovery.stores.open import Stores
from supervisor.adapters.clock import BootClock
from supervisor.adapters.files.hadoop import HadoopSettings
from supervisor.adapters.files.store_uri import Scheme
from supervisor.contract.errors import NotFound, StoreUnreachable, UserError
from tests.support.clocks import ManualClock
from tests.support.sinks import ListSink
from tests.support.waiting import until

OPTIONS = MountOptions("x", 0.2, 0.2, (0, 0), allow_other=False, kept_s=30.0)


@dataclass
class Node:
    """The data of jobs on one node. What it would find in HDFS is in a local directory."""

    root: Path
    users: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.source = self.root / "source"
        self.source.mkdir(exist_ok=True)
        self.data = {"train": self.source.as_uri()}
        stores = Stores(allowed=AllowedStores((self.root.as_uri(),)))
        users = cast(TaskUsers, self) if self.users else None
        parent, hadoop = self.root / "ckpt", HadoopSettings()
        self.sink = ListSink()
        self.mounts = DataMounts(parent, stores, hadoop, BootClock(), self.sink, users)
        self.mounts.mounted = frozenset({Scheme.FILE})
        self.mounts.open()

    def of(self, job_uuid: str) -> tuple[int, int]:
        return self.users[job_uuid]

    def use(self, *uuids: str) -> None:
        self.mounts.keep(frozenset((uuid, self.data["train"]) for uuid in uuids))

    def directory(self, uuid: str = "u") -> Path:
        return Path(self.mounts.directories(uuid, self.data)["train"])

    def files(self) -> MountFiles:
        return MountFiles(self.directory().parent, 0)

    async def end(self) -> None:
        self.use()
        point = self.directory()
        await waited(lambda: layers(point) == 0)
        await self.mounts.close()
        for child in self.mounts._healer._children.values():
            await asyncio.to_thread(child.wait, 60)


async def waited(holds: Callable[[], object], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(mounts, "UNUSED_MS", 1_000)
    monkeypatch.setattr(healing, "RETIRE_MS", 100)
    monkeypatch.setattr(mounts, "QUIET_S", 0.1)
    found = Node(tmp_path)
    yield found
    await found.end()


def refused(work: Callable[[], object]) -> int | None:
    try:
        work()
    except OSError as error:
        return error.errno
    return None


async def test_tasks_read_a_directory_and_cannot_change_it(node: Node) -> None:
    data = os.urandom(CHUNK_BYTES + 12_345)
    (node.source / "sub").mkdir()
    (node.source / "sub" / "a").write_bytes(data)
    node.use("u")
    await node.mounts.ensure("job", "u", node.data)

    def work(top: Path) -> None:
        assert [each.name for each in top.iterdir()] == ["sub"]
        assert (top / "sub" / "a").read_bytes() == data
        with (top / "sub" / "a").open("rb") as file:
            file.seek(CHUNK_BYTES - 3)
            assert file.read(7) == data[CHUNK_BYTES - 3 : CHUNK_BYTES + 4]
        assert (top / "sub" / "a").stat().st_mode & 0o777 == 0o400
        assert (top / SIGN).exists()
        for change in (
            (top / "new").touch,
            lambda: (top / "sub" / "a").open("r+b"),
            (top / "sub" / "a").unlink,
            lambda: (top / "sub").rename(top / "other"),
            lambda: (top / "sub" / "a").chmod(0o777),
        ):
            assert refused(change) == errno.EROFS

    await asyncio.to_thread(work, node.directory())
    # The page cache is kept while size and time stay the same.
    source, before = node.source / "sub" / "a", (node.source / "sub" / "a").stat()
    source.write_bytes(bytes(len(data)))
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert await asyncio.to_thread((node.directory() / "sub" / "a").read_bytes) == data
    assert node.mounts.sign("u", node.data, SIGN) == str(node.directory() / SIGN)
    assert node.mounts.failed("u")[0] == -1
    # The last user of the mount is gone, so the mount ends with all that was made for it.
    home, files = node.directory().parent, node.files().home
    node.use()
    await waited(lambda: not home.exists() and not files.exists())


async def test_a_name_of_a_source_changes_no_option_of_its_mount(node: Node) -> None:
    odd = node.root / "a,b\\"
    odd.mkdir()
    node.data = {"train": str(odd)}
    node.use("u")
    await node.mounts.ensure("job", "u", node.data)
    (line,) = [each for each in Path("/proc/self/mounts").read_text().splitlines() if "/a_b_ " in each]
    assert line.split()[2] == "fuse.tfsup"


async def test_a_source_that_is_absent_is_told_and_found_once_it_is_there(node: Node) -> None:
    node.source.rmdir()
    node.use("u")
    with pytest.raises(NotFound, match=rf"data\.train: .*{node.source} does not exist"):
        await node.mounts.ensure("job", "u", node.data)
    node.source.touch()
    with pytest.raises(NotFound, match="source is a file; name its directory"):
        await node.mounts.ensure("job", "u", node.data)
    node.source.unlink()
    node.source.mkdir()
    await node.mounts.ensure("job", "u", node.data)


async def test_a_mount_that_dies_is_replaced_and_explains_an_error(node: Node) -> None:
    (node.source / "a").write_bytes(b"one")
    node.use("u")
    await node.mounts.ensure("job", "u", node.data)
    beat = node.files().read_beat()
    assert beat is not None
    os.kill(beat.pid, signal.SIGKILL)
    await waited(lambda: node.mounts.failed("u")[0] > 0)
    assert node.mounts.failed("u")[1] == node.data["train"]
    await waited(lambda: _read(node.directory() / "a") == b"one")
    # A mount outlives its agent, whose successor finds it.
    await node.mounts.close()
    again = Node(node.root)
    again.use("u")
    await again.mounts.ensure("job", "u", node.data)
    after, now = node.files().read_beat(), again.files().read_beat()
    assert after is not None
    assert now is not None
    assert after.pid == now.pid != beat.pid
    former, node.mounts = node.mounts, again.mounts
    await node.end()
    for child in former._healer._children.values():
        await asyncio.to_thread(child.wait, 30)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


async def test_a_mount_whose_files_are_gone_ends(node: Node) -> None:
    node.use("u")
    await node.mounts.ensure("job", "u", node.data)
    await node.mounts.close()
    shutil.rmtree(node.files().home)
    (child,) = node.mounts._healer._children.values()
    await asyncio.to_thread(child.wait, 60)
    assert layers(node.directory()) == 0


async def test_jobs_of_one_user_share_a_mount_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del monkeypatch
    node = Node(tmp_path, {"a": (0, 0), "b": (0, 0), "c": (12345, 12345)})
    first, second, third = (node.directory(uuid) for uuid in "abc")
    assert first == second != third
    as_ann = node.mounts.directories("a", {"x": "hdfs://ann@ns1/d", "y": "hdfs://bob@ns1/d"})
    node.mounts.mounted = frozenset({Scheme.HDFS})
    as_users = node.mounts.directories("a", {"x": "hdfs://ann@ns1/d", "y": "hdfs://bob@ns1/d"})
    assert len(set(as_users.values())) == 2
    assert set(as_ann.values()) == {"/d"}
    await node.mounts.close()


async def test_a_directory_of_this_machine_is_read_where_it_is(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.mounts.mounted = frozenset({Scheme.HDFS})
    await node.mounts.ensure("job", "u", node.data)
    assert node.directory() == node.source
    assert node.mounts.binds("u", node.data) == {"train": str(node.source)}
    assert node.mounts.sign("u", node.data, SIGN) == ""
    with pytest.raises(NotFound, match=r"data\.x: .*none does not exist on this node"):
        await node.mounts.ensure("job", "u", {"x": f"{tmp_path}/none"})
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"data\.x: .*is a file"):
        await node.mounts.ensure("job", "u", {"x": f"{tmp_path}/file"})
    with pytest.raises(UserError, match=r"data\.x: file:///etc is in no store"):
        await node.mounts.ensure("job", "u", {"x": "/etc"})
    assert not (tmp_path / "ckpt" / DATA).exists()
    await node.mounts.close()


async def test_containers_are_shown_no_directory_but_those_that_the_agents_stores_name(
    tmp_path: Path,
) -> None:
    inside, link = tmp_path / "store" / "data", tmp_path / "store" / "link"
    inside.mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    link.symlink_to(tmp_path / "secret")

    async def refusal(directory: Path, entry: str, *, contained: bool = True) -> str:
        stores = Stores(allowed=AllowedStores((entry,)))
        found = DataMounts(tmp_path, stores, HadoopSettings(), BootClock(), ListSink(), contained=contained)
        try:
            await found.ensure("job", "u", {"x": str(directory)})
        except UserError as error:
            return str(error)
        return ""

    store = f"file://{tmp_path}/store"
    assert await refusal(inside, store) == ""
    assert await refusal(link, store, contained=False) == ""
    assert await refusal(link, store) == (
        f"data.x: file://{link} is {tmp_path}/secret on this node, which is below no directory that "
        "`stores:` in the agent's file names; a container is shown no other"
    )
    # An agent that is not root may use every `file:` store where its file names none.
    assert "is below no directory" in await refusal(inside, "file:")
    assert await refusal(inside, f"file://{tmp_path}/{{owner}}") == ""


async def test_a_directory_that_hangs_keeps_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, hung, over = Node(tmp_path), tmp_path / "hung", threading.Event()
    node.mounts.mounted = frozenset({Scheme.HDFS})
    looked: list[str] = []

    def look(path: str) -> None:
        looked.append(path)
        if path == str(hung):
            over.wait()

    monkeypatch.setattr(mounts, "_look", look)
    monkeypatch.setattr(mounts, "WAIT_S", 0.05)
    for _ in range(mounts.THREADS + 1):
        with pytest.raises(StoreUnreachable, match="hung gives no answer"):
            await node.mounts.ensure("job", "u", {"x": str(hung)})
    monkeypatch.setattr(mounts, "WAIT_S", 30.0)
    await node.mounts.ensure("job", "u", node.data)
    assert looked == [str(hung), str(node.source)]
    over.set()
    await node.mounts.ensure("job", "u", {"x": str(hung)})
    await node.mounts.close()


async def test_an_agent_that_has_only_begun_ends_no_mount(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.use("u")
    await node.mounts.ensure("job", "u", node.data)
    await node.mounts.close()
    node.files().write_wanted(1)
    monkeypatch.setattr(mounts, "UNUSED_MS", 60_000)
    successor = DataMounts(
        node.root / "ckpt",
        Stores(allowed=AllowedStores((node.root.as_uri(),))),
        *(HadoopSettings(), BootClock(), node.sink),
    )
    await successor._retire()
    assert successor.wished()
    assert layers(node.directory())
    monkeypatch.setattr(mounts, "UNUSED_MS", 0)
    await successor._retire()
    assert not successor.wished()


def test_a_mount_that_ends_at_once_is_started_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    clock, files = ManualClock(), MountFiles(tmp_path / "m", 0)
    wish = MountWish("j", "u", 0, "file:///x", "", str(tmp_path / "m" / "data"), data=True)
    healer = MountHealer(clock, ListSink())
    healer.wish(files, wish)

    def start(_parent: Path, _generation: int) -> subprocess.Popen[bytes]:
        started.append(clock.now_ms())
        child = subprocess.Popen(["true"])
        child.wait()
        return child

    monkeypatch.setattr(control, "start", start)
    for _ in range(400):
        healer.heal(files, wish)
        clock.ms += 50
    waits = [after - before for before, after in pairwise(started)]
    assert waits[:6] == [200, 400, 800, 1_600, 3_200, 5_000]
    # Once it has served, a loss is healed at once.
    monkeypatch.setattr(control, "look", lambda *_: MountState.SERVING)
    healer.heal(files, wish)
    monkeypatch.setattr(control, "look", lambda *_: MountState.GONE)
    many = len(started)
    healer.heal(files, wish)
    assert len(started) == many + 1


async def test_a_wait_is_known_as_soon_as_its_mount_is_looked_at(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.mounts.close()
    monkeypatch.setattr(node.mounts._healer, "heal", lambda *_: MountState.SERVING)
    monkeypatch.setattr(MountFiles, "read_beat", lambda *_: MountBeat(1, 1, 1, "x", ready=True, stalled=True))
    node.use("u")
    assert node.mounts.waited_ms("u") == -1
    assert await node.mounts._look_after("u", node.data["train"])
    assert 0 <= node.mounts.waited_ms("u") < 60_000
    assert node.mounts.waited_ms("v") == -1
    node.use()
    assert node.mounts.waited_ms("u") == -1


async def test_who_waits_is_told_once(node: Node) -> None:
    uses = ("u", node.data["train"])
    for stalled in ({uses}, {uses}, set[tuple[str, str]]()):
        node.mounts._note_stalled(frozenset(stalled))
    assert [level for level, *_ in node.sink.lines] == ["warning", "info"]


async def _settled(tasks: set[asyncio.Task[object]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def loop_beside() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(_settled(asyncio.all_tasks(loop)))
    loop.close()


class Silent:
    """Files of a store that does not answer."""

    async def stat(self, name: str, number: int | None = None) -> Stat:
        raise await self._never((name, number))

    async def list(self, name: str) -> tuple[tuple[str, bool], ...]:
        raise await self._never(name)

    async def open(self, name: str, flags: int) -> int:
        raise await self._never((name, flags))

    def read(self, *_: object) -> bytes:
        raise AssertionError

    async def flush(self, number: int) -> None:
        raise await self._never(number)

    async def release(self, number: int) -> None:
        raise await self._never(number)

    async def _never(self, what: object) -> AssertionError:
        await asyncio.Event().wait()
        return AssertionError(what)


def test_a_program_that_waits_for_long_is_stalled_and_then_gets_eio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "STALLED_S", 0.05)
    monkeypatch.setattr(kernel, "_caller", lambda: lambda: False)
    told: list[str] = []
    with loop_beside() as loop:
        seen: list[bool] = []
        calls = ReadOperations(Silent(), loop, OPTIONS, lambda: None, lambda: told.append("failed"))
        assert not calls.stalled
        timer = threading.Timer(0.1, lambda: seen.append(calls.stalled))
        timer.start()
        assert refused(lambda: calls.getattr("/a")) == errno.EIO
        timer.join()
    assert seen == [True]
    assert told == ["failed"]
    assert not calls.stalled


class Away(LocalBackend):
    """A store that is away."""

    async def probe(self, path: str) -> None:
        raise StoreUnreachable(f"no answer for {path or 'it'}")


class Counting(LocalBackend):
    """Counts the questions."""

    asked = 0

    async def info(self, path: str) -> Entry | None:
        Counting.asked += 1
        return await super().info(path)


async def test_what_was_listed_is_not_asked_for_again(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name)
    backend = Counting(tmp_path)
    Counting.asked = 0
    files = DataFiles(backend, asyncio.get_running_loop(), ListSink())
    assert await files.list("") == (("a", False), ("b", False), ("c", False))
    (tmp_path / "d").touch()
    assert len(await files.list("")) == 3
    assert [(await files.stat(name)).size for name in "abc"] == [1, 1, 1]
    assert Counting.asked == 0
    await files.stat(SIGN)
    await files.stat(SIGN)
    assert Counting.asked == 2
    with pytest.raises(FileNotFoundError):
        await files.stat("e")


class Torn(LocalBackend):
    """Its files cannot be read to the end."""

    async def open(self, path: str) -> LocalReader:
        del path
        return TornReader(os.open(self._at(""), os.O_RDONLY))


class TornReader(LocalReader):
    """Never answers."""

    async def read(self, offset: int, size: int) -> bytes:
        del offset, size
        await asyncio.Event().wait()
        raise AssertionError


async def test_nobody_waits_twice_for_what_does_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "HURRY_S", 0.01)
    (tmp_path / "a").touch()
    files = DataFiles(Torn(tmp_path), asyncio.get_running_loop(), ListSink())
    number = await files.open("a", os.O_RDONLY)
    with pytest.raises(OSError, match=r"not done within 0\.2 s"):
        await asyncio.to_thread(files.read, number, 0, 1, 0.2)
    with pytest.raises(OSError, match=r"not done within 0\.01 s"):
        await asyncio.to_thread(files.read, number, 0, 1, 60.0)
    await files.release(number)


async def test_the_answer_says_what_kind_of_trouble_it_is(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    assert await DataFiles(LocalBackend(tmp_path), loop, ListSink()).answer(1) == MountAnswer(1)
    absent = await DataFiles(LocalBackend(tmp_path / "a"), loop, ListSink()).answer(2)
    assert (absent.asked_ms, absent.trouble) == (2, Trouble.ABSENT)
    away = await DataFiles(Away(tmp_path), loop, ListSink()).answer(3)
    assert away == MountAnswer(3, Trouble.AWAY, "no answer for it")


async def test_a_sequential_reader_leaves_few_chunks_behind_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(6 * CHUNK_BYTES))
    pool = ChunkPool(48)
    reader = ChunkedReader(await LocalBackend(tmp_path).open("a"), pool)
    for index in range(6):
        await reader.read(index * CHUNK_BYTES, CHUNK_BYTES)
    # A chunk that came as it was asked for is kept a turn of the loop later.
    await until(lambda: pool.get(reader, 5) is not None)
    assert [pool.get(reader, index) is not None for index in range(6)] == [False] * 3 + [True] * 3
    await reader.close()


async def test_open_files_share_a_bounded_memory(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(3 * CHUNK_BYTES))
    backend, pool = LocalBackend(tmp_path), ChunkPool(4)
    readers = [ChunkedReader(await backend.open("a"), pool) for _ in range(3)]
    assert pool.ahead == 0
    for reader in readers:
        assert await reader.read(0, 2 * CHUNK_BYTES) == bytes(2 * CHUNK_BYTES)
    there = [pool.get(reader, index) is not None for reader in readers for index in range(3)]
    assert there == [False, False, False, True, True, False, True, True, False]
    for reader in readers[:2]:
        await reader.close()
    assert pool.ahead == 3
    await readers[2].close()
    assert not any(pool.get(reader, 0) for reader in readers)
