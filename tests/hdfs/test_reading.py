"""Reading a file as its bytes come."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator

import google_crc32c
import pytest

from chaos.hdfs import HdfsCluster
from recovery.stores.hdfs_client import HdfsClient
from supervisor.adapters.files.hadoop import HadoopSettings

DATA = os.urandom(3 << 20)


@pytest.fixture
async def client(hdfs: HdfsCluster) -> AsyncIterator[HdfsClient]:
    found = HdfsClient(hdfs.uri.removeprefix("hdfs://"), HadoopSettings(conf_dir=str(hdfs.conf_dir)))
    yield found
    await found.close()


@pytest.fixture
async def path(client: HdfsClient, hdfs: HdfsCluster) -> str:
    name = hdfs.fresh_uri("reading").removeprefix(hdfs.uri)
    writer = await client.create(name, overwrite=False, parents=True)
    await writer.write(DATA)
    await writer.close()
    return name


async def test_every_byte_comes_once_and_where_it_belongs(client: HdfsClient, path: str) -> None:
    reader = await client.open(path)
    came = bytearray(len(DATA))
    counts = []

    def take(offset: int, chunk: bytes) -> None:
        counts.append(len(chunk))
        came[offset : offset + len(chunk)] = chunk

    end = 1000 + (1 << 20)
    assert await reader.read_into(1000, 1 << 20, take) == (1 << 20, google_crc32c.value(DATA[1000:end]))
    assert sum(counts) == 1 << 20
    assert came[1000:end] == DATA[1000:end]
    assert await reader.read_into(0, 2 * len(DATA), take) == (len(DATA), google_crc32c.value(DATA))
    assert came == DATA
    assert await reader.read_into(len(DATA), 1, take) == (0, 0)


async def test_what_the_taker_cannot_do_is_its_own_error_and_not_tried_again(
    client: HdfsClient, path: str
) -> None:
    reader = await client.open(path)
    calls = []

    def full(offset: int, chunk: bytes) -> None:
        calls.append(offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left on device"):
        await reader.read_into(0, len(DATA), full)
    assert calls == [0]
