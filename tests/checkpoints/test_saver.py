"""The saver's node through the life of a generation: attempts die and come back, commits go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from agent.checkpoints.local_copies import LocalCopies
from agent.checkpoints.saver import Saver, SaverSite, Watcher
from recovery.commit.bundle_outbox import CheckpointWatcher
from recovery.commit.outbox import OUTBOX, SavingJob, TakenCheckpoint, generation_directory, outbox_directory
from recovery.commit.plain_outbox import PlainWatcher
from recovery.commit.stage import BASES
from recovery.families.watch_rule import Idle, Unfinished, Unusable
from supervisor.contract.boundaries import ModifiedAt
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import OutOfSpace, Refused, StoreUnreachable, TfSupervisorError
from tests.checkpoints.moody_store import MoodyStore
from tests.checkpoints.world import COMMIT, JOB, NODE, UUID, InlineExecutor, World, save
from tests.support.clocks import ManualClock
from tests.support.sinks import ListSink
from tests.support.waiting import until

P = ParamSpec("P")
T = TypeVar("T")
WAIT_S = 10


class Commits(ListSink):
    """Hands out the names of committed checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self._names: asyncio.Queue[object] = asyncio.Queue()

    def info(self, event: str, **fields: object) -> object:
        if event == "checkpoint committed":
            self._names.put_nowait(fields["checkpoint"])
        return super().info(event, **fields)

    async def next(self) -> object:
        async with asyncio.timeout(WAIT_S):
            return await self._names.get()


@pytest.fixture
def sink() -> Commits:
    return Commits()


@pytest.fixture
async def site(world: World, sink: Commits) -> SaverSite:
    identity = await world.register()
    node = await world.coordination.get(identity.compare.key)
    assert node is not None
    fence = ModifiedAt(node.key, node.mod_revision)
    await world.put_switch(1)
    return SaverSite(
        NODE,
        "i1",
        world.parent,
        world.store,
        world.coordination,
        world.clock,
        sink,
        lambda: fence,
        world.next_id,
        lambda: 1,
        LocalCopies(world.parent.parent),
    )


@pytest.fixture
async def saver(site: SaverSite) -> AsyncIterator[Saver]:
    made = Saver(COMMIT, site)
    made.start()
    yield made
    made.stop()


async def test_a_saver_that_comes_back_in_place_commits_again(
    world: World, saver: Saver, sink: Commits
) -> None:
    save(world.parent, CheckpointRef(1, 10))
    assert await sink.next() == "g1-s10"
    save(world.parent, CheckpointRef(1, 20))
    await saver.drain(WAIT_S * 1000, clean=False)
    assert {record.ref.step for record in await world.records()} == {10, 20}
    save(world.parent, CheckpointRef(1, 30))
    assert [await sink.next(), await sink.next()] == ["g1-s20", "g1-s30"]


async def test_attempts_that_end_within_one_commit_are_drained_one_after_the_other(
    world: World, saver: Saver, sink: Commits
) -> None:
    save(world.parent, CheckpointRef(1, 10))
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(saver.drain(WAIT_S * 1000, clean=False))
    running = [task for task in asyncio.all_tasks() if "Saver._" in str(task.get_coro()) and not task.done()]
    assert set(running) == set(saver._tasks)
    save(world.parent, CheckpointRef(1, 20))
    assert [await sink.next(), await sink.next()] == ["g1-s10", "g1-s20"]


async def test_a_drain_does_not_outlive_the_generation(world: World, saver: Saver) -> None:
    saver.stop()
    left = await saver.drain(WAIT_S * 1000, clean=False)
    assert left, "a look that was broken off is none"
    save(world.parent, CheckpointRef(1, 10))
    await asyncio.sleep(0)
    assert all(task.done() for task in saver._tasks)


async def test_what_cannot_be_used_is_said_in_the_beat_until_it_can(
    world: World, saver: Saver, sink: Commits
) -> None:
    save(world.parent, CheckpointRef(1, 10))
    path = generation_directory(world.parent, 1) / "model.ckpt-10.index"
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    await until(lambda: saver.beat().unusable != ())
    assert saver.beat().unusable[0].path == "model.ckpt-10"
    assert (await saver.drain(WAIT_S * 1000, clean=True)).startswith("model.ckpt-10 (")
    path.write_bytes(whole)
    assert await sink.next() == "g1-s10"
    assert saver.beat().unusable == ()
    assert not await saver.drain(WAIT_S * 1000, clean=True)


class FullDisk(Saver):
    """Cannot take anything at its first looks."""

    left = 3
    error: Refused = OutOfSpace("no space left on device")

    async def _look(self, watcher: Watcher) -> TakenCheckpoint | Idle | Unfinished | Unusable:
        if self.left:
            self.left -= 1
            raise self.error
        return await super()._look(watcher)


@pytest.mark.parametrize("error", [OutOfSpace("no space left on device"), Refused("permission denied")])
async def test_a_full_disk_is_told_once_and_not_ten_times_a_second(
    world: World, site: SaverSite, sink: Commits, error: Refused
) -> None:
    """Of what may not be read, no other job's copies are removed."""
    other = CheckpointRef(1, 3)
    outbox_directory(world.parent.parent / "other", other).mkdir(parents=True)
    await site.copies.committed("other", other, 100)
    saver = FullDisk(COMMIT, site)
    saver.error = error
    saver.start()
    save(world.parent, CheckpointRef(1, 10))
    assert await sink.next() == "g1-s10"
    saver.stop()
    kept = outbox_directory(world.parent.parent / "other", other).exists()
    assert kept != isinstance(error, OutOfSpace)
    said = [event for _, event, _ in sink.lines if event.startswith("checkpoints cannot be taken")]
    assert said == ["checkpoints cannot be taken; trying again", "checkpoints cannot be taken: this is over"]


# A store that is slow, silent, or full.


@pytest.fixture
async def moody(world: World) -> MoodyStore:
    store = MoodyStore()
    await store.prepare()
    world.store = store
    return store


def _waits_for(saver: Saver, ref: CheckpointRef) -> bool:
    return saver.beat().pending == ref


def events(sink: Commits, level: str) -> list[str]:
    return [event for found, event, _ in sink.lines if found == level]


@pytest.fixture
def steady(moody: MoodyStore, site: SaverSite) -> SaverSite:
    return replace(site, store=moody)


only_once = pytest.mark.parametrize("store", ["memory"], indirect=True)


@only_once
@pytest.mark.parametrize("error", [StoreUnreachable("no answer"), Refused("the quota is used up")])
async def test_trouble_is_said_twice_however_often_it_is_met(
    world: World, moody: MoodyStore, steady: SaverSite, sink: Commits, error: TfSupervisorError
) -> None:
    moody.error = error
    saver = Saver(COMMIT, steady)
    saver.start()
    save(world.parent, CheckpointRef(1, 10))
    await until(lambda: moody.uploads >= 4 and bool(saver.beat().trouble))
    beat = saver.beat()
    assert beat.pending == CheckpointRef(1, 10)
    assert str(error) in beat.trouble
    assert beat.trouble_ms >= 0
    assert beat.waiting_ms >= 0
    moody.error = None
    assert await sink.next() == "g1-s10"
    saver.stop()
    assert events(sink, "warning") == ["checkpoints cannot be committed; trying again"]
    assert "checkpoints cannot be committed: this is over" in events(sink, "info")
    beat = saver.beat()
    assert (beat.pending, beat.trouble, beat.waiting_ms, beat.still_ms) == (None, "", -1, -1)


@only_once
async def test_a_quota_that_is_reached_leaves_nothing_half_and_nothing_older_goes(
    world: World, moody: MoodyStore, steady: SaverSite, sink: Commits
) -> None:
    saver = Saver(COMMIT, steady)
    saver.start()
    save(world.parent, CheckpointRef(1, 10))
    assert await sink.next() == "g1-s10"
    before = dict(moody.disk.files)
    moody.error = Refused("the quota is used up")
    save(world.parent, CheckpointRef(1, 20))
    await until(lambda: bool(saver.beat().trouble))
    assert moody.disk.files == before
    saver.stop()


@only_once
async def test_a_save_whose_copy_is_damaged_while_it_waits_is_told_of_and_taken_anew(
    tmp_path: Path, moody: MoodyStore, steady: SaverSite, sink: Commits
) -> None:
    parent = tmp_path / UUID
    saver = Saver(COMMIT, replace(steady, parent=parent, copies=LocalCopies(tmp_path)))
    saver.start()
    moody.error = StoreUnreachable("away")
    save(parent, CheckpointRef(1, 10))
    await until(lambda: moody.uploads > 0)
    copy = outbox_directory(parent, CheckpointRef(1, 10)) / "model.ckpt-10.index"
    copy.write_bytes(bytes(copy.stat().st_size))
    moody.error = None
    assert await sink.next() == "g1-s10"
    told = [fields for _, event, fields in sink.lines if event == "a save cannot be committed"]
    assert [fields["checkpoint"] for fields in told] == ["model.ckpt-10"]
    assert saver.beat().unusable == ()
    saver.stop()


@only_once
async def test_the_newest_save_wins_and_the_others_are_counted(
    world: World, moody: MoodyStore, steady: SaverSite, sink: Commits
) -> None:
    clock, seen_ms = ManualClock(), list[int]()
    saver = Saver(COMMIT, replace(steady, clock=clock, took=lambda _, seen: seen_ms.append(seen)))
    saver.start()
    moody.go.clear()
    first_ms = clock.ms
    save(world.parent, CheckpointRef(1, 10))
    await until(lambda: moody.uploads > 0)
    clock.ms += 1000
    for step in (20, 30, 40):
        ref = CheckpointRef(1, step)
        save(world.parent, ref)
        await until(partial(_waits_for, saver, ref))
    beat = saver.beat()
    assert (beat.skipped, beat.last_skipped) == (2, CheckpointRef(1, 30))
    moody.go.set()
    clock.ms += 1000
    assert [await sink.next(), await sink.next()] == ["g1-s10", "g1-s40"]
    assert saver.beat().skipped == 2
    await until(lambda: seen_ms == [first_ms, first_ms + 1000])
    saver.stop()


@only_once
async def test_at_the_end_a_commit_that_moves_gets_more_than_its_time(
    world: World, moody: MoodyStore, steady: SaverSite, sink: Commits
) -> None:
    clock = ManualClock()
    saver = Saver(COMMIT, replace(steady, clock=clock))
    saver.start()
    moody.go.clear()
    save(world.parent, CheckpointRef(1, 10))
    await until(lambda: moody.uploads > 0)
    draining = asyncio.create_task(saver.drain(300, clean=True))
    for _ in range(20):
        clock.ms += 50
        saver._committer._motion(1)
        await asyncio.wait({draining}, timeout=0.05)
    assert not draining.done()
    moody.go.set()
    await draining
    assert {record.ref.step for record in await world.records()} == {10}
    saver.stop()


class SlowReader(Saver):
    """Its last look takes long, and moves."""

    left = 20

    async def _look(self, watcher: Watcher) -> TakenCheckpoint | Idle | Unfinished | Unusable:
        assert isinstance(watcher, CheckpointWatcher)
        assert isinstance(self._site.clock, ManualClock)
        while self._ending is not None and self.left:
            self.left -= 1
            self._site.clock.ms += 50
            watcher.motion(1)
            await asyncio.sleep(0.05)
        return await super()._look(watcher)


async def test_at_the_end_a_save_that_takes_long_to_verify_is_not_given_up(
    world: World, site: SaverSite
) -> None:
    saver = SlowReader(COMMIT, replace(site, clock=ManualClock()))
    saver.start()
    save(world.parent, CheckpointRef(1, 10))
    await saver.drain(400, clean=True)
    assert saver.left == 0
    assert {record.ref.step for record in await world.records()} == {10}
    saver.stop()


@only_once
@pytest.mark.parametrize("error", [None, StoreUnreachable("no answer")])
async def test_at_the_end_a_commit_that_stands_still_or_fails_is_given_up(
    world: World, moody: MoodyStore, steady: SaverSite, sink: Commits, error: TfSupervisorError | None
) -> None:
    saver = Saver(COMMIT, steady)
    saver.start()
    moody.error = error
    if error is None:
        moody.go.clear()
    save(world.parent, CheckpointRef(1, 10))
    await until(lambda: moody.uploads > 0)
    await saver.drain(200, clean=True)
    told = [
        fields
        for _, event, fields in sink.lines
        if event == "the time for a commit is over: the save stays on this node"
    ]
    (given_up,) = [fields for fields in told if fields["checkpoint"] == "g1-s10"]
    assert Path(str(given_up["kept"])).is_dir()
    assert saver.pending is not None
    moody.error = None
    moody.go.set()
    assert await sink.next() == "g1-s10", "it is still tried, until the generation is over"
    saver.stop()


@only_once
async def test_before_the_agent_ends_what_waits_is_committed(
    world: World, moody: MoodyStore, steady: SaverSite, sink: Commits
) -> None:
    saver = Saver(COMMIT, steady)
    saver.start()
    moody.error = StoreUnreachable("no answer")
    save(world.parent, CheckpointRef(1, 10))
    await until(lambda: moody.uploads >= 3)
    settling = asyncio.create_task(saver.settle(WAIT_S * 1000))
    await asyncio.wait({settling}, timeout=0.05)
    moody.error = None
    await settling
    assert {record.ref.step for record in await world.records()} == {10}
    saver.stop()
    assert not [event for event in events(sink, "warning") if event.startswith("the time for")]


# What else may go wrong in the background.


@only_once
async def test_what_is_skipped_takes_no_room_however_long_the_store_is_away(
    tmp_path: Path, moody: MoodyStore, steady: SaverSite
) -> None:
    parent = tmp_path / UUID
    saver = Saver(COMMIT, replace(steady, parent=parent, copies=LocalCopies(tmp_path)))
    saver.start()
    moody.go.clear()
    save(parent, CheckpointRef(1, 10))
    await until(lambda: moody.uploads > 0)
    for step in (20, 30, 40):
        ref = CheckpointRef(1, step)
        save(parent, ref)
        await until(partial(_waits_for, saver, ref))
    outbox = parent / OUTBOX
    await until(lambda: sorted(entry.name for entry in outbox.iterdir()) == ["g1-s10", "g1-s40"])
    moody.go.set()
    await until(lambda: saver.pending is None)
    saver.stop()


@only_once
async def test_a_base_that_cannot_be_read_at_the_start_does_not_end_the_commits(
    world: World, site: SaverSite, sink: Commits
) -> None:
    note = world.parent / BASES / "g1.json"
    note.mkdir(parents=True)
    saver = Saver(COMMIT, site)
    saver.start()
    save(world.parent, CheckpointRef(1, 10))
    await until(lambda: bool(saver.beat().trouble))
    note.rmdir()
    assert await sink.next() == "g1-s10"
    saver.stop()


class Faulty(Saver):
    """Has a fault of its own."""

    async def _look(self, watcher: Watcher) -> TakenCheckpoint | Idle | Unfinished | Unusable:
        raise ValueError("a fault of ours")


@only_once
async def test_a_fault_of_ours_does_not_end_the_commits_in_silence(site: SaverSite) -> None:
    saver = Faulty(COMMIT, site)
    saver.start()
    await asyncio.wait(saver._tasks[:1], timeout=WAIT_S)
    with pytest.raises(ValueError, match="a fault of ours"):
        saver.beat()
    saver.stop()


class Gate(InlineExecutor):
    """A thread in which nothing begins until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.work: list[Callable[[], object]] = []

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        later: Future[T] = Future()
        self.work.append(lambda: later.set_result(fn(*args, **kwargs)))
        return later


@only_once
@pytest.mark.parametrize("plain", [False, True])
async def test_what_a_look_took_for_a_caller_that_went_away_the_next_caller_gets(
    world: World, plain: bool
) -> None:
    gate = Gate()
    job = SavingJob(UUID, JOB, NODE, "i1")
    tensors = CheckpointWatcher(world.parent, job, 1, None, world.clock, gate)
    files = PlainWatcher(world.parent, job, 1, None, ("model.ckpt-{step}.*",), world.clock, gate)
    look = partial(files.look, 0, final=True, clean=True) if plain else partial(tensors.look, final=True)
    save(world.parent, CheckpointRef(1, 10))
    first = asyncio.create_task(look())
    await until(lambda: bool(gate.work))
    first.cancel()
    await asyncio.wait({first})
    second = asyncio.create_task(look())
    await asyncio.sleep(0)
    assert len(gate.work) == 1, "one at a time"
    gate.work.pop()()
    found = await second
    assert isinstance(found, TakenCheckpoint)
    assert found.manifest.ref == CheckpointRef(1, 10)


# Local copies.


async def test_copies_stay_within_the_budget_and_the_newest_go_last(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path, budget_bytes=250)

    async def committed(job: str, step: int) -> None:
        ref = CheckpointRef(1, step)
        outbox_directory(tmp_path / job, ref).mkdir(parents=True)
        await copies.committed(job, ref, 100)

    def kept() -> set[str]:
        return {f"{path.parent.parent.name}/{path.name}" for path in tmp_path.glob("*/.outbox/*")}

    for step in (1, 2, 3):
        await committed("a", step)
    assert kept() == {"a/g1-s2", "a/g1-s3"}
    outbox_directory(tmp_path / "b", CheckpointRef(1, 9)).mkdir(parents=True)
    await committed("b", 5)
    assert kept() == {"a/g1-s3", "b/g1-s5", "b/g1-s9"}, "what is not committed yet is never dropped"
    assert await copies.make_room()
    assert kept() == {"b/g1-s9"}
    assert not await copies.make_room()
