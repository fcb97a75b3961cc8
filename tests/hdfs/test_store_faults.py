"""The store on a real HDFS while its daemons are killed, frozen, refuse, and damage what they keep."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import google_crc32c
import pytest

from chaos.hdfs import HdfsCluster
from recovery.formats.paths import PART_PREFIX
from recovery.stores.hdfs import HdfsStore
from recovery.stores.hdfs_client import PATIENT, HdfsClient
from recovery.stores.hdfs_files import DataLost, Patience
from recovery.stores.hdfs_threads import MOST_THREADS
from supervisor.adapters.files.store_uri import parse_uri
from supervisor.contract.boundaries import StoredDirectory
from supervisor.contract.errors import Refused, StoreUnreachable
from tests.support.hadoop_conf import conf_with

T = TypeVar("T")
BLOCK_BYTES = 4 << 20
BLOCKS = 5
WAIT_S = 20.0
HASTY = Patience(answer_ms=500, call_ms=2_000, piece_ms=2_000, close_ms=5_000, pause_ms=50)


class World:
    """A store with small blocks on a cluster, and a local file of several of them."""

    def __init__(self, cluster: HdfsCluster, tmp_path: Path, patience: Patience = PATIENT) -> None:
        self.cluster = cluster
        self.hadoop = conf_with(cluster.conf_dir, tmp_path / "conf", {"dfs.blocksize": str(BLOCK_BYTES)})
        self.place = parse_uri(cluster.fresh_uri("faults"))
        self.clients: list[HdfsClient] = []
        self.client = self.new_client(patience)
        self.store = HdfsStore(self.client, self.place.path)
        self.source = tmp_path / "source"
        self.data = os.urandom(BLOCKS * BLOCK_BYTES)
        self.source.write_bytes(self.data)

    def new_client(self, patience: Patience) -> HdfsClient:
        self.clients.append(HdfsClient(self.place.authority, self.hadoop, patience))
        return self.clients[-1]

    def hasty(self) -> HdfsStore:
        """The same store for somebody with less patience."""
        return HdfsStore(self.new_client(HASTY), self.place.path)

    async def close(self) -> None:
        for client in self.clients:
            await client.close()

    async def intact(self, name: str) -> bool:
        return await self.store.crc32c(name) == int(google_crc32c.value(self.data))


@pytest.fixture
async def world(hdfs: HdfsCluster, tmp_path: Path) -> AsyncIterator[World]:
    """On the cluster that all tests share: daemons are as before afterwards."""
    made = World(hdfs, tmp_path)
    await made.store.prepare()
    yield made
    await made.close()


@pytest.fixture
async def own_world(hdfs_of_my_own: HdfsCluster, tmp_path: Path) -> AsyncIterator[World]:
    made = World(hdfs_of_my_own, tmp_path)
    await made.store.prepare()
    yield made
    await made.close()


def once(at: int, act: Callable[[], object]) -> Callable[[int], None]:
    """A `Moved` that acts when this many blocks have been handed over for the first time."""
    moved = 0

    def tell(more: int) -> None:
        nonlocal moved
        before, moved = moved, moved + more
        if before < at * BLOCK_BYTES <= moved:
            act()

    return tell


async def no_leftovers(world: World) -> None:
    """Abandoned files are deleted in the background: soon nothing hidden is left."""
    deadline = time.monotonic() + 20
    while left := [
        one.path for one in await world.client.list(world.place.path) if f"/{PART_PREFIX}" in one.path
    ]:
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "block", [2, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, BLOCKS) if block != 2)]
)
async def test_a_datanode_dies_while_a_block_is_written(own_world: World, block: int) -> None:
    victim = own_world.cluster.datanode(block % 3)
    stored = await own_world.store.upload(str(own_world.source), "f", once(block, victim.kill))
    assert (stored.size, stored.crc32c) == (len(own_world.data), google_crc32c.value(own_world.data))
    assert not victim.alive
    assert await own_world.intact("f")
    await no_leftovers(own_world)


@pytest.mark.slow
async def test_a_datanode_freezes_while_a_block_is_written(own_world: World) -> None:
    store = HdfsStore(own_world.new_client(Patience(piece_ms=2_000)), own_world.place.path)
    victim = own_world.cluster.datanode(0)
    stored = await store.upload(str(own_world.source), "f", once(2, victim.freeze))
    assert stored.crc32c == google_crc32c.value(own_world.data)
    victim.thaw()
    assert await own_world.intact("f")


@pytest.mark.slow
async def test_a_datanode_freezes_while_a_file_is_read(own_world: World, tmp_path: Path) -> None:
    await own_world.store.upload(str(own_world.source), "f")
    victim = own_world.cluster.datanode(own_world.cluster.holders(f"{own_world.place.path}/f")[0])
    victim.freeze()
    patient = Patience(piece_ms=2_000, call_ms=40_000)
    store = HdfsStore(own_world.new_client(patient), own_world.place.path)
    came = await store.download("f", str(tmp_path / "copy"))
    assert (came.size, came.crc32c) == (len(own_world.data), google_crc32c.value(own_world.data))
    assert (tmp_path / "copy").read_bytes() == own_world.data
    victim.thaw()


async def test_a_write_that_hangs_can_be_given_up(world: World) -> None:
    for index in range(3):
        world.cluster.datanode(index).freeze()
    writing = asyncio.create_task(world.store.upload(str(world.source), "f"))
    await asyncio.wait({writing}, timeout=1.5)
    assert not writing.done()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    for index in range(3):
        world.cluster.datanode(index).thaw()
    assert await world.store.list("") == StoredDirectory()
    await no_leftovers(world)
    await asyncio.to_thread(world.cluster.wait_ready)


class Gate(ThreadPoolExecutor):
    """Work of a store on local files; after the first `free` pieces it waits until it is let through."""

    def __init__(self, free: int) -> None:
        super().__init__()
        self.free = free
        self.asked, self.open, self.done = threading.Event(), threading.Event(), threading.Event()

    def submit(self, work: Callable[..., T], /, *args: object, **named: object) -> Future[T]:
        self.free -= 1
        waits = self.free < 0

        def late() -> T:
            if waits:
                self.asked.set()
                assert self.open.wait(WAIT_S)
            try:
                return work(*args, **named)
            finally:
                if waits:
                    self.done.set()

        return super().submit(late)


@pytest.mark.parametrize("way", ["download", "upload"])
async def test_who_gives_up_while_the_local_file_is_opened_leaves_no_descriptor(
    world: World, tmp_path: Path, way: str
) -> None:
    await world.store.write_bytes("f", b"x")
    target = tmp_path / "into" / "f"
    target.parent.mkdir()
    # An upload asks for the size before.
    with Gate(free=int(way == "upload")) as gate:
        store = HdfsStore(world.client, world.place.path, gate)
        work = store.download("f", str(target)) if way == "download" else store.upload(str(world.source), "g")
        task = asyncio.create_task(work)
        assert await asyncio.to_thread(gate.asked.wait, WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open.set()
        assert await asyncio.to_thread(gate.done.wait, WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while left := [*open_below(tmp_path), *target.parent.iterdir()]:
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.02)


def open_below(directory: Path) -> list[Path]:
    """Files and directories there that this process has open."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(fd.readlink())
    return [path for path in found if path.is_relative_to(directory)]


async def test_a_cluster_that_swallows_every_call_does_not_hold_up_another(world: World) -> None:
    """Each has its own bound of threads, and the library makes no call wait for another cluster's."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        lost = HdfsClient(address, world.hadoop, Patience(answer_ms=200, call_ms=300, pause_ms=10))
        world.clients.append(lost)
        for _ in range(2 * MOST_THREADS):
            await asyncio.gather(*(_unanswered(lost) for _ in range(8)))
            if "calls wait for answers that do not come" in await _unanswered(lost):
                break
        else:
            raise AssertionError("it never ran out of threads")
        began = time.monotonic()
        await world.store.write_bytes("f", b"x")
        assert await world.store.read_bytes("f", 9) == b"x"
        assert time.monotonic() - began < WAIT_S


async def _unanswered(client: HdfsClient) -> str:
    with pytest.raises(StoreUnreachable) as caught:
        await client.info("/")
    return str(caught.value)


@pytest.mark.slow
async def test_no_datanode_is_left(own_world: World) -> None:
    for index in range(3):
        own_world.cluster.datanode(index).kill()
    with pytest.raises(DataLost, match=r"cannot write .*/\.part-"):
        await own_world.store.upload(str(own_world.source), "f")
    await no_leftovers(own_world)


async def test_a_frozen_namenode_is_an_error_in_time_and_passes(world: World) -> None:
    await world.store.write_bytes("before", b"x")
    store = world.hasty()
    with world.cluster.namenode().frozen():
        started = time.monotonic()
        for attempt in (
            store.list(""),
            store.read_bytes("before", 9),
            store.write_bytes("f", b"x"),
            store.rename("before", "after"),
            store.delete_tree("before"),
        ):
            with pytest.raises(
                StoreUnreachable, match=r"no answer within 0\.5 s; check that its active NameNode"
            ):
                await attempt
        assert time.monotonic() - started < 5 * 4
        waiting = asyncio.create_task(world.store.write_bytes("patient", b"y"))
        await asyncio.wait({waiting}, timeout=1)
        assert not waiting.done()
    await waiting
    assert await world.store.read_bytes("patient", 9) == b"y"


async def test_safe_mode_is_waited_out_or_named(world: World) -> None:
    await world.store.write_bytes("before", b"x")
    await asyncio.to_thread(world.cluster.safemode, "enter")
    try:
        with pytest.raises(StoreUnreachable, match="safe mode"):
            await world.hasty().write_bytes("f", b"x")
        assert await world.store.read_bytes("before", 9) == b"x"
        waiting = asyncio.create_task(world.store.write_bytes("f", b"y"))
    finally:
        await asyncio.to_thread(world.cluster.safemode, "leave")
    await waiting
    assert await world.store.read_bytes("f", 9) == b"y"


@pytest.mark.slow
async def test_a_namenode_that_dies_in_a_write_and_comes_back(own_world: World) -> None:
    namenode = own_world.cluster.namenode()
    upload = asyncio.create_task(own_world.store.upload(str(own_world.source), "f", once(2, namenode.kill)))
    while namenode.alive:
        assert not upload.done()
        await asyncio.sleep(0.02)
    with pytest.raises(StoreUnreachable, match="Connection refused"):
        await own_world.hasty().list("")
    await asyncio.to_thread(namenode.restart)
    try:
        await upload
    except StoreUnreachable:
        await asyncio.to_thread(own_world.cluster.wait_ready)
        await own_world.store.upload(str(own_world.source), "f")
    assert await own_world.intact("f")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "freeze", "hand over"])
async def test_another_namenode_takes_over(hdfs_ha: HdfsCluster, tmp_path: Path, how: str) -> None:
    world = World(hdfs_ha, tmp_path, Patience(answer_ms=2_000, call_ms=60_000))
    try:
        await world.store.prepare()
        await world.store.write_bytes("before", b"x")
        if how == "kill":
            hdfs_ha.namenode(0).kill()
        elif how == "freeze":
            hdfs_ha.namenode(0).freeze()
        upload = asyncio.create_task(world.store.upload(str(world.source), "f"))
        await asyncio.to_thread(hdfs_ha.failover)
        await upload
        assert await world.intact("f")
        assert await world.store.read_bytes("before", 9) == b"x"
    finally:
        if how == "freeze":
            hdfs_ha.namenode(0).thaw()
        await world.close()


async def test_a_quota_that_is_reached_in_the_middle(world: World) -> None:
    """The block that does not fit is refused, what was written is removed, and older files stay."""
    await world.store.write_bytes("older/f", b"x")
    await asyncio.to_thread(world.cluster.set_quota, world.place.path, 5 * BLOCK_BYTES)
    with pytest.raises(Refused, match=r"quota.*setSpaceQuota.*or keep fewer checkpoints"):
        await world.store.upload(str(world.source), "new/f")
    assert await world.store.read_bytes("older/f", 9) == b"x"
    assert await world.store.list("new") == StoredDirectory()
    await asyncio.to_thread(world.cluster.set_quota, world.place.path, None)
    await world.store.upload(str(world.source), "new/f")
    assert await world.intact("new/f")


async def test_no_permission_names_the_directory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.store.write_bytes("f", b"x")
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody-else")
    store = HdfsStore(world.new_client(PATIENT), world.place.path)
    assert await store.read_bytes("f", 9) == b"x"
    for attempt in (store.write_bytes("g", b"x"), store.prepare(), store.upload(str(world.source), "d/g")):
        with pytest.raises(Refused, match=rf"user=somebody-else.*{world.place.path}.*-chown"):
            await attempt


async def test_a_flipped_byte_is_never_read(world: World, tmp_path: Path) -> None:
    """With one good copy it is the good one that is read; with none it is an error, and no answer."""
    await world.store.upload(str(world.source), "f")
    path = f"{world.place.path}/f"
    await asyncio.to_thread(world.cluster.flip_byte, path, offset=5, replicas=1)
    assert await world.intact("f")
    await world.store.upload(str(world.source), "g")
    await asyncio.to_thread(world.cluster.flip_byte, f"{world.place.path}/g", offset=BLOCK_BYTES - 1)
    store = world.hasty()
    with pytest.raises(DataLost, match="cannot read"):
        await store.crc32c("g")
    with pytest.raises(DataLost, match="cannot read"):
        await store.download("g", str(tmp_path / "copy"))
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["source"]


async def test_what_dead_processes_left_in_the_root_is_removed_by_its_age(world: World) -> None:
    fresh, old = f"{world.place.path}/{PART_PREFIX}1", f"{world.place.path}/{PART_PREFIX}2"
    for path in (fresh, old):
        writer = await world.client.create(path, overwrite=False)
        await writer.write(b"x")
        await writer.close()
    hour_ago_ms = (await world.client.info(old)).mtime_ms - 3_700_000
    world.client._connection().set_times(old, hour_ago_ms, hour_ago_ms)
    await world.store.prepare()
    await world.client.close()
    names = [one.path for one in await world.client.list(world.place.path)]
    assert (fresh in names, old in names) == (True, False)
