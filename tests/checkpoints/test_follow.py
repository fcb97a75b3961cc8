"""New commits come to a machine that only reads them: complete, in order, the newest few."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.checkpoints.keeper import NodeCheckpoints
from agent.core.instructions import FollowCommits
from agent.host.task_users import OneUser
from recovery.commit.follow import KEPT, Follower, mark_saver, saved_here, unmark_saver
from recovery.commit.outbox import generation_directory
from recovery.commit.stage import Stager
from recovery.formats.manifest import (
    MANIFEST_FILE,
    Manifest,
    ManifestFile,
    crc32c_of_bytes,
    encode_manifest,
)
from recovery.formats.tf_files import STATE_FILE
from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Put
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.errors import BadCheckpoint, TfSupervisorError
from tests.support.sinks import ListSink
from tests.support.users import threads_that_ask_for_users

UUID = "uuid"


class Reader:
    """A node that runs an evaluator, and a store that another node's saver commits to."""

    def __init__(self, parent: Path) -> None:
        self.parent = parent
        self.store = MemoryCheckpointStore()
        self.etcd = MemoryStore()
        self.sink = ListSink()
        self.ids = 0
        self.node = NodeCheckpoints(
            "n2",
            parent,
            MemoryCoordination(self.etcd),
            lambda _uri: self.store,
            BootClock(),
            self.sink,
            self._new_id,
        )

    def _new_id(self) -> str:
        self.ids += 1
        return f"{self.ids:08x}"

    @property
    def directory(self) -> Path:
        return generation_directory(self.parent / UUID, 1)

    async def commit(self, step: int, *, damaged: bool = False) -> CommitRecord:
        prefix = f"model.ckpt-{step}"
        bodies = {
            f"{prefix}.data-00000-of-00001": b"data %d" % step,
            f"{prefix}.index": b"index %d" % step,
        }
        ref = CheckpointRef(1, step)
        listed = tuple(
            ManifestFile(name, len(body), crc32c_of_bytes(body)) for name, body in sorted(bodies.items())
        )
        manifest = Manifest(UUID, "digits", ref, None, "n1", "i1", prefix, 0, listed)
        raw = encode_manifest(manifest)
        path = f"stored-{step}"
        for name, body in bodies.items():
            await self.store.write_bytes(f"{path}/{name}", b"x" + body[1:] if damaged else body)
        await self.store.write_bytes(f"{path}/{MANIFEST_FILE}", raw)
        record = CommitRecord(UUID, ref, None, path, manifest.size, crc32c_of_bytes(raw), "n1", "i1", 0)
        self.put(record)
        return record

    def put(self, record: CommitRecord) -> None:
        assert self.etcd.commit(
            [], [Put(keys.commit("digits", record.ref), codec.encode(record))], []
        ).succeeded

    def follow(self) -> None:
        self.node.follow(FollowCommits("digits", UUID, 1, None, "memory://"))

    def named(self) -> str:
        """The name that the state file shows to a program."""
        state = self.directory / STATE_FILE
        return state.read_text().split('"')[1] if state.exists() else ""

    async def until_nothing_is_half_built(self) -> None:
        """A checkpoint is named before old ones are removed, and then the directory that it was built in."""
        async with asyncio.timeout(20):
            while True:
                if not list((self.parent / UUID).glob(".staging-*")):
                    return
                await asyncio.sleep(0.01)

    async def until_named(self, step: int) -> None:
        async with asyncio.timeout(20):
            while self.named() != f"model.ckpt-{step}":
                prefix = self.named()
                if prefix:
                    assert (self.directory / f"{prefix}.index").exists(), "what is named is complete"
                    assert (self.directory / f"{prefix}.data-00000-of-00001").exists()
                await asyncio.sleep(0.01)


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[Reader]:
    made = Reader(tmp_path / "parent")
    await made.store.prepare()
    yield made
    await made.node.close()


async def test_each_new_commit_is_brought_in_and_the_newest_few_stay(reader: Reader) -> None:
    reader.follow()
    for step in range(100, 100 * (KEPT + 3), 100):
        await reader.commit(step)
        await reader.until_named(step)
    await reader.until_nothing_is_half_built()
    indexes = sorted(path.name for path in reader.directory.glob("*.index"))
    assert indexes == [f"model.ckpt-{step}.index" for step in range(300, 100 * (KEPT + 3), 100)]


async def test_a_follower_that_moved_here_gets_the_newest_at_once(reader: Reader) -> None:
    for step in (100, 200):
        await reader.commit(step)
    reader.follow()
    await reader.until_named(200)
    assert not (reader.directory / "model.ckpt-100.index").exists()


async def test_nothing_is_brought_where_the_program_saves_itself(reader: Reader) -> None:
    mark_saver(reader.parent / UUID, 1)
    await reader.commit(100)
    reader.follow()
    await asyncio.sleep(0)
    follower = reader.node._followers[(UUID, 1)]
    await follower._look()
    assert not reader.directory.exists()


def test_a_mark_goes_with_the_node_that_made_it(tmp_path: Path) -> None:
    mark_saver(tmp_path, 1, "n1")
    unmark_saver(tmp_path, 1, "n2")
    assert saved_here(tmp_path, 1)
    unmark_saver(tmp_path, 1, "n1")
    unmark_saver(tmp_path, 1, "n1")
    assert not saved_here(tmp_path, 1)


def test_what_a_program_puts_in_the_place_of_the_mark_harms_nobody(tmp_path: Path) -> None:
    """No file is written through a link, and neither call waits, or raises what the agent does not catch."""
    mark = tmp_path / ".bases" / "g1.saver"
    mark.parent.mkdir()
    mark.write_bytes(b"\xff")
    unmark_saver(tmp_path, 1, "n1")
    assert mark.exists(), "another one's"
    mark.unlink()
    target = tmp_path / "target"
    target.write_text("precious")
    mark.symlink_to(target)
    for call in (mark_saver, unmark_saver):
        with pytest.raises(TfSupervisorError):
            call(tmp_path, 1, "n1")
    assert target.read_text() == "precious"
    mark.unlink()
    os.mkfifo(mark)
    for call in (mark_saver, unmark_saver):
        with pytest.raises(TfSupervisorError):
            call(tmp_path, 1, "n1")


async def test_a_damaged_or_withdrawn_commit_is_never_named(reader: Reader) -> None:
    record = await reader.commit(100)
    await reader.commit(200, damaged=True)
    reader.put(replace(record, state=CommitState.COLLECTING))
    reader.follow()
    with pytest.raises(BadCheckpoint):
        await reader.node._followers[(UUID, 1)]._look()
    assert reader.named() == ""
    await reader.node._followers[(UUID, 1)]._look()
    assert reader.named() == "", "it is not read again and again"
    await reader.commit(300)
    await reader.until_named(300)


async def test_nothing_comes_after_the_end(reader: Reader) -> None:
    reader.follow()
    await reader.commit(100)
    await reader.until_named(100)
    follower = reader.node._followers[(UUID, 1)]
    reader.node.stop_following(UUID, 1)
    assert follower._task is not None
    with pytest.raises(asyncio.CancelledError):
        await follower._task


async def test_a_link_on_the_way_leads_nothing_out_of_the_directory(tmp_path: Path) -> None:
    """Its owner is the program's user; who brings files in may be root."""
    store, others, body = MemoryCheckpointStore(), tmp_path / "others", b"from the store"
    name, ref = "sub/model.bin", CheckpointRef(1, 7)
    listed = (ManifestFile(name, len(body), crc32c_of_bytes(body)),)
    manifest = Manifest(UUID, "digits", ref, None, "n1", "i1", "", 0, listed)
    raw = encode_manifest(manifest)
    await store.prepare()
    await store.write_bytes(f"stored/{name}", body)
    await store.write_bytes(f"stored/{MANIFEST_FILE}", raw)
    record = CommitRecord(UUID, ref, None, "stored", manifest.size, crc32c_of_bytes(raw), "n1", "i1", 0)
    directory = generation_directory(tmp_path, 1)
    for each in (others, directory):
        each.mkdir()
    (directory / "sub").symlink_to(others)
    follower = Follower(Stager(store, tmp_path, BootClock()), tmp_path, 1)
    with pytest.raises(TfSupervisorError):
        await follower.bring(record, "one", 20_000)
    assert list(others.iterdir()) == []
    (directory / "sub").unlink()
    await follower.bring(record, "two", 20_000)
    assert (directory / name).read_bytes() == body


@pytest.mark.parametrize("uid", [None, 12345])
async def test_a_program_that_has_moved_here_may_write_where_commits_are_brought(
    reader: Reader, uid: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user may not make the directory, which nobody has staged here; it may start before any commit."""
    base = (await reader.commit(5)).ref
    threads = threads_that_ask_for_users(monkeypatch)
    if uid is not None:
        reader.node.users = OneUser(uid, uid)
    reader.node.follow(FollowCommits("digits", UUID, 1, base, "memory://"))
    await reader.until_named(5)
    assert threading.get_ident() not in threads, "it can take long"
    assert bool(threads) == (uid is not None)
    await reader.commit(6)
    await reader.until_named(6)
    assert uid is None or reader.directory.stat().st_uid == (uid if os.geteuid() == 0 else os.geteuid())
