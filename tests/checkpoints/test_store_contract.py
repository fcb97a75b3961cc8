"""The contract of checkpoint stores, run against each of them."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import google_crc32c
import pytest

from recovery.formats.paths import MARKER, PART_PREFIX
from recovery.io import files
from recovery.stores.hdfs import HdfsStore
from recovery.stores.hdfs_client import HdfsClient
from recovery.stores.local import LocalStore
from recovery.stores.memory import MemoryCheckpointStore, MemoryDisk, Moment
from recovery.stores.open import Stores
from supervisor.adapters.files.hadoop import HadoopSettings
from supervisor.adapters.files.store_uri import parse_uri
from supervisor.contract.boundaries import CheckpointStore, StoredDirectory, StoredFile
from supervisor.contract.errors import (
    Conflict,
    NotFound,
    Refused,
    StoreUnreachable,
    TfSupervisorError,
    UserError,
)
from tests.support.hadoop_conf import conf_with

DATA = bytes(range(256)) * 9000
BLOCK_BYTES = 1 << 19


@pytest.fixture(params=["local", "memory", "hdfs", "hdfs, in parts"])
async def unprepared(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CheckpointStore]:
    if request.param == "local":
        yield LocalStore(tmp_path / "store")
    elif request.param == "memory":
        yield MemoryCheckpointStore(hook=lambda *_: asyncio.sleep(0))
    elif request.param == "hdfs":
        cluster = request.getfixturevalue("hdfs")
        stores = Stores(HadoopSettings(conf_dir=str(cluster.conf_dir)))
        yield stores.open(cluster.fresh_uri("contract"))
        await stores.close()
    else:
        cluster = request.getfixturevalue("hdfs")
        hadoop = conf_with(cluster.conf_dir, tmp_path / "conf", {"dfs.blocksize": str(BLOCK_BYTES)})
        place = parse_uri(cluster.fresh_uri("contract"))
        client = HdfsClient(place.authority, hadoop)
        yield HdfsStore(client, place.path, parted_bytes=BLOCK_BYTES)
        await client.close()


@pytest.fixture
async def store(unprepared: CheckpointStore) -> CheckpointStore:
    await unprepared.prepare()
    return unprepared


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return path


async def test_uploaded_bytes_come_back(store: CheckpointStore, source: Path, tmp_path: Path) -> None:
    size = len(DATA)
    assert await store.upload(str(source), "a/b/data") == StoredFile("a/b/data", size)
    came = await store.download("a/b/data", str(tmp_path / "copy"))
    assert came == StoredFile("a/b/data", size)
    assert came.crc32c == google_crc32c.value(DATA)
    assert files.crc32c_of_file(tmp_path / "copy") == (size, google_crc32c.value(DATA))
    assert await store.crc32c("a/b/data") == google_crc32c.value(DATA)
    assert await store.list("a") == StoredDirectory((), ("b",))
    assert await store.list("a/b") == StoredDirectory((StoredFile("a/b/data", size),), ())


async def test_empty_file(store: CheckpointStore, tmp_path: Path) -> None:
    await store.write_bytes("empty", b"")
    assert await store.read_bytes("empty", 0) == b""
    came = await store.download("empty", str(tmp_path / "empty"))
    assert (came.size, came.crc32c) == (0, 0)
    assert await store.crc32c("empty") == 0


async def test_nothing_is_ever_replaced(store: CheckpointStore, source: Path, tmp_path: Path) -> None:
    await store.write_bytes("d/f", b"first")
    with pytest.raises(Conflict):
        await store.write_bytes("d/f", b"second")
    with pytest.raises(Conflict):
        await store.upload(str(source), "d/f")
    with pytest.raises(Conflict):
        await store.write_bytes("d/f/below-a-file", b"")
    assert await store.read_bytes("d/f", 10) == b"first"
    with pytest.raises(Conflict):
        await store.download("d/f", str(source))


async def test_absent_things(store: CheckpointStore, tmp_path: Path) -> None:
    assert await store.list("none") == StoredDirectory()
    await store.delete_tree("none/at/all")
    for attempt in (
        store.read_bytes("none", 1),
        store.crc32c("none/x"),
        store.download("none", str(tmp_path / "x")),
        store.rename("none", "other"),
        store.upload(str(tmp_path / "no-source"), "x"),
    ):
        with pytest.raises(NotFound):
            await attempt
    assert not (tmp_path / "x").exists()
    assert await store.list("x") == StoredDirectory()


async def test_a_directory_is_no_file_and_a_file_no_directory(store: CheckpointStore, tmp_path: Path) -> None:
    await store.write_bytes("d/f", b"x")
    for attempt in (
        store.read_bytes("d", 9),
        store.crc32c("d"),
        store.download("d", str(tmp_path / "copy")),
        store.rename("d/f", "e"),
        store.delete_tree("d/f"),
    ):
        with pytest.raises(UserError):
            await attempt
    with pytest.raises(NotFound):
        await store.read_bytes("d/f/g", 9)
    with pytest.raises(Conflict):
        await store.write_bytes("d", b"")
    assert await store.list("d/f") == StoredDirectory()
    assert not (tmp_path / "copy").exists()


async def test_uploads_tell_what_was_sent(store: CheckpointStore, source: Path, tmp_path: Path) -> None:
    moved: list[int] = []
    stored = await store.upload(str(source), "f", moved.append)
    assert (stored.crc32c, sum(moved)) == (google_crc32c.value(DATA), len(DATA))
    moved.clear()
    await store.download("f", str(tmp_path / "copy"), moved.append)
    assert sum(moved) == len(DATA)
    moved.clear()
    assert await store.crc32c("f", moved.append) == google_crc32c.value(DATA)
    assert sum(moved) == len(DATA)


async def test_read_has_a_limit(store: CheckpointStore) -> None:
    await store.write_bytes("f", b"12345")
    assert await store.read_bytes("f", 5) == b"12345"
    with pytest.raises(UserError, match="larger than 4"):
        await store.read_bytes("f", 4)


async def test_rename_moves_a_whole_directory(store: CheckpointStore) -> None:
    await store.write_bytes("stage/1/a", b"a")
    await store.write_bytes("stage/1/b", b"b")
    await store.write_bytes("taken/x", b"x")
    with pytest.raises(Conflict):
        await store.rename("stage/1", "taken")
    await store.rename("stage/1", "deep/er/final")
    assert [file.path for file in (await store.list("deep/er/final")).files] == [
        "deep/er/final/a",
        "deep/er/final/b",
    ]
    with pytest.raises(NotFound):
        await store.rename("stage/1", "again")
    with pytest.raises(UserError):
        await store.rename("taken/x", "file")


async def test_one_of_many_renames_wins(store: CheckpointStore) -> None:
    for number in range(16):
        await store.write_bytes(f"stage/{number}/who", str(number).encode())
    results = await asyncio.gather(
        *(store.rename(f"stage/{number}", "final") for number in range(16)), return_exceptions=True
    )
    assert sum(result is None for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 15
    winner = next(number for number, result in enumerate(results) if result is None)
    assert await store.read_bytes("final/who", 9) == str(winner).encode()


async def test_one_of_many_writers_wins(store: CheckpointStore) -> None:
    results = await asyncio.gather(
        *(store.write_bytes("d/f", str(number).encode()) for number in range(16)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["Conflict"] * 15 + ["NoneType"]
    assert [file.path for file in (await store.list("d")).files] == ["d/f"]


async def test_a_file_is_deleted_alone(store: CheckpointStore) -> None:
    await store.write_bytes("d/f", b"1")
    await store.write_bytes("d/g", b"2")
    await store.delete_file("d/f")
    assert [file.path for file in (await store.list("d")).files] == ["d/g"]
    await store.delete_file("d/f")
    await store.delete_file("none/at/all")
    with pytest.raises(UserError, match="not a file"):
        await store.delete_file("d")
    await store.write_bytes("d/f", b"3")
    assert await store.read_bytes("d/f", 9) == b"3"


async def test_delete_tree(store: CheckpointStore) -> None:
    await store.write_bytes("d/e/f", b"x")
    await store.write_bytes("d/g", b"x")
    await store.write_bytes("dd", b"x")
    await store.delete_tree("d")
    await store.delete_tree("d")
    assert await store.list("") == StoredDirectory((StoredFile("dd", 1),), ())
    with pytest.raises(UserError):
        await store.delete_tree("dd")


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/abs", "..", "a/../b", "a//b", "a/", ".", "./a", "a\0b", "a\nb", "x" * 256),
        *("a/" * 600 + "b", "\udc80", MARKER, f"d/{PART_PREFIX}1"),
    ],
)
async def test_paths_that_leave_the_root_or_are_reserved(
    store: CheckpointStore, source: Path, tmp_path: Path, path: str
) -> None:
    await store.write_bytes("d/f", b"")
    for attempt in (
        store.upload(str(source), path),
        store.download(path, str(tmp_path / "x")),
        store.write_bytes(path, b""),
        store.read_bytes(path, 1),
        store.crc32c(path),
        store.delete_tree(path),
        store.rename(path, "x"),
        store.rename("d", path),
    ):
        with pytest.raises(UserError):
            await attempt
    if path:
        with pytest.raises(UserError):
            await store.list(path)


async def test_a_root_that_is_not_there_says_nothing_about_checkpoints(
    unprepared: CheckpointStore, source: Path, tmp_path: Path
) -> None:
    for attempt in (
        unprepared.read_bytes("d/f", 1),
        unprepared.list(""),
        unprepared.download("d/f", str(tmp_path / "x")),
        unprepared.upload(str(source), "d/f"),
        unprepared.rename("d", "e"),
        unprepared.delete_tree("d"),
    ):
        with pytest.raises(StoreUnreachable):
            await attempt
    await unprepared.prepare()
    await unprepared.prepare()
    assert await unprepared.list("") == StoredDirectory()


async def test_an_empty_mount_point_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    with pytest.raises(StoreUnreachable, match="mounted"):
        await LocalStore(tmp_path / "mount").read_bytes("d/f", 1)


@pytest.mark.parametrize("link", ["/etc", "real"])
async def test_symbolic_links_are_not_followed(tmp_path: Path, link: str) -> None:
    store = LocalStore(tmp_path)
    await store.prepare()
    await store.write_bytes("real/hostname", b"x")
    (tmp_path / "link").symlink_to(link)
    (tmp_path / "file").symlink_to("real/hostname")
    for attempt in (
        store.read_bytes("link/hostname", 99),
        store.read_bytes("file", 99),
        store.list("link"),
        store.write_bytes("link/new", b""),
        store.rename("link", "x"),
        store.delete_tree("link"),
    ):
        with pytest.raises(UserError):
            await attempt
    assert await store.list("") == StoredDirectory((), ("real",))


async def test_a_fifo_or_a_directory_is_no_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    await store.prepare()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "d").mkdir()
    for path in ("fifo", "d"):
        with pytest.raises(UserError):
            await store.read_bytes(path, 9)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, Refused),
        (errno.EDQUOT, Refused),
        (errno.EACCES, Refused),
        (errno.EROFS, Refused),
        (errno.EIO, StoreUnreachable),
        (errno.ESTALE, StoreUnreachable),
        (errno.EMFILE, StoreUnreachable),
        (errno.ENOENT, NotFound),
        (errno.EEXIST, Conflict),
        (errno.ENAMETOOLONG, UserError),
    ],
)
def test_foreign_errors_become_ours(code: int, kind: type[TfSupervisorError]) -> None:
    with pytest.raises(kind, match="write /a/b"), files.mapped_errors("write /a/b"):
        raise OSError(code, os.strerror(code))


async def test_no_space_left(source: Path) -> None:
    """A real ENOSPC, from the device that has none."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(Refused, match="free some space"), files.mapped_errors("write /dev/full"):
            files.copy_to_fd(source, descriptor)
    finally:
        os.close(descriptor)


async def test_a_cancelled_upload_leaves_nothing(tmp_path: Path, source: Path) -> None:
    """The only worker thread is busy until the upload was cancelled: it must then give up by itself."""
    release = asyncio.Event()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as pool:
        store = LocalStore(tmp_path / "store", pool)
        await store.prepare()

        def hold() -> None:
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(10)

        holder = loop.run_in_executor(pool, hold)
        upload = asyncio.create_task(store.upload(str(source), "d/f"))
        await asyncio.sleep(0)
        upload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upload
        release.set()
        await holder
        assert await store.list("d") == StoredDirectory()
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == [
        tmp_path / "store" / MARKER
    ]


@pytest.mark.parametrize("at", range(4))
def test_an_upload_that_is_abandoned_leaves_nothing(tmp_path: Path, source: Path, at: int) -> None:
    """The file has three chunks: it stops before each of them is written, or before the last rename."""
    calls = iter(range(100))

    def stop() -> None:
        if next(calls) == at:
            raise StoreUnreachable("stop")

    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(StoreUnreachable), files.new_file(descriptor, "f", stop) as target:
            files.copy_to_fd(source, target, stop)
    finally:
        os.close(descriptor)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


async def test_faults_of_the_memory_store_have_the_effect_of_their_moment() -> None:
    for fail_at, there in ((Moment.BEFORE, False), (Moment.HALF, False), (Moment.AFTER, True)):

        async def hook(operation: str, path: str, moment: Moment, fail_at: Moment = fail_at) -> None:
            if operation == "write_bytes" and moment is fail_at:
                raise StoreUnreachable("fault")

        store = MemoryCheckpointStore(MemoryDisk(prepared=True), hook)
        with pytest.raises(StoreUnreachable):
            await store.write_bytes("f", b"x")
        assert bool((await store.list("")).files) is there


@types.coroutine
def cancelled_at(
    coroutine: Coroutine[object, object, object], suspension: int
) -> Generator[object, None, bool]:
    """Run `coroutine` in this task, cancelled when it waits for the n-th time; whether it came so far."""
    step: Callable[[], object] = partial(coroutine.send, None)
    for number in itertools.count(1):
        try:
            waiting_for = step()
        except StopIteration:
            return False
        except asyncio.CancelledError:
            return True
        if number == suspension:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            yield waiting_for
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            step = partial(coroutine.throw, error)
        except (OSError, RuntimeError, TfSupervisorError) as error:
            step = partial(coroutine.throw, error)
        else:
            step = partial(coroutine.send, None)
    raise AssertionError("it never ends")


@pytest.mark.parametrize("operation", ["upload", "write_bytes", "rename", "download", "delete_tree"])
async def test_a_call_that_is_cancelled_leaves_all_or_nothing(
    store: CheckpointStore, source: Path, tmp_path: Path, operation: str
) -> None:
    """Cancelled at its first, second, ... wait, until it is done before that.

    Each try has names of its own: the thread of a cancelled call may still end its work.
    """
    calls: dict[str, Callable[[str], Coroutine[object, object, object]]] = {
        "upload": lambda name: store.upload(str(source), f"{name}/f"),
        "write_bytes": lambda name: store.write_bytes(f"{name}/f", DATA),
        "rename": lambda name: store.rename(f"staged-{name}", name),
        "download": lambda name: store.download("whole/f", str(tmp_path / name)),
        "delete_tree": lambda name: store.delete_tree(f"staged-{name}"),
    }
    await store.write_bytes("whole/f", DATA)
    for suspension in itertools.count(1):
        name = f"try{suspension}"
        if operation in {"rename", "delete_tree"}:
            await store.write_bytes(f"staged-{name}/f", DATA)
        if not await cancelled_at(calls[operation](name), suspension):
            break
        if operation == "download":
            assert not (tmp_path / name).exists() or (tmp_path / name).read_bytes() == DATA
        for file in (await store.list(name)).files:
            assert await store.crc32c(file.path) == google_crc32c.value(DATA)
    assert await store.crc32c("whole/f") == google_crc32c.value(DATA)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def test_rename_without_the_kernels_help(tmp_path: Path, directory: int) -> None:
    """File systems that lack RENAME_NOREPLACE: one of many concurrent movers gets in, the others are told."""
    for number in range(12):
        (tmp_path / f"s{number}").mkdir()
        (tmp_path / f"s{number}" / "who").write_text(str(number))

    def move(number: int) -> bool:
        try:
            files.guarded_rename(directory, f"s{number}", directory, "final")
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(move, range(12))) == [False] * 11 + [True]
    assert len(list(tmp_path.iterdir())) == 12
