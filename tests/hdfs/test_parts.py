"""A large file is sent in parts that HDFS joins; where that does not work it goes in one piece."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import google_crc32c
import pytest

from chaos.hdfs import HdfsCluster
from recovery.formats.paths import PART_PREFIX
from recovery.stores import hdfs_joining
from recovery.stores.hdfs import HdfsStore
from recovery.stores.hdfs_client import HdfsClient
from recovery.stores.hdfs_files import DataLost, Patience
from recovery.stores.hdfs_joining import Joiner
from recovery.stores.hdfs_threads import Threads
from supervisor.adapters import failpoints
from supervisor.adapters.files.hadoop import read_conf
from supervisor.adapters.files.store_uri import parse_uri
from supervisor.contract.boundaries import StoredDirectory, StoredFile
from supervisor.contract.errors import OutOfSpace
from tests.support.hadoop_conf import conf_with
from tests.support.namenode_web import Door, opened

pytestmark = pytest.mark.timeout(180)
BLOCK_BYTES = 1 << 20
SIZE = 6 * BLOCK_BYTES + 12_345
JOIN = "store.join.before"
WAIT_S = 20.0
UNHURRIED = Patience(answer_ms=30_000, call_ms=60_000)
"""A NameNode's first answer over HTTP takes seconds on a busy machine: no reason here for one piece."""


@dataclass
class World:
    """A store that sends whatever has more than one block in parts, and a local file of seven blocks."""

    cluster: HdfsCluster
    directory: Path
    web: str = ""

    def __post_init__(self) -> None:
        changes = {"dfs.blocksize": str(BLOCK_BYTES)}
        if self.web:
            changes["dfs.namenode.http-address"] = self.web
        hadoop = conf_with(self.cluster.conf_dir, self.directory / "conf", changes)
        self.place = parse_uri(self.cluster.fresh_uri("parts"))
        self.client = HdfsClient(self.place.authority, hadoop, UNHURRIED)
        self.store = HdfsStore(self.client, self.place.path, parted_bytes=BLOCK_BYTES)
        self.source = self.directory / "source"
        self.data = os.urandom(SIZE)
        self.source.write_bytes(self.data)

    async def send(self) -> StoredFile:
        return await self.store.upload(str(self.source), "d/f")

    async def arrived(self, sent: StoredFile) -> None:
        """All of it is there, in full blocks, and nothing else."""
        crc = google_crc32c.value(self.data)
        assert (sent.size, sent.crc32c) == (SIZE, crc)
        assert await self.store.crc32c("d/f") == crc
        await self.holds("f")

    async def holds(self, *names: str) -> None:
        """Soon these files are in the directory, hidden ones included: what is abandoned goes by itself."""
        deadline = time.monotonic() + WAIT_S
        wanted = [f"{self.place.path}/d/{name}" for name in names]
        while (found := [one.path for one in await self.client.list(f"{self.place.path}/d")]) != wanted:
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.05)


async def ready(world: World) -> AsyncIterator[World]:
    await world.store.prepare()
    yield world
    await world.client.close()


@pytest.fixture
async def world(hdfs: HdfsCluster, tmp_path: Path) -> AsyncIterator[World]:
    async for made in ready(World(hdfs, tmp_path)):
        yield made


@pytest.fixture
async def own_world(hdfs_of_my_own: HdfsCluster, tmp_path: Path) -> AsyncIterator[World]:
    async for made in ready(World(hdfs_of_my_own, tmp_path)):
        yield made


@contextmanager
def watching(act: Callable[[], object] = lambda: None) -> Iterator[list[str]]:
    """The joins that are tried in this block; `act` is called just before each."""
    joins: list[str] = []

    def reach(point: str, _error: object) -> None:
        if point == JOIN:
            joins.append(point)
            act()

    end = failpoints.install(reach)
    try:
        yield joins
    finally:
        end()


async def test_a_large_file_goes_in_parts_and_is_as_if_written_in_one_piece(world: World) -> None:
    with watching() as joins:
        sent = await world.send()
    assert len(joins) == 1
    await world.arrived(sent)
    blocks = world.cluster.block_sizes(f"{world.place.path}/d/f")
    assert blocks == [*[BLOCK_BYTES] * 6, 12_345]


async def test_a_file_of_one_block_or_below_the_bound_goes_in_one_piece(world: World) -> None:
    small = world.directory / "small"
    small.write_bytes(world.data[:BLOCK_BYTES])
    patient = HdfsStore(world.client, world.place.path, parted_bytes=SIZE + 1)
    with watching() as joins:
        await world.store.upload(str(small), "one-block")
        await patient.upload(str(world.source), "below")
    assert joins == []
    assert await world.store.crc32c("below") == google_crc32c.value(world.data)


def at_first(act: Callable[[], object]) -> Callable[[int], None]:
    """A `Moved` that acts at the first bytes; it is called in several threads."""
    first = threading.Lock()

    def tell(_more: int) -> None:
        if first.acquire(blocking=False):
            act()

    return tell


@pytest.mark.parametrize("size", [SIZE + BLOCK_BYTES, BLOCK_BYTES + 1])
async def test_of_what_grows_or_shrinks_meanwhile_what_was_sent_is_told(world: World, size: int) -> None:
    change = at_first(lambda: os.truncate(world.source, size))
    sent = await world.store.upload(str(world.source), "d/f", change)
    assert sent in (await world.store.list("d")).files
    assert await world.store.crc32c("d/f") == sent.crc32c


async def test_a_datanode_dies_while_the_parts_are_written(own_world: World) -> None:
    victim = own_world.cluster.datanode(1)
    try:
        sent = await own_world.store.upload(str(own_world.source), "d/f", at_first(victim.kill))
    except DataLost:
        # On a busy machine the NameNode may offer the dead one for longer than an upload bears.
        await asyncio.to_thread(own_world.cluster.wait_ready)
        sent = await own_world.send()
    assert not victim.alive
    await own_world.arrived(sent)


async def test_a_part_that_is_gone_before_the_join_is_sent_again_in_one_piece(world: World) -> None:
    second = f"{world.place.path}/d/{PART_PREFIX}*.2"
    with watching(lambda: world.cluster.script("dfs", "-rm", "-skipTrash", second)) as joins:
        sent = await world.send()
    assert len(joins) == 1
    await world.arrived(sent)
    with watching() as joins:
        await world.store.upload(str(world.source), "d/again")
    assert joins == [], "who was refused does not ask again at once"


async def test_a_quota_that_is_reached_is_said_and_leaves_nothing(world: World) -> None:
    await world.client.mkdirs(f"{world.place.path}/d")
    await asyncio.to_thread(world.cluster.set_quota, f"{world.place.path}/d", 4 * BLOCK_BYTES)
    with pytest.raises(OutOfSpace, match="quota"):
        await world.send()
    await world.holds()


async def test_who_gives_up_in_between_leaves_nothing(world: World) -> None:
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    with watching(lambda: loop.call_soon(gone.set)):
        sending = asyncio.create_task(world.send())
        await asyncio.wait_for(gone.wait(), WAIT_S)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    await world.holds()
    assert await world.store.list("d") == StoredDirectory()


# Whom the HTTP address leads to.


@pytest.fixture
def door(hdfs: HdfsCluster) -> Iterator[Door]:
    with opened(read_conf(hdfs.conf_dir).properties["dfs.namenode.http-address"]) as server:
        yield server


@pytest.fixture
async def behind_door(hdfs: HdfsCluster, door: Door, tmp_path: Path) -> AsyncIterator[World]:
    world = World(hdfs, tmp_path, door.address)
    client, soon = world.client, replace(UNHURRIED, call_ms=1_000)
    client.joiner = Joiner(client.uri, [door.address], client.info, soon, Threads())
    async for made in ready(world):
        yield made


async def test_a_join_whose_answer_is_lost_has_happened(behind_door: World, door: Door) -> None:
    door.lost.add("POST")
    await behind_door.arrived(await behind_door.send())
    assert [method for method, _ in door.asked] == ["GET", "POST"]


STANDBY = b'{"RemoteException": {"exception": "StandbyException", "message": "not now"}}'
PAGE = b"<html>something else</html>"
OTHER_FILE = b'{"FileStatus": {"length": 41, "modificationTime": 1}}'


@pytest.mark.parametrize(
    ("method", "status", "body"),
    [
        ("GET", 200, PAGE),
        ("GET", 200, OTHER_FILE),
        ("GET", 403, STANDBY),
        ("GET", 307, b""),
        ("POST", 500, PAGE),
        ("POST", 403, STANDBY),
    ],
)
async def test_where_nobody_joins_it_goes_in_one_piece(
    behind_door: World, door: Door, method: str, status: int, body: bytes
) -> None:
    """The address is of something else, or of a NameNode that will not."""
    door.instead[method] = (status, body)
    await behind_door.arrived(await behind_door.send())
    asked = len(door.asked)
    await behind_door.store.upload(str(behind_door.source), "d/again")
    assert len(door.asked) == asked, "it is not asked again at once"


async def test_after_a_while_joining_is_tried_again(
    behind_door: World, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs_joining, "SILENT_S", 0.0)
    door.instead["GET"] = (503, b"")
    with watching() as joins:
        await behind_door.send()
        assert joins == []
        door.instead.clear()
        await behind_door.store.upload(str(behind_door.source), "d/again")
    assert len(joins) == 1


async def test_where_nobody_listens_it_goes_in_one_piece(hdfs: HdfsCluster, tmp_path: Path) -> None:
    async for world in ready(World(hdfs, tmp_path, web="127.0.0.1:1")):
        with watching() as joins:
            await world.arrived(await world.send())
        assert joins == []


@pytest.mark.slow
async def test_whichever_of_two_namenodes_is_active_joins(hdfs_ha: HdfsCluster, tmp_path: Path) -> None:
    async for world in ready(World(hdfs_ha, tmp_path)):
        for name in ("before", "after"):
            with watching() as joins:
                await world.store.upload(str(world.source), name)
            assert len(joins) == 1
            assert await world.store.crc32c(name) == google_crc32c.value(world.data)
            await asyncio.to_thread(hdfs_ha.failover)
