"""A mounted generation from its first save to the next one's base: taken, verified, committed, shown."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from recovery.commit.outbox import TakenCheckpoint
from recovery.commit.verify import Verified
from recovery.families.commit_rule import CommitRefused
from recovery.families.families import Save, saves_in
from recovery.families.watch_rule import META_PATIENCE_LOOKS, Idle, Unfinished, Unusable
from recovery.formats.manifest import MANIFEST_FILE, crc32c_of_bytes, parse_manifest
from recovery.formats.tf_files import render_state
from recovery.mount import sight as mount_sight
from recovery.mount.base import stage_live
from recovery.mount.commit import MountedCommitter
from recovery.mount.layout import Place, staging_place
from recovery.mount.take import MountedWatcher
from supervisor.contract.boundaries import CheckpointStore, Moved, unwatched
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import BadCheckpoint
from tests.checkpoints.saves import below, put
from tests.checkpoints.world import contents
from tests.mount.saving import Saving, save
from tests.mount.world import Site


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
        live = site.live()
        assert [entry.name for entry in await live.own("")] == ["checkpoint"]
        assert await live.linked() == frozenset(contents(ref))
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
        found = [await saving.watcher.look() for _ in range(META_PATIENCE_LOOKS + 8)]
        assert not [each for each in found if isinstance(each, TakenCheckpoint)]
        (told,) = [each for each in found if isinstance(each, Unusable)]
        assert "checksum is wrong" in told.reason


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
    """A store that notes the names of the files that are read back."""

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
    assert [entry.name for entry in await live.own("")] == ["checkpoint"]
    assert await live.linked() == frozenset(contents(CheckpointRef(1, 7)))


async def test_a_save_that_is_deleted_while_it_is_taken_is_let_go(local: Site) -> None:
    await stage_live(local.store(), local.live(), None)
    with local.mounted() as directory:
        saving = Saving(local, directory)
        await asyncio.to_thread(save, directory, CheckpointRef(1, 7))
        assert isinstance(await saving.watcher.look(), Unfinished)
        (seen,) = saves_in(await saving.watcher._eyes.look()).values()
        assert seen.newest is not None
        await asyncio.to_thread((directory / "model.ckpt-7.index").unlink)
        left = await asyncio.to_thread(shown, directory)
        place = staging_place(CheckpointRef(1, 7), "x")
        assert not await saving.watcher._staging.bring(seen.newest, place)
        assert await asyncio.to_thread(shown, directory) == left


async def test_what_is_written_over_while_it_is_taken_stays_in_sight_and_is_taken_next(local: Site) -> None:
    """The mount gave the new file its name before the old one was moved, and removes the link after that."""
    await stage_live(local.store(), local.live(), None)
    with local.mounted() as directory:
        saving = Saving(local, directory)
        put(directory, "mlp.ckpt", "w1")
        await saving.watcher.look()
        (seen,) = saves_in(await saving.watcher._eyes.look()).values()
        assert seen.newest is not None
        put(directory, "mlp.ckpt", "w2 is longer")
        written = below(directory)
        assert not await saving.watcher._staging.bring(seen.newest, staging_place(CheckpointRef(1, 1), "x"))
        assert below(directory) == written
        await local.live().unlink("mlp.ckpt.index")
        taken = await saving.take()
        assert below(directory) == written
        record = await saving.commit(taken, await saving.identity())
        assert len(await saving.world.records()) == 1
        stored = below(Path(local.uri.removeprefix("file://")) / record.path)
        assert {name: stored[name] for name in written} == written


async def test_a_save_that_is_written_over_while_it_is_read_back_is_committed_as_it_was(
    local: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage_live(local.store(), local.live(), None)
    with local.mounted() as directory:
        saving = Saving(local, directory)
        put(directory, "mlp.ckpt", "w1")
        first = below(directory)
        read_back, left = saving.watcher._verify, [1]

        def written_over(save: Save, place: Place) -> Verified:
            if left:
                left.clear()
                put(directory, "mlp.ckpt", "w2")
            return read_back(save, place)

        monkeypatch.setattr(saving.watcher, "_verify", written_over)
        identity = await saving.identity()
        record = await saving.commit(await saving.take(), identity)
        store = Path(local.uri.removeprefix("file://"))
        stored = below(store / record.path)
        assert {name: stored[name] for name in first} == first
        manifest = parse_manifest((store / record.path / MANIFEST_FILE).read_bytes())
        crcs = {file.name: file.crc32c for file in manifest.files}
        assert {name: crc32c_of_bytes(data) for name, data in first.items() if name in crcs} == crcs
        later = await saving.commit(await saving.take(), identity)
        assert b"w2" in below(store / later.path)["mlp.ckpt.data-00000-of-00001"]


async def test_a_save_that_is_carried_on_is_shown_from_where_it_is_now(local: Site) -> None:
    """Its first copy is collected one day, while the program goes on."""
    await stage_live(local.store(), local.live(), None)
    with local.mounted() as directory:
        saving = Saving(local, directory)
        identity = await saving.identity()
        put(directory, "best/model", "b", state=False)
        put(directory, "model.ckpt-1", "m1")
        first = await saving.commit(await saving.take(), identity)
        put(directory, "model.ckpt-2", "m2")
        await saving.commit(await saving.take(), identity)
        for _ in range(3):
            assert isinstance(await saving.watcher.look(), Idle), "a copy is no new save"
        await local.live().backend.delete(first.path, recursive=True)
        assert b"b" in below(directory)["best/model.data-00000-of-00001"]
        put(directory, "model.ckpt-3", "m3")
        taken = await saving.take()
        assert taken.manifest.bundles == ("best/model", "model.ckpt-3")
        assert isinstance(await saving.watcher.look(final=True), Idle)


async def test_a_carried_save_that_is_damaged_where_it_lies_is_left_out_and_told(local: Site) -> None:
    await stage_live(local.store(), local.live(), None)
    with local.mounted() as directory:
        saving = Saving(local, directory)
        put(directory, "best", "b", state=False)
        put(directory, "model.ckpt-1", "m1")
        first = await saving.commit(await saving.take(), await saving.identity())
        path = Path(local.uri.removeprefix("file://")) / first.path / "best.data-00000-of-00001"
        path.write_bytes(bytes(len(path.read_bytes())))
        put(directory, "model.ckpt-2", "m2")
        assert (await saving.take()).manifest.bundles == ("model.ckpt-2",)
        told = await saving.watcher.look()
        assert isinstance(told, Unusable)
        assert told.prefix == "best"


async def test_a_mount_of_an_earlier_release_takes_what_is_at_the_top_alone(
    local: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a mount would not show a file in a subdirectory any more, once it was taken."""
    await stage_live(local.store(), local.live(), None)
    monkeypatch.setattr(MountedWatcher, "_shows_places", lambda _self: False)
    with local.mounted() as directory:
        saving = Saving(local, directory)
        put(directory, "sub/model.ckpt-1", "s1")
        put(directory, "model.ckpt-1", "m1")
        assert (await saving.take()).manifest.bundles == ("model.ckpt-1",)
        told = await saving.watcher.look()
        assert isinstance(told, Unusable)
        assert (told.prefix, "restart" in told.reason) == ("sub", True)


async def test_directories_and_paths_without_bound_are_told(
    local: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage_live(local.store(), local.live(), None)
    monkeypatch.setattr(mount_sight, "MAX_DIRECTORIES", 4)
    with local.mounted() as directory:
        saving = Saving(local, directory)
        put(directory, f"{'d' * 200}/{'m' * 100}", "w", state=False)
        for n in range(6):
            (directory / f"e{n}").mkdir()
        put(directory, "model.ckpt-1", "m1")
        seen = await saving.watcher.look(final=True)
        assert isinstance(seen, TakenCheckpoint)
        assert seen.manifest.bundles == ("model.ckpt-1",)
        told = {}
        while isinstance(seen := await saving.watcher.look(final=True), Unusable):
            told[seen.prefix] = seen.reason
        assert {reason.partition(":")[0][:30] for reason in told.values()} == {
            "its path is longer than the 25",
            "there are more than 4 director",
        }


async def test_a_family_that_a_bounded_look_does_not_reach_stays_in_the_checkpoint(
    local: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage_live(local.store(), local.live(), None)
    with local.mounted() as directory:
        saving = Saving(local, directory)
        put(directory, "deep/best", "b", state=False)
        put(directory, "model.ckpt-1", "m1")
        await saving.commit(await saving.take(), await saving.identity())
        monkeypatch.setattr(mount_sight, "MAX_DIRECTORIES", 1)
        put(directory, "model.ckpt-2", "m2")
        assert (await saving.take()).manifest.bundles == ("deep/best", "model.ckpt-2")
