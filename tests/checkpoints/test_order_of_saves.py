"""The newest save of a family, whatever clocks, copies and restarts of the agent do to the files."""

from __future__ import annotations

import os
import random
import shutil
from itertools import permutations
from pathlib import Path
from typing import SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.commit import sight as sights
from recovery.commit.bundle_outbox import CheckpointWatcher
from recovery.commit.outbox import SavingJob, TakenCheckpoint, generation_directory
from recovery.families.families import (
    MORE_REMEMBERED,
    Family,
    FirstSeen,
    Save,
    Sight,
    StateFile,
    is_newer,
    saves_in,
)
from recovery.families.watch_rule import FileMark, Idle, Unfinished, Unusable
from recovery.formats.tf_files import MAX_STEP, FileSet, render_state
from supervisor.contract.checkpoint import CheckpointRef
from tests.checkpoints.saves import committed_and_staged, put, taken
from tests.checkpoints.world import JOB, NODE, UUID, World

HOUR_NS = 3600 * 10**9
MODEL = Family("", "model")


def set_back(directory: Path, prefix: str, by_ns: int = HOUR_NS) -> None:
    """The files of a save, and what names it, look as if they had been written earlier."""
    for path in (*directory.glob(f"{prefix}.*"), directory / "checkpoint"):
        if path.exists():
            mtime_ns = path.stat().st_mtime_ns - by_ns
            os.utime(path, ns=(mtime_ns, mtime_ns))


def saved(number: int, *, turn: int, time_ns: int, named: bool = False) -> Save:
    prefix = f"model-{number}"
    index, shard = f"{prefix}.index", f"{prefix}.data-00000-of-00001"
    marks = (FileMark(shard, 1, time_ns, number), FileMark(index, 1, time_ns, number))
    return Save(FileSet(prefix, index, (shard,)), marks, named=named, turn=turn)


async def all_looks(watcher: CheckpointWatcher, looks: int = 60) -> list[TakenCheckpoint | Unusable]:
    seen = [await watcher.look() for _ in range(looks)]
    return [each for each in seen if isinstance(each, TakenCheckpoint | Unusable)]


# Clocks.


@pytest.mark.parametrize("state", [True, False])
async def test_saves_go_on_being_taken_after_the_clock_was_set_back(world: World, state: bool) -> None:
    directory = generation_directory(world.parent, 1)
    watcher = world.watcher(1)
    put(directory, "model-1", "a", state=state)
    assert (await taken(watcher)).manifest.prefix == "model-1"
    for number in (2, 3):
        put(directory, f"model-{number}", f"w{number}", state=state)
        set_back(directory, f"model-{number}")
        assert (await taken(watcher)).manifest.prefix == f"model-{number}"
    put(directory, "model-4", "last", state=state)
    set_back(directory, "model-4", 2 * HOUR_NS)
    last = await watcher.look(final=True)
    assert isinstance(last, TakenCheckpoint)
    assert last.manifest.prefix == "model-4"
    assert isinstance(await watcher.look(final=True), Idle)


async def test_a_base_that_was_staged_before_the_clock_was_set_back_hides_no_save(world: World) -> None:
    put(generation_directory(world.parent, 1), "model-10", "base")
    watcher = world.watcher(1)
    directory = await committed_and_staged(world, watcher)
    base = (await taken(world.watcher(1))).manifest
    watcher = world.watcher(2, base)
    assert isinstance(await watcher.look(), Idle)
    put(directory, "model-20", "new")
    set_back(directory, "model-20")
    found = (await taken(watcher)).manifest
    assert (found.prefix, found.ref) == ("model-20", CheckpointRef(2, 20))


async def test_an_agent_that_begins_anew_finds_the_newest_of_before_and_after_the_clock_was_set_back(
    world: World,
) -> None:
    directory = generation_directory(world.parent, 1)
    put(directory, "model-1", "a")
    await taken(world.watcher(1))
    put(directory, "model-2", "b")
    set_back(directory, "model-2")
    found = await world.watcher(1).look(final=True)
    assert isinstance(found, TakenCheckpoint)
    assert found.manifest.prefix == "model-2", "its number and the state file outweigh its time"


async def test_a_name_that_is_overwritten_is_taken_after_the_clock_was_set_back(world: World) -> None:
    directory = generation_directory(world.parent, 1)
    watcher = world.watcher(1)
    for number in range(3):
        put(directory, "mlp.ckpt", f"w{number}")
        set_back(directory, "mlp.ckpt", number * HOUR_NS)
        assert (await taken(watcher)).manifest.ref.step == number + 1


# Copies.


@pytest.mark.parametrize("state", [True, False])
async def test_a_save_that_is_copied_in_with_its_old_time_is_taken(
    world: World, tmp_path: Path, state: bool
) -> None:
    scratch, directory = tmp_path / "scratch", generation_directory(world.parent, 1)
    put(scratch, "model-2", "copied", state=False)
    put(directory, "model-1", "a", state=state)
    watcher = world.watcher(1)
    await taken(watcher)
    for path in sorted(scratch.iterdir()):
        shutil.copy2(path, directory / path.name)
        os.utime(directory / path.name, ns=(1, 1))
    if state:
        (directory / "checkpoint").write_bytes(render_state("model-2"))
    assert (await taken(watcher)).manifest.prefix == "model-2"


async def test_old_saves_that_are_copied_over_themselves_are_no_newer_ones(
    world: World, tmp_path: Path
) -> None:
    scratch, directory = tmp_path / "scratch", generation_directory(world.parent, 1)
    watcher = world.watcher(1)
    for number in range(1, 4):
        put(scratch, f"model-{number}", f"w{number}")
        shutil.copytree(scratch, directory, dirs_exist_ok=True)
        assert (await taken(watcher)).manifest.prefix == f"model-{number}"
    for path in sorted(scratch.glob("model-1.*")):
        shutil.copyfile(path, directory / path.name)
    assert await all_looks(watcher) == []


async def test_an_older_save_is_not_taken_when_the_newest_is_removed(world: World) -> None:
    directory = generation_directory(world.parent, 1)
    watcher = world.watcher(1)
    for number in (1, 2):
        put(directory, f"model-{number}", "w", state=False)
        await taken(watcher)
    for path in directory.glob("model-2.*"):
        path.unlink()
    assert await all_looks(watcher) == []


async def test_a_step_that_begins_anew_is_the_newest_also_without_a_state_file(world: World) -> None:
    directory = generation_directory(world.parent, 1)
    watcher = world.watcher(1)
    for number in (100, 5, 6):
        put(directory, f"model-{number}", "w", state=False)
        assert (await taken(watcher)).manifest.prefix == f"model-{number}"


# The rule.


def test_two_witnesses_of_three_are_right() -> None:
    named = saved(1, turn=0, time_ns=5, named=True)
    higher, later = saved(2, turn=0, time_ns=5), saved(1, turn=1, time_ns=1)
    assert is_newer(higher, saved(1, turn=0, time_ns=5))
    assert is_newer(later, saved(1, turn=0, time_ns=5)), "what was seen first is older, whatever its time is"
    assert is_newer(saved(1, turn=0, time_ns=6), saved(1, turn=0, time_ns=5))
    assert is_newer(saved(2, turn=1, time_ns=1), named), "it was finished, and not named yet"
    assert is_newer(saved(2, turn=0, time_ns=5, named=True), saved(1, turn=1, time_ns=6))
    assert is_newer(named, saved(0, turn=1, time_ns=6)), "copied over itself"
    assert is_newer(saved(0, turn=1, time_ns=6, named=True), saved(9, turn=0, time_ns=5))
    assert is_newer(saved(0, turn=1, time_ns=1), saved(9, turn=0, time_ns=5)), "divided: the look tells"


@given(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3), st.booleans()),
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3), st.booleans()),
)
def test_of_two_saves_at_most_one_is_newer(
    one: tuple[int, int, int, bool], other: tuple[int, int, int, bool]
) -> None:
    first, second = (
        saved(number, turn=turn, time_ns=time_ns, named=named)
        for number, turn, time_ns, named in (one, other)
    )
    assert not (is_newer(first, second) and is_newer(second, first))


@given(st.randoms(use_true_random=False), st.booleans())
def test_saves_one_after_the_other_are_ordered_whatever_the_clock_shows(
    rng: random.Random, named: bool
) -> None:
    """A saver whose numbers rise, with a state file or without, looked at after each save."""
    first_seen, marks = FirstSeen(), tuple[FileMark, ...]()
    for number in range(1, 8):
        marks += saved(number, turn=0, time_ns=rng.randrange(1000)).marks
        first_seen.see(marks)
        state = StateFile(FileMark("checkpoint", 1, 1, 1), f"model-{number}")
        sight = Sight(tuple(rng.sample(marks, len(marks))), {"": state} if named else {})
        newest = saves_in(sight, first_seen)[MODEL].newest
        assert newest is not None
        assert newest.prefix == f"model-{number}"


def test_all_orders_of_one_look_give_one_newest() -> None:
    marks = [saved(number, turn=0, time_ns=10 - number).marks for number in range(4)]
    for order in permutations(marks):
        newest = saves_in(Sight(tuple(mark for pair in order for mark in pair)))[MODEL].newest
        assert newest is not None
        assert newest.prefix == "model-0", "times alone tell"


@given(st.permutations(range(5)), st.integers(0, 4))
def test_one_save_is_the_newest_in_whatever_order_a_look_shows_them(numbers: list[int], named: int) -> None:
    """Three of them may each be newer than the next, in a ring."""
    first_seen, marks = FirstSeen(), tuple[FileMark, ...]()
    for number in numbers:
        marks += saved(number, turn=0, time_ns=1).marks
        first_seen.see(marks)
    state = {"": StateFile(FileMark("checkpoint", 1, 1, 1), f"model-{named}")}
    newest = {
        saves_in(Sight(order, state), first_seen)[MODEL].newest for order in (marks, tuple(reversed(marks)))
    }
    assert len(newest) == 1


def test_what_is_remembered_of_files_that_are_gone_is_bounded() -> None:
    first_seen = FirstSeen()
    for number in range(2 * MORE_REMEMBERED):
        marks = saved(number, turn=0, time_ns=1).marks
        first_seen.see(marks)
        assert first_seen.turn_of(marks) == number
    assert len(first_seen._turns) <= MORE_REMEMBERED + 4


# A family through an agent's restart.


@pytest.mark.parametrize("index", [b"torn", None])
async def test_a_family_that_is_torn_when_the_agent_begins_anew_stays_in_each_checkpoint(
    world: World, index: bytes | None
) -> None:
    directory = generation_directory(world.parent, 1)
    put(directory, "model-1", "m1")
    put(directory, "best", "whole", state=False)
    first = await taken(world.watcher(1))
    assert first.manifest.bundles == ("best", "model-1")
    (directory / "best.index").unlink()
    if index is not None:
        (directory / "best.index").write_bytes(index)
    put(directory, "model-2", "m2")
    watcher = world.watcher(1)
    found = [each for each in await all_looks(watcher) if isinstance(each, TakenCheckpoint)]
    assert [each.manifest.bundles for each in found[-1:]] == [("best", "model-2")]
    put(directory, "best", "again", state=False)
    again = await taken(watcher)
    assert again.manifest.bundles == ("best", "model-2")
    assert b"again" in (again.directory / "best.data-00000-of-00001").read_bytes()


async def test_a_family_of_the_base_that_is_torn_before_the_first_look_is_carried_from_this_nodes_copy(
    world: World,
) -> None:
    directory = generation_directory(world.parent, 1)
    put(directory, "model-1", "m1")
    put(directory, "best", "whole", state=False)
    staged = await committed_and_staged(world, world.watcher(1))
    base = (await taken(world.watcher(1))).manifest
    (staged / "best.index").unlink()
    (staged / "best.index").write_bytes(b"torn")
    put(staged, "model-2", "m2")
    seen = await all_looks(world.watcher(2, base))
    (found,) = (each for each in seen if isinstance(each, TakenCheckpoint))
    assert found.manifest.bundles == ("best", "model-2")


async def test_a_family_of_the_base_that_nothing_has_any_more_is_told(world: World) -> None:
    directory = generation_directory(world.parent, 1)
    put(directory, "model-1", "m1")
    put(directory, "best", "whole", state=False)
    staged = await committed_and_staged(world, world.watcher(1))
    taken_before = await taken(world.watcher(1))
    shutil.rmtree(taken_before.directory)
    (staged / "best.index").unlink()
    put(staged, "model-2", "m2")
    seen = await all_looks(world.watcher(2, taken_before.manifest))
    assert [each.manifest.bundles for each in seen if isinstance(each, TakenCheckpoint)] == [("model-2",)]
    told = [each for each in seen if isinstance(each, Unusable)]
    assert [each.prefix for each in told] == ["best"]
    assert "its last finished save is gone" in told[0].reason


async def test_what_was_written_over_while_no_agent_looked_is_not_carried(world: World) -> None:
    """Its index is as it was, and so is the size of its data: only the bytes tell."""
    directory = generation_directory(world.parent, 1)
    put(directory, "model-1", "m1")
    put(directory, "best", "whole", state=False)
    await taken(world.watcher(1))
    data = directory / "best.data-00000-of-00001"
    data.write_bytes(bytes(data.stat().st_size))
    put(directory, "model-2", "m2")
    seen = await all_looks(world.watcher(1))
    found = [each for each in seen if isinstance(each, TakenCheckpoint)]
    assert found[-1].manifest.bundles == ("model-2",)


async def test_a_look_that_was_cut_short_drops_no_family(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = generation_directory(world.parent, 1)
    put(directory, "model-1", "m1")
    put(directory, "sub/best", "whole", state=False)
    watcher = world.watcher(1)
    await taken(watcher)
    monkeypatch.setattr(sights, "MAX_ENTRIES", 4)
    assert not watcher._eyes.look().whole
    await watcher.look(final=True)
    assert Family("sub", "best") in watcher._families.parts


async def test_an_older_copy_of_this_node_is_not_offered_where_another_node_has_committed_since(
    world: World,
) -> None:
    put(generation_directory(world.parent, 1), "model-10", "w")
    await taken(world.watcher(1))
    for last_step, offered in ((10, True), (20, False)):
        job = SavingJob(UUID, JOB, NODE, "i1")
        watcher = CheckpointWatcher(world.parent, job, 1, None, world.clock, last_step=last_step)
        assert isinstance(await watcher.look(), TakenCheckpoint) is offered


# Names and speed.


async def test_a_name_with_the_time_is_of_one_family_and_tells_no_step(world: World) -> None:
    directory = generation_directory(world.parent, 1)
    watcher = world.watcher(1)
    for number in range(3):
        put(directory, f"model-{1_700_000_000_000 + number}", "w")
        found = (await taken(watcher)).manifest
        assert (len(found.bundles), found.ref.step) == (1, number + 1)


async def test_no_number_takes_the_last_step(world: World) -> None:
    directory = generation_directory(world.parent, 1)
    watcher = world.watcher(1)
    for number in (MAX_STEP, 999_999_999_999, 3):
        put(directory, f"model-{number}", "w", counters={"global_step": number})
        await taken(watcher)
    put(directory, "other", "w", state=False)
    assert (await taken(watcher)).manifest.ref.step == MAX_STEP + 3
    counted = world.watcher(2)
    put(generation_directory(world.parent, 2), "mlp", "w")
    seen = [await counted.look(10**13) for _ in range(3)]
    assert [each.manifest.ref.step for each in seen if isinstance(each, TakenCheckpoint)] == [1]


async def test_a_name_that_no_manifest_can_have_stops_no_other_save(world: World) -> None:
    directory = generation_directory(world.parent, 1)
    put(directory, "no\u00a0break", "w", state=False)
    put(directory, "model-1", "w")
    seen = await all_looks(world.watcher(1))
    assert [each.manifest.bundles for each in seen if isinstance(each, TakenCheckpoint)] == [("model-1",)]
    assert any(isinstance(each, Unusable) and "printable" in each.reason for each in seen)


@pytest.mark.parametrize("other", [True, False])
async def test_saves_without_a_state_file_that_come_faster_than_looks_are_taken(
    world: World, other: bool
) -> None:
    directory = generation_directory(world.parent, 1)
    watcher = world.watcher(1)
    if other:
        put(directory, "model-1", "of another saver")
        await taken(watcher)
    seen = []
    for number in range(100):
        put(directory, "fast", f"w{number}", state=False)
        seen.append(await watcher.look())
    found = [each for each in seen if isinstance(each, TakenCheckpoint)]
    assert 1 <= len(found) <= 10
    assert isinstance(seen[0], Unfinished)


def test_a_look_at_thousands_of_incomplete_saves_is_not_quadratic(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mark is compared with a prefix a few times, however many there are."""
    directory = generation_directory(world.parent, 1)
    directory.mkdir(parents=True)
    count = 300
    for number in range(count):
        (directory / f"x{number}.index").write_bytes(b"")
    watcher = world.watcher(1)
    sight = watcher._eyes.look()
    compared = 0

    class Counted(str):
        __slots__ = ()

        def startswith(
            self,
            prefix: str | tuple[str, ...],
            start: SupportsIndex | None = None,
            end: SupportsIndex | None = None,
            /,
        ) -> bool:
            nonlocal compared
            compared += 1
            return super().startswith(prefix, start, end)

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

        __hash__ = str.__hash__

    marks = tuple(FileMark(Counted(mark.name), mark.size, mark.mtime_ns, mark.inode) for mark in sight.marks)
    saves = saves_in(Sight(marks))
    before = compared
    watcher._families.notes.look_over(Sight(marks), saves, {}, final=False)
    assert compared - before <= 10 * count
