"""Files that are read straight from their DataNodes: whole and right, or read by the client library."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

from chaos.hdfs import HdfsCluster
from recovery.stores import hdfs_direct
from recovery.stores.hdfs import HdfsStore
from recovery.stores.hdfs_client import HdfsClient
from recovery.stores.hdfs_direct import Direct, DirectReads, Take
from recovery.stores.hdfs_files import DataLost, Patience
from recovery.stores.hdfs_wire import (
    Block,
    NotDirect,
    locate_answer,
    locate_request,
    read_answer,
    read_packet,
    read_request,
)
from recovery.stores.uri import parse_uri
from supervisor.adapters.hadoop import HadoopConf, HadoopSettings, Kerberos

pytestmark = pytest.mark.timeout(180)

BLOCK_BYTES = 4 << 20
BLOCKS = 3
SIZE = BLOCKS * BLOCK_BYTES - 1234
TIMES = 6
"""A NameNode names the copies of a block in any order."""


class Recorded(DirectReads):
    """Knows what came straight from DataNodes."""

    def __init__(self, inner: DirectReads) -> None:
        super().__init__(inner._direct, inner._threads, inner._limit_s)
        self.bytes = 0

    async def read(self, block: Block, offset: int, size: int, take: Take) -> int:
        crc = await super().read(block, offset, size, take)
        self.bytes += size
        return crc


class World:
    """A store with a file of three blocks, of which each is on two of three DataNodes."""

    def __init__(self, cluster: HdfsCluster, directory: Path) -> None:
        shutil.copytree(cluster.conf_dir, directory / "conf")
        site = directory / "conf" / "hdfs-site.xml"
        small = f"<property><name>dfs.blocksize</name><value>{BLOCK_BYTES}</value></property></configuration>"
        site.write_text(site.read_text().replace("</configuration>", small))
        self.cluster = cluster
        place = parse_uri(cluster.fresh_uri("direct"))
        hadoop = HadoopSettings(conf_dir=str(directory / "conf"))
        self.client = HdfsClient(place.authority, hadoop, Patience(call_ms=6_000, piece_ms=4_000))
        assert self.client.direct is not None
        self.client.direct = self.direct = Recorded(self.client.direct)
        self.store = HdfsStore(self.client, place.path)
        self.file = f"{place.path}/f"
        self.data = os.urandom(SIZE)
        self.crc = int(google_crc32c.value(self.data))
        self.source = directory / "source"
        self.source.write_bytes(self.data)
        self.copy = directory / "copy"

    async def upload(self) -> None:
        await self.store.prepare()
        assert (await self.store.upload(str(self.source), "f")).crc32c == self.crc

    async def download(self) -> None:
        """As a restore does, with the checksum of the manifest; what arrives is right."""
        came = await self.store.download("f", str(self.copy), wanted=self.crc)
        assert (came.size, came.crc32c) == (SIZE, self.crc)
        assert self.copy.read_bytes() == self.data
        self.copy.unlink()


@pytest.fixture
async def world(hdfs: HdfsCluster, tmp_path: Path) -> AsyncIterator[World]:
    made = World(hdfs, tmp_path)
    await made.upload()
    yield made
    await made.client.close()


class Taken:
    """What a `Take` was told."""

    def __init__(self) -> None:
        self.bytes: dict[int, bytes] = {}

    def __call__(self, at: int, pieces: Sequence[bytes]) -> None:
        self.bytes[at] = b"".join(pieces)

    def whole(self, start: int) -> bytes:
        data = b""
        for at in sorted(self.bytes):
            assert at == start + len(data), "something is missing, or came twice"
            data += self.bytes[at]
        return data


async def test_a_restore_and_a_readback_come_straight_from_the_datanodes(world: World) -> None:
    await world.download()
    assert world.direct.bytes == SIZE
    moved: list[int] = []
    assert await world.store.crc32c("f", moved.append, wanted=world.crc) == world.crc
    assert (world.direct.bytes, sum(moved)) == (2 * SIZE, SIZE)
    assert await world.store.crc32c("f") == world.crc
    assert world.direct.bytes == 2 * SIZE, "who knows no checksum needs those of HDFS"


async def test_any_range_of_a_block(world: World) -> None:
    blocks = await world.direct.blocks(world.file, SIZE)
    assert [(block.offset, block.size) for block in blocks] == [
        (0, BLOCK_BYTES),
        (BLOCK_BYTES, BLOCK_BYTES),
        (2 * BLOCK_BYTES, BLOCK_BYTES - 1234),
    ]
    for offset in (0, 1, 511, 65_536, BLOCK_BYTES - 1):
        for size in (1, 100_000, BLOCK_BYTES):
            length, taken = min(size, BLOCK_BYTES - offset), Taken()
            crc = await world.direct.read(blocks[1], offset, length, taken)
            start = BLOCK_BYTES + offset
            assert taken.whole(start) == world.data[start : start + length]
            assert crc == google_crc32c.value(world.data[start : start + length])


async def test_another_checksum_than_the_one_that_is_wanted_is_told(world: World) -> None:
    came = await world.store.download("f", str(world.copy), wanted=world.crc ^ 1)
    assert came.crc32c == world.crc
    assert world.copy.read_bytes() == world.data
    assert await world.store.crc32c("f", wanted=world.crc ^ 1) == world.crc


async def test_a_damaged_copy_is_never_taken(world: World) -> None:
    """The good one is, whichever is nearer; where all are damaged it is an error, and no file."""
    await asyncio.to_thread(world.cluster.flip_byte, world.file, offset=5, replicas=1)
    for _ in range(TIMES):
        await world.download()
    await asyncio.to_thread(world.cluster.flip_byte, world.file, offset=BLOCK_BYTES - 1)
    with pytest.raises(DataLost, match="cannot read"):
        await world.store.download("f", str(world.copy), wanted=world.crc)
    assert sorted(path.name for path in world.copy.parent.iterdir()) == ["conf", "source"]


async def test_a_restore_whose_datanodes_cannot_be_reached_is_made_by_the_library(
    world: World,
) -> None:
    world.direct._direct = Unreachable(world.direct._direct.addresses, by_name=False)
    await world.download()
    assert (world.direct.bytes, world.direct.promising) == (0, False)


class Unreachable(Direct):
    """As if DataNodes had registered with addresses of another network."""

    def locate(self, path: str, size: int) -> tuple[Block, ...]:
        found = super().locate(path, size)
        return tuple(replace(block, replicas=(("127.0.0.1", "localhost", 1),)) for block in found)


async def test_a_frozen_datanode_costs_seconds_and_no_restore(world: World) -> None:
    frozen = world.cluster.datanode(world.cluster.holders(world.file)[0])
    frozen.freeze()
    try:
        await world.download()
    finally:
        frozen.thaw()
    await asyncio.to_thread(world.cluster.wait_ready)


@contextmanager
def speaking(answer: bytes) -> Iterator[int]:
    """A server that gives everybody this answer and hangs up; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    link, _ = server.accept()
                except OSError:
                    return
                with link:
                    link.sendall(answer)
                    link.shutdown(socket.SHUT_WR)
                    while link.recv(4096):
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


CONSENT = b"\x02\x08\x00"
HEAD = b"\x09" + bytes(8) + b"\x11" + bytes(8) + b"\x18\x00\x25"


def packet(data: bytes, size: int | None = None) -> bytes:
    """At the beginning of a block."""
    length = len(data) if size is None else size
    head = HEAD + length.to_bytes(4, "little", signed=True)
    return (len(data) + 4).to_bytes(4, "big") + len(head).to_bytes(2, "big") + head + data


STRANGE = (
    b"",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\x02\x08\x01",
    b"\xff" * 100,
    CONSENT,
    CONSENT + b"\x00" * 100,
    CONSENT + b"\xff" * 100,
    CONSENT + packet(b""),
    CONSENT + packet(b"abc")[:-1],
    CONSENT + packet(b"abc", -1),
    CONSENT + packet(b"abc", 1 << 20),
    CONSENT + packet(b"abc") + packet(b"abc") + packet(b""),
    CONSENT + packet(b"a" * 1000) + packet(b""),
)


async def test_what_answers_like_no_datanode_is_passed_over(world: World) -> None:
    first, *_ = await world.direct.blocks(world.file, SIZE)
    for answer in STRANGE:
        with speaking(answer) as port:
            strange = ("127.0.0.1", "localhost", port)
            both = replace(first, replicas=(strange, *first.replicas))
            crc = await world.direct.read(both, 0, 100_000, Taken())
            assert crc == google_crc32c.value(world.data[:100_000])
            with pytest.raises(NotDirect):
                await world.direct.read(replace(first, replicas=(strange,)), 0, 100_000, Taken())
    assert not world.direct.promising
    await world.download()
    assert world.direct.bytes == len(STRANGE) * 100_000, "what has just failed is not tried for each file"
    nobody = ("127.0.0.1", "localhost", 1)
    await world.direct.read(replace(first, replicas=(nobody, *first.replicas)), 0, 100_000, Taken())


async def test_a_namenode_that_says_anything_else_is_passed_over(world: World) -> None:
    direct = world.direct._direct
    for answer in (b"", b"\x00\x00\x00\x02\x01", b"\xff\xff\xff\xff", b"\x00\x00\x00\x03\x02\x10\x01"):
        with speaking(answer) as port:
            with pytest.raises(NotDirect):
                await asyncio.to_thread(
                    replace(direct, addresses=(f"127.0.0.1:{port}",)).locate, world.file, SIZE
                )
            several = replace(direct, addresses=(f"127.0.0.1:{port}", "127.0.0.1:1", *direct.addresses))
            assert len(await asyncio.to_thread(several.locate, world.file, SIZE)) == BLOCKS
    with pytest.raises(NotDirect, match="FileNotFound"):
        await asyncio.to_thread(direct.locate, f"{world.file}-none", SIZE)
    with pytest.raises(NotDirect, match="bytes, not"):
        await asyncio.to_thread(direct.locate, world.file, SIZE + 1)


async def test_an_answer_that_is_cut_or_damaged_is_refused_or_read(world: World) -> None:
    (address,) = world.direct._direct.addresses
    host, _, port = address.rpartition(":")
    asked = locate_request(world.file, SIZE, hdfs_direct._user(), b"c" * 16)
    raw = await asyncio.to_thread(hdfs_direct._answer, (host, int(port)), asked)
    assert locate_answer(raw)[0] == SIZE
    for at in range(len(raw)):
        for changed in (raw[:at], raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :]):
            try:
                size, blocks = locate_answer(changed)
            except NotDirect:
                continue
            assert sum(block.size for block in blocks) == size


def test_what_is_not_all_there_is_waited_for() -> None:
    whole = packet(b"abc") + packet(b"")
    buffer = bytearray(1000)
    for have in range(len(whole)):
        buffer[: len(whole)] = whole
        found = read_packet(buffer, 0, have)
        assert (found is not None) == (have >= len(packet(b"abc")))
    found = read_packet(buffer, 0, len(whole))
    assert found is not None
    assert (bytes(buffer[found.start : found.end]), found.offset) == (b"abc", 0)
    buffer[:3] = CONSENT
    with pytest.raises(NotDirect):
        read_answer(bytearray(b"\xff" * 10), 5)
    assert [read_answer(buffer, have) for have in range(4)] == [None, None, None, 3]


def test_a_token_is_handed_on() -> None:
    block = Block(0, 9, b"name", b"token", (("10.0.0.1", "d1", 9866),))
    assert b"token" in read_request(block, 0, 9)
    assert b"token" not in read_request(replace(block, token=b""), 0, 9)


@pytest.mark.parametrize(
    ("told", "kerberos", "possible"),
    [
        ({}, None, True),
        ({"hadoop.security.authentication": "simple"}, None, True),
        ({"hadoop.security.authentication": "KERBEROS"}, None, False),
        ({"dfs.data.transfer.protection": "privacy"}, None, False),
        ({"dfs.encrypt.data.transfer": "True"}, None, False),
        ({}, Kerberos("tfsup@X"), False),
    ],
)
def test_where_anything_is_to_be_proven_or_decrypted_the_library_reads(
    told: dict[str, str], kerberos: Kerberos | None, possible: bool
) -> None:
    found = Direct.of(("h:1",), HadoopConf(told), HadoopSettings(kerberos=kerberos))
    assert (found is not None) == possible
