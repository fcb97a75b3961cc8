"""One suite for what a mount needs of a file system: a local directory and a real HDFS."""

from __future__ import annotations

import asyncio

import pytest

from recovery.mount.backends.backend import Backend, Entry, once
from recovery.mount.open import open_backend
from supervisor.contract.errors import Conflict, NotFound
from tests.mount.world import Site

BIG = bytes(range(256)) * 40_000


@pytest.fixture
async def backend(site: Site) -> Backend:
    backend = open_backend(site.uri, site.stores)
    await backend.mkdirs("d")
    return backend


async def write(backend: Backend, path: str, *pieces: bytes) -> None:
    writer = await backend.create(path)
    for piece in pieces:
        await writer.copy(once(piece))
    await writer.close()


async def read(backend: Backend, path: str) -> bytes:
    reader = await backend.open(path)
    data = await reader.read(0, reader.size)
    await reader.close()
    return data


async def test_files(backend: Backend) -> None:
    assert await backend.info("d/a") is None
    await write(backend, "d/a", BIG[:1], BIG[1:], b"")
    found = await backend.info("d/a")
    assert found is not None
    assert (found.name, found.size, found.directory) == ("a", len(BIG), False)
    assert await read(backend, "d/a") == BIG
    with pytest.raises(Conflict):
        await backend.create("d/a")
    with pytest.raises(NotFound):
        await backend.create("none/a")
    with pytest.raises(NotFound):
        await backend.open("d/b")
    await write(backend, "d/empty")
    assert await read(backend, "d/empty") == b""


async def test_a_directory_is_proved_to_be_there_to_be_listed(backend: Backend) -> None:
    await write(backend, "d/a", b"one")
    await backend.probe("d")
    await backend.probe("")
    with pytest.raises(NotFound):
        await backend.probe("none")


async def test_reading_anywhere_at_once(backend: Backend) -> None:
    await write(backend, "d/a", BIG)
    reader = await backend.open("d/a")
    places = [(0, 5), (len(BIG) - 3, 100), (1_000_000, 70_000), (len(BIG), 1), (17, 0)]
    found = await asyncio.gather(*(reader.read(*place) for place in places))
    assert found == [BIG[offset : offset + size] for offset, size in places]
    await backend.rename("d/a", "d/b", overwrite=False)
    assert await reader.read(3, 9) == BIG[3:12]
    await reader.close()


async def test_writing_on(backend: Backend) -> None:
    await write(backend, "d/a", b"one")
    writer = await backend.append("d/a")
    await writer.copy(once(b" two"))
    await writer.close()
    assert await read(backend, "d/a") == b"one two"
    with pytest.raises(NotFound):
        await backend.append("d/b")


async def test_directories(backend: Backend) -> None:
    await backend.mkdirs("d/e/f")
    await backend.mkdirs("d/e/f")
    await write(backend, "d/e/a", b"x")
    listed = await backend.list("d/e")
    assert [(each.name, each.size, each.directory) for each in listed] == [("a", 1, False), ("f", 0, True)]
    with pytest.raises(NotFound):
        await backend.list("none")
    with pytest.raises(Conflict):
        await backend.mkdirs("d/e/a")
    with pytest.raises(Conflict):
        await backend.delete("d/e", recursive=False)
    assert await backend.delete("d/e/f", recursive=False)
    assert await backend.delete("d/e", recursive=True)
    assert not await backend.delete("d/e", recursive=True)
    assert await backend.info("d/e") is None


async def test_renaming(backend: Backend) -> None:
    await write(backend, "d/a", b"a")
    await write(backend, "d/b", b"b")
    with pytest.raises(Conflict):
        await backend.rename("d/a", "d/b", overwrite=False)
    await backend.rename("d/a", "d/b", overwrite=True)
    assert await read(backend, "d/b") == b"a"
    with pytest.raises(NotFound):
        await backend.rename("d/a", "d/c", overwrite=True)
    await backend.mkdirs("from/in")
    await write(backend, "from/in/x", b"x")
    await backend.rename("from", "to", overwrite=False)
    assert await read(backend, "to/in/x") == b"x"
    assert await backend.info("from") is None


async def test_readers_never_miss_a_file_that_is_replaced(backend: Backend) -> None:
    await write(backend, "d/a", b"0")
    over = asyncio.Event()

    async def look() -> int:
        seen = 0
        while not over.is_set():
            found = await backend.info("d/a")
            assert isinstance(found, Entry)
            seen += 1
        return seen

    looking = asyncio.create_task(look())
    for turn in range(10):
        await write(backend, "d/part", str(turn).encode())
        await backend.rename("d/part", "d/a", overwrite=True)
    over.set()
    assert await looking


async def test_a_writer_that_is_given_up_leaves_no_name_in_the_way(backend: Backend) -> None:
    writer = await backend.create("d/a")
    await writer.copy(once(b"half"))
    await writer.abandon()
    await backend.delete("d/a", recursive=False)
    await write(backend, "d/a", b"whole")
    assert await read(backend, "d/a") == b"whole"
