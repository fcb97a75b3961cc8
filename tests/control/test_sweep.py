"""Sweeping a store while commits go on: only what can never be committed goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from recovery.formats.manifest import (
    MANIFEST_FILE,
    Manifest,
    ManifestFile,
    crc32c_of_bytes,
    encode_manifest,
)
from recovery.formats.paths import staging_path, stored_path
from recovery.formats.retention import GRACE_MS
from recovery.logs.segments import LOGS
from recovery.mount.layout import Place, links_path, live_path
from recovery.outputs.index import OUTPUTS
from recovery.retention.pins import mark
from recovery.stores.memory import MemoryCheckpointStore, Moment
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete, StoredDirectory
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord
from supervisor.contract.desired import Closing, DeletedJob, JobPhase, JobSwitch
from supervisor.contract.errors import StoreUnreachable
from supervisor.control.decide.facts.cluster_time import Ages
from supervisor.control.decide.plan import put
from supervisor.control.loop import sweep
from supervisor.control.loop.sweep import STAGING_AGE_MS, SWEEP_ENDED_MS, SWEEP_EVERY_MS, Sweeper
from tests.control.world import World
from tests.support.sinks import ListSink


class Held:
    """A clock that stands still."""

    ms = 1_000_000
    wall = 0

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.wall


class Busy(MemoryCheckpointStore):
    """Something happens right after the store was listed."""

    def __init__(self) -> None:
        super().__init__()
        self.after_list: Callable[[], None] = lambda: None

    async def list(self, path: str) -> StoredDirectory:
        found = await super().list(path)
        if not path:
            self.after_list()
        return found


class Room:
    """A job in generation 2, a sweeper and a store."""

    def __init__(self) -> None:
        self.world = World().start()
        self.world.end_task("ps.0", signal=9)
        self.world.until(lambda: self.world.switch().generation == 2)
        self.store = Busy()
        self.clock = Held()
        self.sink = ListSink()
        self.ages = Ages(0)
        coordination = MemoryCoordination(self.world.store)
        self.sweeper = Sweeper(coordination, lambda _uri: self.store, self.clock, self.sink)

    async def directory(self, generation: int, step: int, uuid: str = "uuid") -> str:
        ref = CheckpointRef(generation, step)
        path = stored_path(ref, "id")
        names = ("model.ckpt-1.data-00000-of-00001", "model.ckpt-1.index")
        files = tuple(ManifestFile(name, 1, crc32c_of_bytes(b"x")) for name in names)
        manifest = Manifest(uuid, "digits", ref, None, "n0", "i0", "model.ckpt-1", 0, files)
        for name in names:
            await self.store.write_bytes(f"{path}/{name}", b"x")
        await self.store.write_bytes(f"{path}/{MANIFEST_FILE}", encode_manifest(manifest))
        return path

    def record(self, generation: int, step: int) -> None:
        ref = CheckpointRef(generation, step)
        path = stored_path(ref, "id")
        record = CommitRecord("uuid", ref, None, path, 1, "00000000", "n0", "i0", 0)
        self.world.write(put(keys.commit("digits", ref), record))

    async def sweep(self) -> set[str]:
        await self.sweeper.sweep(self.world.token, "digits", "uuid", "memory://", self.ages)
        return set((await MemoryCheckpointStore.list(self.store, "")).directories)


@pytest.fixture
async def room() -> Room:
    made = Room()
    await made.store.prepare()
    return made


async def test_what_an_older_generation_left_uncommitted_goes(room: Room) -> None:
    lost, kept = await room.directory(1, 10), await room.directory(1, 20)
    room.record(1, 20)
    left = await room.sweep()
    assert lost not in left
    assert kept in left


async def test_what_may_still_be_committed_stays(room: Room) -> None:
    current, foreign = await room.directory(2, 10), await room.directory(1, 30, "another")
    assert {current, foreign} <= await room.sweep()


async def test_an_earlier_life_that_was_ended_for_good_goes_after_its_grace(room: Room) -> None:
    old, stranger = await room.directory(1, 30, "before"), await room.directory(1, 40, "another")
    held = room.world.job().record
    room.world.write(put(held.key, replace(held.value, former=("before",))))
    room.ages = Ages(held.value.submitted_ms + GRACE_MS)
    assert {old, stranger} <= await room.sweep()
    room.ages = Ages(room.ages.now_ms + 1)
    left = await room.sweep()
    assert old not in left
    assert stranger in left


async def test_outputs_go_with_the_life_of_the_job_that_wrote_them(room: Room) -> None:
    uuid = room.world.job().record.value.uuid
    for life in (uuid, "before", "another"):
        await room.store.write_bytes(f"{OUTPUTS}/{life}/worker.0/index/0000000001", b"{}")
    held = room.world.job().record
    room.world.write(put(held.key, replace(held.value, former=("before",))))
    room.ages = Ages(held.value.submitted_ms + GRACE_MS)
    await room.sweep()
    assert (await room.store.list(OUTPUTS)).directories == tuple(sorted((uuid, "before", "another")))
    room.ages = Ages(room.ages.now_ms + 1)
    await room.sweep()
    assert (await room.store.list(OUTPUTS)).directories == tuple(sorted((uuid, "another")))


async def test_logs_go_with_the_life_of_the_job_and_when_it_is_deleted(room: Room) -> None:
    uuid = room.world.job().record.value.uuid
    for life in (uuid, "before", "another"):
        await room.store.write_bytes(f"{LOGS}/{life}/worker.0/g1.1/segment", b"")
    held = room.world.job().record
    room.world.write(put(held.key, replace(held.value, former=("before",))))
    room.ages = Ages(held.value.submitted_ms + GRACE_MS + 1)
    await room.sweep()
    assert (await room.store.list(LOGS)).directories == tuple(sorted((uuid, "another")))
    deleted = DeletedJob("digits", uuid, 2, store_uri="memory://")
    assert room.sweeper.logs_due(deleted)
    await room.sweeper.delete_logs(deleted)
    assert (await room.store.list(LOGS)).directories == ("another",)
    # A node has sent the rest late.
    assert not room.sweeper.logs_due(deleted)
    await room.store.write_bytes(f"{LOGS}/{uuid}/worker.0/g1.1/segment", b"")
    room.clock.ms += SWEEP_EVERY_MS
    assert room.sweeper.logs_due(deleted)
    await room.sweeper.delete_logs(deleted)
    assert (await room.store.list(LOGS)).directories == ("another",)


async def test_a_store_of_a_deleted_job_that_hangs_is_given_up_for_a_while(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_operation: str, _path: str, _moment: Moment) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(sweep, "LOGS_S", 0.05)
    room.store.hook = hang
    deleted = DeletedJob("digits", "gone", 2, store_uri="memory://")
    async with asyncio.timeout(10):
        await room.sweeper.delete_logs(deleted)
    assert not room.sweeper.logs_due(deleted)
    assert not room.sweeper.logs_due(replace(deleted, store_uri=""))
    assert any("cannot be removed now" in line for _, line, _ in room.sink.lines)


async def test_what_is_pinned_of_an_earlier_life_stays_until_it_is_not(room: Room) -> None:
    """Its record went with `--fresh`; the note beside it did not."""
    old, kept = await room.directory(1, 30, "before"), await room.directory(1, 40, "before")
    await mark(room.store, kept, pinned=True)
    held = room.world.job().record
    room.world.write(put(held.key, replace(held.value, former=("before",))))
    room.ages = Ages(10 * GRACE_MS)
    left = await room.sweep()
    assert old not in left
    assert kept in left
    await mark(room.store, kept, pinned=False)
    assert kept not in await room.sweep()


async def test_nothing_of_an_earlier_life_goes_while_the_records_are_lost(room: Room) -> None:
    old = await room.directory(1, 30, "before")
    held = room.world.job().record
    base = replace(room.world.switch(), base=CheckpointRef(1, 45))
    room.world.write(
        put(held.key, replace(held.value, former=("before",))),
        put(keys.switch("digits"), base),
        Delete(keys.head("digits")),
    )
    room.ages = Ages(10 * GRACE_MS)
    assert old in await room.sweep()


async def test_a_commit_between_the_listing_and_the_reading_is_seen(room: Room) -> None:
    path = await room.directory(1, 40)
    room.store.after_list = lambda: room.record(1, 40)
    assert path in await room.sweep()


async def test_nothing_goes_while_the_records_are_lost(room: Room) -> None:
    """A job that started from a checkpoint has a head; without one, the store is all that is left of it."""
    path = await room.directory(1, 45)
    base = replace(room.world.switch(), base=CheckpointRef(1, 45))
    room.world.write(put(keys.switch("digits"), base), Delete(keys.head("digits")))
    assert path in await room.sweep()
    room.world.commit(1, 40)
    assert path not in await room.sweep()


async def test_a_deposed_leader_deletes_nothing(room: Room) -> None:
    path = await room.directory(1, 50)
    old = room.world.token
    room.world.new_leader()
    await room.sweeper.sweep(old, "digits", "uuid", "memory://", room.ages)
    assert path in set((await room.store.list("")).directories)


async def staging(room: Room) -> set[str]:
    await room.sweep()
    return {f".staging/{name}" for name in (await room.store.list(".staging")).directories}


async def test_staging_goes_with_its_generation_whatever_any_clock_says(room: Room) -> None:
    old, new, later = (staging_path(CheckpointRef(generation, 5), "id") for generation in (1, 2, 3))
    for path in (old, new, later):
        await room.store.write_bytes(f"{path}/x", b"x")
    assert await staging(room) == {new, later}


async def test_what_a_commit_in_force_left_goes_when_it_was_seen_for_a_day(room: Room) -> None:
    path = staging_path(CheckpointRef(2, 5), "id")
    await room.store.write_bytes(f"{path}/x", b"x")
    assert await staging(room) == {path}
    room.clock.ms += STAGING_AGE_MS
    assert await staging(room) == {path}
    room.clock.ms += 1
    assert await staging(room) == set()
    # Another one of that name, which cannot be, would be as new.
    await room.store.write_bytes(f"{path}/x", b"x")
    assert await staging(room) == {path}


async def test_the_only_copy_of_a_mounted_save_stays(room: Room) -> None:
    ref = CheckpointRef(2, 5)
    path = staging_path(ref, "id")
    place = Place(stored_path(ref, "id"), path.removeprefix(".staging/"))
    link = f"{links_path(live_path(2, room.world.switch().plan_id))}/model.index/{place.name}"
    for each in (path, link):
        await room.store.write_bytes(f"{each}/x", b"x")
    assert await staging(room) == {path}
    room.clock.ms += 10 * STAGING_AGE_MS
    assert await staging(room) == {path}
    await room.store.delete_tree(link)
    assert await staging(room) == {path}
    room.clock.ms += STAGING_AGE_MS + 1
    assert await staging(room) == set()


async def test_a_job_is_swept_once_a_minute_and_not_while_its_switch_is_closed(room: Room) -> None:
    job = room.world.job()
    assert room.sweeper.due(job)
    await room.sweep()
    assert not room.sweeper.due(job)
    room.clock.ms += SWEEP_EVERY_MS
    assert room.sweeper.due(job)
    room.world.write(put(keys.switch("digits"), _closed(room)))
    assert not room.sweeper.due(room.world.job())


async def test_a_job_that_has_ended_is_swept_once_an_hour(room: Room) -> None:
    left = await room.directory(1, 60)
    ended = replace(room.world.switch(), phase=JobPhase.STOPPED)
    room.world.write(put(keys.switch("digits"), ended))
    assert not room.sweeper.due(room.world.job()), "not all at once when a leader begins"
    room.clock.ms += SWEEP_ENDED_MS
    assert room.sweeper.due(room.world.job())
    assert left not in await room.sweep()
    assert not room.sweeper.due(room.world.job())
    room.world.write(put(keys.switch("digits"), replace(ended, phase=JobPhase.STOPPING)))
    room.clock.ms += SWEEP_ENDED_MS
    assert not room.sweeper.due(room.world.job()), "its last checkpoint is being committed"


async def test_a_job_is_swept_when_it_has_just_ended(room: Room) -> None:
    """Chaos: the node of a dead committer was lost, and the job ended before the next sweep."""
    left = staging_path(CheckpointRef(1, 60), "id")
    await room.store.write_bytes(f"{left}/x", b"x")
    room.world.write(put(keys.switch("digits"), replace(room.world.switch(), generation=2)))
    assert room.sweeper.due(room.world.job())
    await room.sweep()
    await room.store.write_bytes(f"{left}/x", b"x")
    assert not room.sweeper.due(room.world.job())
    ended = replace(room.world.switch(), phase=JobPhase.STOPPED)
    room.world.write(put(keys.switch("digits"), ended))
    assert room.sweeper.due(room.world.job())
    assert await staging(room) == set()
    assert not room.sweeper.due(room.world.job())


def away() -> None:
    raise StoreUnreachable("the store is away")


async def test_an_end_that_was_not_swept_is_tried_again_after_a_minute(room: Room) -> None:
    left = staging_path(CheckpointRef(1, 60), "id")
    await room.store.write_bytes(f"{left}/x", b"x")
    assert room.sweeper.due(room.world.job())
    ended = replace(room.world.switch(), phase=JobPhase.STOPPED)
    room.world.write(put(keys.switch("digits"), ended))
    assert room.sweeper.due(room.world.job())
    room.store.after_list = away
    await room.sweep()
    room.store.after_list = lambda: None
    assert not room.sweeper.due(room.world.job()), "not again and again"
    room.clock.ms += SWEEP_EVERY_MS
    assert room.sweeper.due(room.world.job())
    assert await staging(room) == set()
    room.clock.ms += SWEEP_EVERY_MS
    assert not room.sweeper.due(room.world.job())


async def test_an_end_that_comes_while_its_job_is_swept_has_a_sweep_of_its_own(room: Room) -> None:
    left = staging_path(CheckpointRef(1, 60), "id")

    def end() -> None:
        room.store.after_list = lambda: None
        room.world.write(put(keys.switch("digits"), replace(room.world.switch(), phase=JobPhase.STOPPED)))
        assert not room.sweeper.due(room.world.job()), "one at a time"

    assert room.sweeper.due(room.world.job())
    room.store.after_list = end
    await room.sweep()
    await room.store.write_bytes(f"{left}/x", b"x")
    assert room.sweeper.due(room.world.job())
    assert await staging(room) == set()
    assert not room.sweeper.due(room.world.job())


async def test_a_job_that_was_removed_before_it_ended_is_forgotten(room: Room) -> None:
    assert room.sweeper.due(room.world.job())
    room.sweeper.keep({"uuid"})
    ended = replace(room.world.switch(), phase=JobPhase.STOPPED)
    room.world.write(put(keys.switch("digits"), ended))
    assert room.sweeper.due(room.world.job()), "it is still there"
    room.sweeper.keep(set())
    assert not room.sweeper.due(room.world.job())


def _closed(room: Room) -> JobSwitch:
    return replace(room.world.switch(), phase=JobPhase.RUNNING, closing=Closing("p", None))
