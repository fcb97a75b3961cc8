"""Stores that are reached as a user, each in a process of its own: here over a directory."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import google_crc32c
import pytest

from recovery.stores import user_stores
from recovery.stores.user_calls import failed
from recovery.stores.user_stores import UserStore, UserStores
from supervisor.adapters.files.hadoop import HadoopSettings
from supervisor.adapters.files.store_uri import Scheme, StoreUri
from supervisor.contract.boundaries import StoredFile
from supervisor.contract.errors import Conflict, NotFound, OutOfSpace, StoreUnreachable
from tests.support.users import processes_of_users

DATA = bytes(range(256)) * 9000


@pytest.fixture
async def users() -> AsyncIterator[UserStores]:
    made = UserStores(HadoopSettings())
    yield made
    await made.close()
    assert not processes_of_users()


def store(users: UserStores, directory: Path, user: str = "ann") -> UserStore:
    return users.open(StoreUri(Scheme.FILE, "", str(directory), user))


async def test_a_store_does_all_that_it_does_here_and_tells_how_it_gets_on(
    users: UserStores, tmp_path: Path
) -> None:
    own, moved, source = store(users, tmp_path / "store"), list[int](), tmp_path / "source"
    source.write_bytes(DATA)
    await own.prepare()
    size, crc = len(DATA), google_crc32c.value(DATA)
    sent = await own.upload(str(source), "a/data", moved.append)
    assert (sent, sent.crc32c, sum(moved)) == (StoredFile("a/data", size), crc, size)
    came = await own.download("a/data", str(tmp_path / "copy"), moved.append)
    assert (came.crc32c, sum(moved), (tmp_path / "copy").read_bytes()) == (crc, 2 * size, DATA)
    assert await own.crc32c("a/data") == crc
    await own.write_bytes("a/note", b"\x00\xff")
    assert await own.read_bytes("a/note", 10) == b"\x00\xff"
    await own.rename("a", "b")
    found = await own.list("b")
    assert [each.path for each in found.files] == ["b/data", "b/note"]
    await own.delete_file("b/note")
    await own.delete_tree("b")
    assert not (await own.list("")).directories


async def test_an_error_is_raised_here_as_it_was_there(users: UserStores, tmp_path: Path) -> None:
    own = store(users, tmp_path / "store")
    with pytest.raises(StoreUnreachable, match="does not exist"):
        await own.list("")
    await own.prepare()
    await own.write_bytes("f", b"1")
    with pytest.raises(Conflict):
        await own.write_bytes("f", b"2")
    with pytest.raises(NotFound, match="none"):
        await own.read_bytes("none", 1)


class OfAnAdapter(OutOfSpace):
    """A class of error that the tree does not have."""


def test_an_error_keeps_its_class_in_the_tree_and_a_bug_stays_one() -> None:
    with pytest.raises(OutOfSpace, match="full"):
        failed(1, OfAnAdapter("full")).check()
    with pytest.raises(RuntimeError, match="KeyError: 'x'"):
        failed(1, KeyError("x")).check()


async def test_each_user_has_a_process_with_that_user_alone(users: UserStores, tmp_path: Path) -> None:
    names = ("ann", "bob")
    stores = {name: store(users, tmp_path / name, name) for name in names}
    await asyncio.gather(*(each.prepare() for each in stores.values()))
    await asyncio.gather(*(stores[name].write_bytes(str(n), b"") for n in range(5) for name in names))
    told = [each.environ() for each in processes_of_users()]
    assert sorted((each["HADOOP_PROXY_USER"], each["HADOOP_USER_NAME"]) for each in told) == [
        ("ann", "ann"),
        ("bob", "bob"),
    ]


async def test_a_process_that_dies_fails_its_calls_and_another_serves_the_next(
    users: UserStores, tmp_path: Path
) -> None:
    own = store(users, tmp_path / "store")
    await own.prepare()
    (process,) = processes_of_users()
    process.send_signal(signal.SIGSTOP)
    call = asyncio.create_task(own.list(""))
    await asyncio.sleep(0)
    process.kill()
    with pytest.raises(StoreUnreachable, match="as ann has ended"):
        await call
    assert not (await own.list("")).files
    assert [each.pid for each in processes_of_users()] != [process.pid]


async def test_a_process_that_is_frozen_is_ended(
    users: UserStores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = store(users, tmp_path / "store")
    await own.prepare()
    monkeypatch.setattr(user_stores, "SILENT_S", 0.5)
    await own.list("")
    (process,) = processes_of_users()
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(StoreUnreachable, match="no sign of life"):
        await own.list("")


async def test_users_beyond_the_bound_wait_for_a_process_without_work(
    users: UserStores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_stores, "MOST_USERS", 1)
    ann, bob = store(users, tmp_path / "ann"), store(users, tmp_path / "bob", "bob")
    await ann.prepare()
    (process,) = processes_of_users()
    process.send_signal(signal.SIGSTOP)
    anns = asyncio.create_task(ann.list(""))
    await asyncio.sleep(0)
    bobs = asyncio.create_task(bob.prepare())
    done, _ = await asyncio.wait({anns, bobs}, timeout=0.3)
    assert not done
    process.send_signal(signal.SIGCONT)
    await asyncio.gather(anns, bobs)
    await asyncio.to_thread(process.wait, 10)
    assert [each.cmdline()[-2] for each in processes_of_users()] == ["bob"]


async def test_a_process_that_loses_its_place_while_it_starts_ends_all_the_same(
    users: UserStores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_stores, "MOST_USERS", 1)
    anns = asyncio.create_task(store(users, tmp_path / "ann").prepare())
    found = processes_of_users()
    for _ in range(100):
        if not found:
            await asyncio.sleep(0)
            found = processes_of_users()
    anns.cancel()
    await asyncio.wait({anns})
    await store(users, tmp_path / "bob", "bob").prepare()
    await asyncio.to_thread(found[0].wait, 10)
    assert [each.cmdline()[-2] for each in processes_of_users()] == ["bob"]


async def test_a_process_without_work_ends(
    users: UserStores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_stores, "IDLE_S", 0.1)
    own = store(users, tmp_path / "store")
    await own.prepare()
    for process in processes_of_users():
        await asyncio.to_thread(process.wait, 10)
    await own.list("")
