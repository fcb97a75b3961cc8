"""Staging a base: exactly it, verified, whole, or nothing; and collecting what is not needed."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

from recovery.commit.outbox import TakenCheckpoint, generation_directory, outbox_directory
from recovery.commit.stage import Stager, clean_parent, move_away, read_base
from recovery.families.commit_rule import Committed
from recovery.formats.manifest import MANIFEST_FILE, crc32c_of_bytes
from recovery.formats.paths import staging_path, stored_path
from recovery.formats.tf_files import STATE_FILE
from recovery.io.files import mapped_errors
from recovery.mount.layout import Place, links_path, live_path
from recovery.retention.collect import (
    clean_store,
    delete_checkpoint,
    delete_uncommitted,
    read_staging,
    scan_store,
)
from recovery.stores.local import LocalStore
from recovery.stores.memory import MemoryCheckpointStore, MemoryDisk, Moment
from supervisor.contract.boundaries import CheckpointStore, Moved, StoredFile, unwatched
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.desired import JobPhase, JobSwitch
from supervisor.contract.errors import BadCheckpoint, NotFound, Refused, StoreUnreachable
from tests.checkpoints.world import (
    JOB,
    QUIET_MS,
    UUID,
    Crash,
    InlineExecutor,
    PointedStore,
    StrikeAfter,
    World,
    contents,
    save,
    snapshot,
    staged_form,
)
from tests.support.steady import on_a_steady_machine

REF = CheckpointRef(1, 120)
DATA = "model.ckpt-120.data-00000-of-00001"
INDEX = "model.ckpt-120.index"


@pytest.fixture
async def committed(world: World) -> CommitRecord:
    await world.put_switch(1)
    outcome = await world.commit(await world.take(REF), await world.register())
    assert isinstance(outcome, Committed)
    return outcome.record


async def stage(
    world: World, record: CommitRecord | None, generation: int = 2, *, fresh: bool = True
) -> Path:
    staged = await world.stager().stage_base(record, generation, world.next_id(), QUIET_MS, fresh=fresh)
    return staged.directory


def spoil(store: CheckpointStore, path: str, data: bytes | None) -> None:
    """Change a stored file behind the store's back; None removes it."""
    if isinstance(store, MemoryCheckpointStore):
        if data is None:
            del store.disk.files[path]
        else:
            store.disk.files[path] = data
        return
    assert isinstance(store, LocalStore)
    if data is None:
        (store._root / path).unlink()
    else:
        (store._root / path).write_bytes(data)


@pytest.mark.parametrize("own", [True, False])
async def test_a_generation_starts_with_exactly_the_base(
    world: World, committed: CommitRecord, own: bool
) -> None:
    if own:
        spoil(world.store, f"{committed.path}/{DATA}", b"the store is not even asked")
    else:
        shutil.rmtree(world.parent / ".outbox")
    directory = await stage(world, committed)
    assert directory == generation_directory(world.parent, 2)
    assert snapshot(directory) == staged_form(REF)
    assert (read_base(world.parent, 2) or committed).ref == REF
    if own:
        copies = outbox_directory(world.parent, REF)
        assert (directory / DATA).samefile(copies / DATA)
        assert not (directory / INDEX).samefile(copies / INDEX), "it may be written in place"


async def test_a_damaged_own_copy_is_not_used(world: World, committed: CommitRecord) -> None:
    own = outbox_directory(world.parent, REF)
    (own / INDEX).write_bytes(b"x" * len(contents(REF)[INDEX]))
    assert snapshot(await stage(world, committed)) == staged_form(REF)
    (own / MANIFEST_FILE).write_bytes(b"{}")
    assert snapshot(await stage(world, committed, 3)) == staged_form(REF)


async def test_an_own_copy_of_another_life_is_not_used(world: World, committed: CommitRecord) -> None:
    """The same generation and step, taken but never committed: only the manifest's checksum tells."""
    shutil.rmtree(world.parent / ".outbox")
    save(world.parent, REF, "other")
    assert isinstance(await world.watcher(1).look(final=True), TakenCheckpoint)
    assert snapshot(await stage(world, committed)) == staged_form(REF)


async def test_no_base_is_an_empty_directory(world: World) -> None:
    directory = await stage(world, None)
    assert snapshot(directory) == {}
    assert read_base(world.parent, 2) is None
    assert await stage(world, None) == directory
    with pytest.raises(NotFound):
        read_base(world.parent, 3)


async def test_a_first_start_prepares_the_store(tmp_path: Path, world: World) -> None:
    world.store = LocalStore(tmp_path / "new")
    await stage(world, None)
    assert (await scan_store(world.store)).found == ()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (DATA, None),
        (DATA, b""),
        (DATA, b"cut"),
        (DATA, b"X" + contents(REF)[DATA][1:]),
        (DATA, contents(REF)[DATA] + b"X"),
        (INDEX, None),
        (MANIFEST_FILE, None),
        (MANIFEST_FILE, b"{}"),
        (MANIFEST_FILE, b"x" * (2 << 20)),
    ],
)
async def test_bad_is_what_is_wrong_or_missing_in_a_healthy_store(
    world: World, committed: CommitRecord, name: str, data: bytes | None
) -> None:
    shutil.rmtree(world.parent / ".outbox")
    spoil(world.store, f"{committed.path}/{name}", data)
    with pytest.raises(BadCheckpoint, match=name):
        await stage(world, committed)
    assert not generation_directory(world.parent, 2).exists()
    assert not list(world.parent.glob(".staging-*"))


class Garbling(MemoryCheckpointStore):
    """A store whose files are intact, but which changes the last byte of each that it sends."""

    async def download(self, path: str, target: str, moved: Moved = unwatched) -> StoredFile:
        came = await super().download(path, target, moved)
        data = bytearray(Path(target).read_bytes())
        data[-1] ^= 1
        Path(target).write_bytes(data)
        return replace(came, crc32c=int(google_crc32c.value(bytes(data))))


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_what_was_damaged_on_its_way_is_not_bad_and_not_used(
    world: World, committed: CommitRecord
) -> None:
    shutil.rmtree(world.parent / ".outbox")
    assert isinstance(world.store, MemoryCheckpointStore)
    world.store = Garbling(world.store.disk)
    with pytest.raises(StoreUnreachable, match="is intact in the store but arrived damaged"):
        await stage(world, committed)
    assert not generation_directory(world.parent, 2).exists()
    assert not list(world.parent.glob(".staging-*"))


async def test_unreadable_is_not_bad(world: World, committed: CommitRecord, tmp_path: Path) -> None:
    shutil.rmtree(world.parent / ".outbox")
    store = world.store
    passes = 0
    for passes in range(20):
        world.store = PointedStore(store, StrikeAfter(passes, StoreUnreachable))
        try:
            await stage(world, committed)
            break
        except StoreUnreachable:
            assert not generation_directory(world.parent, 2).exists()
    assert passes >= 8
    world.store = LocalStore(tmp_path / "not-mounted")
    shutil.rmtree(world.parent / "g2")
    with pytest.raises(StoreUnreachable, match="mounted"):
        await stage(world, committed)


async def test_a_manifest_of_another_checkpoint_is_bad(world: World, committed: CommitRecord) -> None:
    raw = (outbox_directory(world.parent, REF) / MANIFEST_FILE).read_bytes()
    shutil.rmtree(world.parent / ".outbox")
    liar = replace(committed, ref=CheckpointRef(1, 121), manifest_crc32c=crc32c_of_bytes(raw))
    with pytest.raises(BadCheckpoint, match="describes"):
        await stage(world, liar)


async def test_what_a_failed_plan_left_is_not_trusted(world: World, committed: CommitRecord) -> None:
    directory = await stage(world, committed)
    (directory / "model.ckpt-999.index").write_bytes(b"from another plan")
    assert snapshot(await stage(world, committed)) == staged_form(REF)
    (stale,) = world.parent.glob(".stale-*")
    assert (stale / "model.ckpt-999.index").exists()
    (directory / INDEX).write_bytes(b"")
    assert snapshot(await stage(world, committed)) == staged_form(REF)
    assert snapshot(await stage(world, None)) == {}


def test_only_the_directory_that_was_judged_is_moved_away(tmp_path: Path) -> None:
    (tmp_path / "g2").mkdir()
    inode = (tmp_path / "g2").stat().st_ino
    move_away(tmp_path / "g2", tmp_path / "stale", inode + 1)
    assert [path.name for path in tmp_path.iterdir()] == ["g2"]
    move_away(tmp_path / "g2", tmp_path / "stale", inode)
    assert [path.name for path in tmp_path.iterdir()] == ["stale"]
    move_away(tmp_path / "g2", tmp_path / "other", inode)


@pytest.mark.parametrize("name", [STATE_FILE, INDEX])
@pytest.mark.parametrize("kind", ["fifo", "link"])
async def test_what_is_no_file_is_no_base_and_nobody_waits_for_it(
    world: World, committed: CommitRecord, name: str, kind: str
) -> None:
    """The directory is its program's by then, which can put anything there."""
    path = await stage(world, committed) / name
    path.rename(kept := world.parent / "kept")
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(kept)
    assert snapshot(await stage(world, committed)) == staged_form(REF)
    assert stat.S_ISREG(path.lstat().st_mode)


async def test_a_directory_in_use_is_left_alone(world: World, committed: CommitRecord) -> None:
    directory = await stage(world, committed)
    save(world.parent, CheckpointRef(2, 130))
    before = snapshot(directory)
    assert await stage(world, committed, fresh=False) == directory
    assert snapshot(directory) == before


async def test_a_node_that_joins_a_running_generation_stages_it(
    world: World, committed: CommitRecord
) -> None:
    assert snapshot(await stage(world, committed, fresh=False)) == staged_form(REF)


async def test_many_agents_of_one_machine_stage_at_once(world: World, committed: CommitRecord) -> None:
    """Real threads over one parent, in which a failed plan left its directory: all of them end verified."""
    for round_number in range(10):
        generation = 2 + round_number
        left = generation_directory(world.parent, generation)
        left.mkdir()
        (left / "junk").write_bytes(b"")
        with ThreadPoolExecutor(8) as pool:
            stager = Stager(world.store, world.parent, world.clock, pool)
            staged = await asyncio.gather(
                *(
                    stager.stage_base(committed, generation, f"a{number}", QUIET_MS, fresh=True)
                    for number in range(6)
                )
            )
        assert {one.directory for one in staged} == {left}
        assert snapshot(left) == staged_form(REF)
        assert not list(world.parent.glob(".staging-*"))


@pytest.mark.parametrize("kind", [Crash, StoreUnreachable])
@pytest.mark.parametrize("own", [True, False])
async def test_a_crash_anywhere_in_staging(
    world: World, committed: CommitRecord, kind: type[BaseException], own: bool
) -> None:
    """After each the directory is absent, or exactly the base; and the next call succeeds."""
    if not own:
        shutil.rmtree(world.parent / ".outbox")
    store = world.store
    directory = generation_directory(world.parent, 2)
    for passes in range(100):
        strike = StrikeAfter(passes, kind)
        world.store, world.executor = PointedStore(store, strike), InlineExecutor(strike)
        survived = False
        try:
            await stage(world, committed)
            survived = True
        except kind:
            assert not directory.exists() or snapshot(directory) == staged_form(REF)
        world.store, world.executor = store, InlineExecutor()
        assert snapshot(await stage(world, committed)) == staged_form(REF)
        shutil.rmtree(directory)
        if survived:
            assert passes >= (14 if own else 26)
            return
    raise AssertionError("it never survived")


class Slow(MemoryCheckpointStore):
    """Sends a piece of each file now and then; or nothing any more."""

    def __init__(self, disk: MemoryDisk, pieces: int) -> None:
        super().__init__(disk)
        self.pieces = pieces

    async def download(self, path: str, target: str, moved: Moved = unwatched) -> StoredFile:
        for _ in range(self.pieces):
            await asyncio.sleep(0.1)
            moved(1)
        if not self.pieces:
            await asyncio.Event().wait()
        return await super().download(path, target, moved)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
@on_a_steady_machine
async def test_a_slow_store_may_take_its_time_and_a_frozen_one_may_not(
    world: World, committed: CommitRecord
) -> None:
    """Each of its files takes longer than nothing may move."""
    shutil.rmtree(world.parent / ".outbox", ignore_errors=True)
    assert isinstance(world.store, MemoryCheckpointStore)
    disk = world.store.disk
    quiet_ms = 1500
    slow = Stager(Slow(disk, pieces=25), world.parent, world.clock, world.executor)
    staged = await slow.stage_base(committed, 2, "slow", quiet_ms, fresh=True)
    assert snapshot(staged.directory) == staged_form(REF)
    frozen = Stager(Slow(disk, pieces=0), world.parent, world.clock, world.executor)
    with pytest.raises(StoreUnreachable, match=r"has not moved for 1\.5 s"):
        await frozen.stage_base(committed, 3, "frozen", quiet_ms, fresh=True)
    assert not list(world.parent.glob(".staging-*")), "half a checkpoint takes no room"


async def test_no_right_to_write(world: World, committed: CommitRecord) -> None:
    def refuse(point: str) -> None:
        with mapped_errors("write there"):
            raise PermissionError(errno.EACCES, "Permission denied")

    world.executor = InlineExecutor(refuse)
    with pytest.raises(Refused, match="give uid"):
        await stage(world, committed)


async def test_clean_parent(world: World, committed: CommitRecord) -> None:
    for generation in (2, 3):
        await stage(world, committed, generation)
    for name in (".stale-g1-old", ".staging-g1-old", ".outbox/.taking-old"):
        (world.parent / name).mkdir()
        os.utime(world.parent / name, (0, 0))
    (world.parent / ".stale-g1-new").mkdir()
    (world.parent / "unrelated").mkdir()
    clean_parent(world.parent, [3])
    assert sorted(path.name for path in world.parent.iterdir()) == [
        ".bases",
        ".outbox",
        ".stale-g1-new",
        "g3",
        "unrelated",
    ]
    assert [path.name for path in (world.parent / ".bases").iterdir()] == ["g3.json"]
    assert [path.name for path in (world.parent / ".outbox").iterdir()] == ["g1-s120"]
    clean_parent(world.parent / "absent", [])


# Collecting.


async def test_scan(world: World, committed: CommitRecord) -> None:
    await world.store.write_bytes("g00009-s0000000001.zz/manifest.json", b"damaged")
    await world.store.write_bytes("g00012-s0000000001.zz/half", b"")
    await world.store.write_bytes("somebody-elses/file", b"")
    # A copy under another name: what its manifest says is not so here.
    copied = await world.store.read_bytes(f"{committed.path}/manifest.json", 1 << 20)
    await world.store.write_bytes("g00008-s0000000001.zz/manifest.json", copied)
    scan = await scan_store(world.store)
    assert [one.path for one in scan.found] == [committed.path]
    assert scan.unreadable == (*("g00008-s0000000001.zz", "g00009-s0000000001.zz", "g00012-s0000000001.zz"),)
    assert scan.max_generation == 12
    assert {one.manifest.job_uuid for one in scan.found} == {UUID}


async def test_only_what_is_collecting_can_be_deleted(world: World, committed: CommitRecord) -> None:
    with pytest.raises(AssertionError, match="rule 9"):
        await delete_checkpoint(world.store, committed)
    assert len((await scan_store(world.store)).found) == 1


@pytest.mark.parametrize("kind", [Crash, StoreUnreachable])
async def test_a_crash_anywhere_in_collecting(
    world: World, committed: CommitRecord, kind: type[BaseException]
) -> None:
    """After each it is there whole, or not at all."""
    shutil.rmtree(world.parent / ".outbox")
    doomed = replace(committed, state=CommitState.COLLECTING)
    keep = await world.commit(await world.take(CheckpointRef(1, 7)), await world.register())
    assert isinstance(keep, Committed)
    store = world.store
    for passes in range(10):
        try:
            await delete_checkpoint(PointedStore(store, StrikeAfter(passes, kind)), doomed)
            break
        except kind:
            try:
                assert snapshot(await stage(world, committed)) == staged_form(REF)
                shutil.rmtree(generation_directory(world.parent, 2))
            except BadCheckpoint:
                assert all(one.path != committed.path for one in (await scan_store(store)).found)
    else:
        raise AssertionError("it never survived")
    await delete_checkpoint(store, doomed)
    await clean_store(store, ())
    assert (await store.list(".trash")).directories == ()
    assert [one.path for one in (await scan_store(store)).found] == [keep.record.path]


async def test_half_a_deletion_is_never_found_at_its_place(world: World, committed: CommitRecord) -> None:
    doomed = replace(committed, state=CommitState.COLLECTING)

    async def die_half_way(operation: str, path: str, moment: Moment) -> None:
        if operation == "delete_tree" and moment is Moment.HALF:
            raise StoreUnreachable("crash")

    disk = MemoryDisk(prepared=True)
    for name in (*contents(REF), MANIFEST_FILE):
        disk.files[f"{committed.path}/{name}"] = b""
    with pytest.raises(StoreUnreachable):
        await delete_checkpoint(MemoryCheckpointStore(disk, die_half_way), doomed)
    assert not [path for path in disk.files if path.startswith(committed.path)]
    await delete_checkpoint(MemoryCheckpointStore(disk), doomed)
    assert disk.files == {}


async def test_leftovers(world: World, committed: CommitRecord) -> None:
    store = world.store
    old, new = (staging_path(CheckpointRef(generation, 5), "id") for generation in (1, 2))
    for path in (old, new, ".staging/foreign", ".trash/x"):
        await store.write_bytes(f"{path}/f", b"")
    now = JobSwitch(JOB, UUID, JobPhase.RUNNING, 2)
    found = await read_staging(store, await scan_store(store), now)
    assert {f".staging/{each.name}": each.over for each in found} == {
        old: True,
        new: False,
        ".staging/foreign": None,
    }
    await clean_store(store, [each.name for each in found if each.over])
    assert {f".staging/{name}" for name in (await store.list(".staging")).directories} == {
        new,
        ".staging/foreign",
    }
    assert (await store.list(".trash")).directories == ()


async def test_what_a_mount_leads_to_is_known(world: World) -> None:
    """Of a mounted job's save that is not committed yet there is no other copy."""
    store = world.store
    await store.prepare()
    ref = CheckpointRef(2, 5)
    staged, unseen = staging_path(ref, "id"), staging_path(ref, "other")
    place = Place(stored_path(ref, "id"), staged.removeprefix(".staging/"))
    for path in (staged, unseen, f"{links_path(live_path(2, 'plan'))}/model.ckpt-5.index/{place.name}"):
        await store.write_bytes(f"{path}/f", b"")
    now = JobSwitch(JOB, UUID, JobPhase.RUNNING, 2, "plan")
    for switch, linked in ((now, {staged: True, unseen: False}), (replace(now, plan_id="p"), {})):
        found = await read_staging(store, await scan_store(store), switch)
        assert {f".staging/{each.name}": each.linked for each in found} == {
            staged: linked.get(staged, False),
            unseen: False,
        }


async def test_uncommitted_directories_go_when_their_generation_is_over(
    world: World, committed: CommitRecord
) -> None:
    store = world.store
    late = await world.take(CheckpointRef(1, 130))

    async def flip(point: str) -> None:
        if point == "after rename":
            await world.put_switch(2)

    world.store = PointedStore(store, flip)
    await world.commit(late, await world.register())
    scan = await scan_store(store)
    assert len(scan.found) == 2
    records = await world.records()
    for generation, uuid, gone in ((1, UUID, ()), (2, "other", ()), (2, UUID, (CheckpointRef(1, 130),))):
        now = JobSwitch(JOB, uuid, JobPhase.RUNNING, generation)
        assert await delete_uncommitted(store, scan, records, now) == gone
    assert [one.path for one in (await scan_store(store)).found] == [committed.path]
