"""A mounted generation from its first save to the next one's base: taken, verified, committed, shown."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from recovery.checkpoints.commit_rule import CommitIdentity, CommitRefused, Committed
from recovery.checkpoints.tf_files import render_state
from recovery.checkpoints.watch_rule import Idle, Unfinished, Unusable
from recovery.mount.base import stage_live
from recovery.mount.commit import MountedCommitter
from recovery.mount.take import MountedGeneration, MountedWatcher
from recovery.outbox import SavingJob, TakenCheckpoint
from supervisor.adapters.memory import MemoryCoordination
from supervisor.adapters.memory_store import MemoryStore
from supervisor.contract.boundaries import CheckpointStore, Moved, unwatched
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord
from supervisor.contract.errors import BadCheckpoint
from tests.checkpoints.world import JOB, QUIET_MS, UUID, World, contents
from tests.mount.world import Site


def save(directory: Path, ref: CheckpointRef, life: str = "") -> None:
    """As TensorFlow does, by names of its own and renames."""
    for name, data in contents(ref, life).items():
        part = directory / f"{name}.tmp"
        part.write_bytes(data)
        part.rename(directory / name)
    state = directory / "checkpoint.tmp"
    state.write_bytes(render_state(f"model.ckpt-{ref.step}"))
    state.rename(directory / "checkpoint")


class Saving:
    """The saver's node of one generation."""

    def __init__(
        self, site: Site, directory: Path, generation: int = 1, base: CheckpointRef | None = None
    ) -> None:
        self.world = World(site.home, site.store(), MemoryCoordination(MemoryStore()))
        self.site = site
        self.what = MountedGeneration(site.live(generation), directory, generation, base)
        self.watcher = self.new_watcher()

    def new_watcher(self) -> MountedWatcher:
        job = SavingJob(UUID, JOB, "n1", "i1")
        return MountedWatcher(self.what, job, self.world.clock, self.world.next_id)

    async def take(self, watcher: MountedWatcher | None = None) -> TakenCheckpoint:
        for _ in range(50):
            found = await (watcher or self.watcher).look()
            if isinstance(found, TakenCheckpoint):
                return found
            assert isinstance(found, Unfinished | Idle), found
        raise AssertionError("nothing is taken")

    async def identity(self) -> CommitIdentity:
        await self.world.put_switch(self.what.generation, self.what.base)
        return await self.world.register()

    async def commit(self, taken: TakenCheckpoint, identity: CommitIdentity) -> CommitRecord:
        outcome = await self.try_commit(taken, identity)
        assert isinstance(outcome, Committed), outcome
        return outcome.record

    async def try_commit(self, taken: TakenCheckpoint, identity: CommitIdentity) -> Committed | CommitRefused:
        world = self.world
        committer = MountedCommitter(self.what.live.backend, world.store, world.coordination, world.clock)
        return await committer.commit(taken, identity, world.next_id(), QUIET_MS)


def shown(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


async def test_a_save_is_committed_without_a_copy_and_stays_where_it_was(site: Site) -> None:
    await stage_live(site.store(), site.live(), None)
    ref = CheckpointRef(1, 120)
    with site.mounted() as directory:
        saving = Saving(site, directory)
        await asyncio.to_thread(save, directory, ref)
        before = await asyncio.to_thread(shown, directory)
        taken = await saving.take()
        assert taken.manifest.tensors == 1
        record = await saving.commit(taken, await saving.identity())
        assert await asyncio.to_thread(shown, directory) == before
        stored = await site.live().backend.list(record.path)
        assert {entry.name: entry.size for entry in stored if entry.name in contents(ref)} == {
            name: len(data) for name, data in contents(ref).items()
        }
        own, linked = await site.live().listing()
        assert [entry.name for entry in own] == ["checkpoint"]
        assert linked == frozenset(contents(ref))
        # What TensorFlow deletes is the link; the commit stays.
        for name in contents(ref):
            await asyncio.to_thread((directory / name).unlink)
        assert await asyncio.to_thread(lambda: [path.name for path in directory.iterdir()]) == ["checkpoint"]
        assert await site.live().backend.list(record.path) == stored


async def test_a_base_is_shown_by_links_and_is_not_committed_again(site: Site) -> None:
    await stage_live(site.store(), site.live(), None)
    ref = CheckpointRef(1, 120)
    with site.mounted() as directory:
        saving = Saving(site, directory)
        await asyncio.to_thread(save, directory, ref)
        record = await saving.commit(await saving.take(), await saving.identity())
    await stage_live(site.store(), site.live(2), record)
    await stage_live(site.store(), site.live(2), record)
    with site.mounted(2) as directory:
        found = await asyncio.to_thread(shown, directory)
        assert found == contents(ref) | {"checkpoint": render_state("model.ckpt-120")}
        later = Saving(site, directory, 2, ref)
        for _ in range(3):
            assert isinstance(await later.watcher.look(), Idle | Unfinished)
        assert isinstance(await later.watcher.look(final=True), Idle)
        # A program that deletes its base deletes its sight of it.
        for name in contents(ref):
            await asyncio.to_thread((directory / name).unlink)
        assert len(await site.live().backend.list(record.path)) == len(contents(ref)) + 2
        newer = CheckpointRef(2, 130)
        await asyncio.to_thread(save, directory, newer)
        taken = await later.take()
        assert (taken.manifest.ref, taken.manifest.parent) == (newer, ref)


async def test_generations_do_not_see_each_other(local: Site) -> None:
    for generation in (1, 2):
        await stage_live(local.store(), local.live(generation), None)
    with local.mounted(1) as old, local.mounted(2) as new:
        await asyncio.to_thread((old / "a").write_text, "zombie")
        assert await asyncio.to_thread(lambda: list(new.iterdir())) == []
        assert await asyncio.to_thread((old / "a").read_text) == "zombie"


async def test_a_commit_that_was_refused_while_closing_is_made_from_the_same_place(local: Site) -> None:
    await stage_live(local.store(), local.live(), None)
    with local.mounted() as directory:
        saving = Saving(local, directory)
        await asyncio.to_thread(save, directory, CheckpointRef(1, 7))
        taken = await saving.take()
        identity = await saving.identity()
        await saving.world.put_switch(1, closing=True)
        assert isinstance(await saving.try_commit(taken, identity), CommitRefused)
        assert len(await asyncio.to_thread(shown, directory)) == 4
        await saving.world.put_switch(1)
        record = await saving.commit(taken, identity)
        assert len(await local.live().backend.list(record.path)) == 5


@pytest.mark.parametrize("described", [False, True])
async def test_a_new_agent_goes_on_with_what_was_taken(local: Site, described: bool) -> None:
    """The agent died after it had moved the files, and after it had renamed the directory."""
    await stage_live(local.store(), local.live(), None)
    with local.mounted() as directory:
        saving = Saving(local, directory)
        await asyncio.to_thread(save, directory, CheckpointRef(1, 7))
        taken = await saving.take()
        identity = await saving.identity()
        if described:
            await saving.world.put_switch(1, closing=True)
            committer = MountedCommitter(
                saving.what.live.backend, saving.world.store, saving.world.coordination, saving.world.clock
            )
            await committer._publish(taken, "", f"g00001-s0000000007.{taken.directory.name[-3:]}")
            await saving.world.put_switch(1)
        again = await saving.take(saving.new_watcher())
        assert again.directory == taken.directory
        assert replace(again.manifest, wall_ms=0) == replace(taken.manifest, wall_ms=0)
        await saving.commit(again, identity)
        # A third life finds it committed.
        last = await saving.take(saving.new_watcher())
        await saving.commit(last, identity)
        assert len(await saving.world.records()) == 1


async def test_a_damaged_save_is_said_once_and_never_committed(local: Site) -> None:
    await stage_live(local.store(), local.live(), None)
    with local.mounted() as directory:
        saving = Saving(local, directory)
        await asyncio.to_thread(save, directory, CheckpointRef(1, 7))
        shard = directory / "model.ckpt-7.data-00000-of-00001"
        data = bytearray(await asyncio.to_thread(shard.read_bytes))
        data[5] ^= 1
        await asyncio.to_thread(shard.write_bytes, bytes(data))
        found = [await saving.watcher.look() for _ in range(4)]
        assert [type(each) for each in found] == [Unfinished, Unusable, Idle, Idle]
        assert "checksum is wrong" in str(found[1])


async def test_a_base_that_was_damaged_in_the_store_is_bad(local: Site) -> None:
    await stage_live(local.store(), local.live(), None)
    with local.mounted() as directory:
        saving = Saving(local, directory)
        await asyncio.to_thread(save, directory, CheckpointRef(1, 7))
        record = await saving.commit(await saving.take(), await saving.identity())
    path = Path(local.uri.removeprefix("file://")) / record.path / "model.ckpt-7.index"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadCheckpoint, match=r"model\.ckpt-7\.index"):
        await stage_live(local.store(), local.live(2), record)


class CountingStore:
    """Which files of a store are read back."""

    def __init__(self, inner: CheckpointStore) -> None:
        self.inner = inner
        self.read: list[str] = []

    async def crc32c(self, path: str, moved: Moved = unwatched) -> int:
        self.read.append(path.rpartition("/")[2])
        return await self.inner.crc32c(path, moved)

    async def read_bytes(self, path: str, limit: int) -> bytes:
        return await self.inner.read_bytes(path, limit)


async def test_nodes_share_the_work_of_verifying_a_base_and_a_base_given_up_is_not_shown(local: Site) -> None:
    await stage_live(local.store(), local.live(), None)
    records = []
    with local.mounted() as directory:
        saving = Saving(local, directory)
        identity = await saving.identity()
        for step in (7, 8):
            await asyncio.to_thread(save, directory, CheckpointRef(1, step))
            records.append(await saving.commit(await saving.take(), identity))
    live = local.live(2)
    stores = [CountingStore(local.store()) for _ in range(3)]
    await stage_live(cast(CheckpointStore, stores[0]), live, records[1], "a")
    await stage_live(cast(CheckpointStore, stores[1]), live, records[1], "b")
    assert sorted(stores[0].read) == sorted(contents(CheckpointRef(1, 8)))
    assert stores[1].read == []
    # It was found to be bad elsewhere: the plan takes the one before it.
    await stage_live(cast(CheckpointStore, stores[2]), live, records[0], "a")
    assert sorted(stores[2].read) == sorted(contents(CheckpointRef(1, 7)))
    own, linked = await live.listing()
    assert [entry.name for entry in own] == ["checkpoint"]
    assert linked == frozenset(contents(CheckpointRef(1, 7)))


async def test_a_save_that_is_deleted_while_it_is_taken_is_let_go(local: Site) -> None:
    await stage_live(local.store(), local.live(), None)
    with local.mounted() as directory:
        saving = Saving(local, directory)
        await asyncio.to_thread(save, directory, CheckpointRef(1, 7))
        assert isinstance(await saving.watcher.look(), Unfinished)
        judged = await saving.watcher._look()
        await asyncio.to_thread((directory / "model.ckpt-7.index").unlink)
        place = await saving.watcher._place_of(CheckpointRef(1, 7), ())
        assert place is not None
        assert not await saving.watcher._move(tuple(mark.name for mark in judged.files), place)
