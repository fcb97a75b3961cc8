"""The client on a healthy HDFS: what the store and the mounts build on."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator

import pytest

from chaos.hdfs import HdfsCluster
from recovery.stores.hdfs_client import HdfsClient
from recovery.stores.hdfs_files import DataLost, FileInfo
from supervisor.adapters.files.hadoop import HadoopSettings
from supervisor.adapters.files.store_uri import parse_uri
from supervisor.contract.errors import Conflict, NotFound, UserError


@pytest.fixture
def root(hdfs: HdfsCluster) -> str:
    return parse_uri(hdfs.fresh_uri("client")).path


@pytest.fixture
async def client(hdfs: HdfsCluster, root: str) -> AsyncIterator[HdfsClient]:
    made = HdfsClient(hdfs.uri.removeprefix("hdfs://"), HadoopSettings(conf_dir=str(hdfs.conf_dir)))
    await made.mkdirs(root)
    yield made
    await made.delete(root, recursive=True)
    await made.close()


async def put(client: HdfsClient, path: str, data: bytes) -> None:
    writer = await client.create(path, overwrite=False)
    await writer.write(data)
    await writer.close()


async def test_a_file_is_written_read_and_listed(client: HdfsClient, root: str) -> None:
    await put(client, f"{root}/f", b"0123456789")
    await client.mkdirs(f"{root}/d/e")
    found = await client.info(f"{root}/f")
    assert found == FileInfo(f"{root}/f", 10, is_dir=False, mtime_ms=found.mtime_ms)
    assert [(one.path, one.is_dir) for one in await client.list(root)] == [
        (f"{root}/d", True),
        (f"{root}/f", False),
    ]
    assert [one.path for one in await client.list(f"{root}/f")] == [f"{root}/f"]
    assert await client.read(f"{root}/f", 3, 4) == b"3456"
    assert await client.read(f"{root}/f", 8, 100) == b"89"
    assert await client.read(f"{root}/f", 10, 1) == await client.read(f"{root}/f", 99, 1) == b""


async def test_a_file_that_was_not_closed_is_removed_or_broken(client: HdfsClient, root: str) -> None:
    writer = await client.create(f"{root}/f", overwrite=False)
    await writer.write(b"half")
    await writer.abandon()
    with pytest.raises(NotFound):
        await client.info(f"{root}/f")
    with pytest.raises(DataLost, match="broken off"):
        await writer.write(b"more")
    with pytest.raises(DataLost, match="broken off"):
        await writer.close()
    await writer.abandon()


async def test_a_writer_that_is_forgotten_does_not_close_its_file(client: HdfsClient, root: str) -> None:
    writer = await client.create(f"{root}/f", overwrite=False)
    await writer.write(b"half")
    del writer
    gc.collect()
    assert (await client.info(f"{root}/f")).size == 0
    with pytest.raises(Conflict):
        await client.append(f"{root}/f")


async def test_a_writer_whose_file_was_taken_is_told(client: HdfsClient, root: str) -> None:
    first = await client.create(f"{root}/f", overwrite=False)
    await first.write(b"first")
    with pytest.raises(Conflict):
        await client.create(f"{root}/f", overwrite=False)
    second = await client.create(f"{root}/f", overwrite=True)
    await second.write(b"second")
    await second.close()
    with pytest.raises(DataLost):
        await first.close()
    assert await client.read(f"{root}/f", 0, 99) == b"second"


async def test_append_goes_on_at_the_end_and_keeps_the_file(client: HdfsClient, root: str) -> None:
    await put(client, f"{root}/f", b"one")
    writer = await client.append(f"{root}/f")
    with pytest.raises(Conflict):
        await client.append(f"{root}/f")
    await writer.write(b"two")
    await writer.close()
    assert await client.read(f"{root}/f", 0, 99) == b"onetwo"
    with pytest.raises(NotFound):
        await client.append(f"{root}/none")


async def test_rename_replaces_only_when_it_is_asked_to(client: HdfsClient, root: str) -> None:
    await put(client, f"{root}/a", b"a")
    await put(client, f"{root}/b", b"b")
    with pytest.raises(Conflict):
        await client.rename(f"{root}/a", f"{root}/b", overwrite=False)
    await client.rename(f"{root}/a", f"{root}/b", overwrite=True)
    assert await client.read(f"{root}/b", 0, 9) == b"a"
    with pytest.raises(NotFound):
        await client.rename(f"{root}/a", f"{root}/b", overwrite=True)
    await client.mkdirs(f"{root}/d")
    with pytest.raises(Conflict):
        await client.rename(f"{root}/b", f"{root}/d", overwrite=False)
    with pytest.raises(UserError, match="under source"):
        await client.rename(f"{root}/d", f"{root}/d/e", overwrite=False)


async def test_delete_says_whether_there_was_something(client: HdfsClient, root: str) -> None:
    await client.mkdirs(f"{root}/d")
    await put(client, f"{root}/d/f", b"")
    with pytest.raises(Conflict, match="not empty"):
        await client.delete(f"{root}/d", recursive=False)
    assert await client.delete(f"{root}/d", recursive=True)
    assert not await client.delete(f"{root}/d", recursive=True)


async def test_a_missing_directory_is_made_only_when_it_is_asked_for(client: HdfsClient, root: str) -> None:
    with pytest.raises(NotFound):
        await client.create(f"{root}/d/f", overwrite=False)
    writer = await client.create(f"{root}/d/f", overwrite=False, parents=True)
    await writer.close()
    assert (await client.info(f"{root}/d/f")).size == 0
    with pytest.raises(Conflict):
        await client.mkdirs(f"{root}/d/f")


async def test_a_large_directory_is_listed_whole(client: HdfsClient, root: str) -> None:
    """A NameNode answers with a thousand entries at most; these need two answers."""
    names = [f"{root}/{number:04}" for number in range(1100)]
    for name in names:
        await client.mkdirs(name)
    assert [one.path for one in await client.list(root)] == names
