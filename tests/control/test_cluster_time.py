"""Ages by the time that leaders count: no host's wall clock makes anything older or younger."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.formats.retention import DAY_MS, GRACE_MS
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.checkpoint import CheckpointRef, CommitState
from supervisor.contract.job.spec import CheckpointSpec
from supervisor.control.decide.checkpoints.collecting import ADOPTED, fates_of, policy_of
from supervisor.control.decide.facts.cluster_time import PRECISION, TICK_MS, Ages, ages, tick
from supervisor.control.decide.plan import put
from tests.control.world import World
from tests.support.builders import job_spec

YEAR_MS = 365 * DAY_MS


def lead(world: World, ms: int) -> None:
    """The leader leads for so long, and sees what it writes at once."""
    for _ in range(ms // TICK_MS):
        world.tick(TICK_MS)
        world.snapshot()


def age_of(world: World, ref: CheckpointRef) -> int:
    return ages(world.snapshot()).of(world.job().commits[ref].create_revision)


def commit_at(world: World, step: int, wall_ms: int) -> CheckpointRef:
    """By a node whose clock shows that."""
    ref = world.commit(1, step)
    held = world.job().commits[ref]
    # In one transaction with the commit itself, as the agent does it.
    world.write(put(held.key, replace(held.value, wall_ms=wall_ms)))
    return ref


def gone(world: World) -> set[int]:
    return {fate.record.ref.step for fate in fates_of(world.snapshot(), world.job()) if fate.goes}


def test_a_record_ages_while_it_is_led_and_no_faster() -> None:
    world = World().start()
    ref = world.commit(1, 100)
    committed_ms = world.now_ms
    for _ in range(40):
        world.tick(TICK_MS // 3)
        assert 0 <= world.now_ms - committed_ms - age_of(world, ref) <= 2 * TICK_MS
    assert age_of(world, ref) > 11 * TICK_MS


def test_the_next_leader_goes_on_from_the_last_note() -> None:
    world = World().start()
    ref = world.commit(1, 100)
    lead(world, 10 * TICK_MS)
    before_ms = age_of(world, ref)
    # Its host's clocks have another zero, and it was away for a week.
    world.now_ms += 7 * DAY_MS
    world.new_leader()
    assert before_ms - TICK_MS <= age_of(world, ref) <= before_ms
    lead(world, 3 * TICK_MS)
    assert age_of(world, ref) >= before_ms + TICK_MS


@pytest.mark.parametrize("off_ms", [-YEAR_MS, -4 * DAY_MS, 4 * DAY_MS, YEAR_MS])
def test_a_node_whose_clock_is_wrong_shifts_no_age(off_ms: int) -> None:
    kept = CheckpointSpec("file:///c", keep=2, keep_for_ms=2 * DAY_MS)
    world = World(replace(job_spec(), checkpoint=kept)).start()
    world.wall_ms = 20 * YEAR_MS
    for step in (100, 200, 300):
        commit_at(world, step, world.wall_ms + off_ms)
    assert gone(world) == set(), "all three are young"
    world.pass_time(DAY_MS)
    for step in (400, 500, 600):
        commit_at(world, step, world.wall_ms)
    world.pass_time(DAY_MS - 1)
    assert gone(world) == set()
    world.pass_time(1)
    assert gone(world) == {100, 200, 300}
    for _ in range(10):
        world.decide()
    world.pass_time(DAY_MS)
    assert gone(world) == {400}


@pytest.mark.parametrize("off_ms", [-YEAR_MS, YEAR_MS])
def test_the_grace_of_a_quarantined_one_counts_from_its_quarantine_whatever_clocks_say(off_ms: int) -> None:
    world = World().start()
    world.wall_ms = 20 * YEAR_MS
    bad = commit_at(world, 100, world.wall_ms + off_ms)
    commit_at(world, 200, world.wall_ms)
    world.pass_time(2 * GRACE_MS)
    held = world.job().commits[bad]
    world.write(put(held.key, replace(held.value, state=CommitState.QUARANTINED, reason="a bad byte")))
    # This leader's clock is wrong, too.
    world.wall_ms -= off_ms
    world.pass_time(GRACE_MS)
    assert gone(world) == set()
    world.pass_time(1)
    assert gone(world) == {bad.step}


def test_the_grace_of_what_an_import_put_off_the_lineage_counts_from_the_import() -> None:
    world = World().start()
    world.pass_time(DAY_MS)
    ref = world.commit(1, 100)
    assert policy_of(world.snapshot(), world.job()).branched_age_ms == DAY_MS, "since it was submitted"
    held = world.job().commits[ref]
    world.write(Delete(held.key), put(held.key, replace(held.value, incarnation=ADOPTED, wall_ms=YEAR_MS)))
    world.pass_time(5)
    assert policy_of(world.snapshot(), world.job()).branched_age_ms == 5


def test_nothing_is_noted_without_a_job_or_more_often_than_needed() -> None:
    world = World().start()
    idle = replace(world.snapshot(), jobs={}, now_ms=world.now_ms + 9 * TICK_MS)
    assert tick(idle) == []
    lead(world, 3 * TICK_MS)
    noted = world.done.count("time")
    world.tick(TICK_MS - 1)
    assert world.done.count("time") == noted <= 3
    assert world.snapshot().events == world.snapshot().events[:1], "no event tells of it"


def test_a_note_that_another_leader_was_faster_with_fails() -> None:
    world = World().start()
    snap = replace(world.snapshot(), now_ms=world.now_ms + TICK_MS)
    (action,) = tick(snap)
    assert world.run(action)
    assert not world.run(action)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=400), st.integers(0, TICK_MS))
def test_ages_are_never_too_large_and_nearly_right(gaps: list[int], later_ms: int) -> None:
    """Notes at any pace: those that are left say of every revision nearly what all of them would."""
    known = Ages(0)
    for revision, gap in enumerate(gaps):
        known = Ages(known.now_ms + gap * TICK_MS, known.noted(revision).ticks)
    last_ms = known.now_ms
    known = Ages(last_ms + later_ms, known.ticks)
    at_ms = 0
    for revision, gap in enumerate(gaps):
        age_ms = known.now_ms - at_ms
        assert known.of(revision) <= age_ms
        assert known.of(revision) >= age_ms - age_ms // PRECISION - max(gaps) * TICK_MS
        at_ms += gap * TICK_MS
    assert known.of(len(gaps)) == 0
    assert list(known.ticks) == sorted(known.ticks, key=lambda one: one.revision)


def test_ten_years_of_notes_fit_their_key() -> None:
    known = Ages(0)
    for number in range(3650 + 144):
        passed_ms = DAY_MS if number < 3650 else TICK_MS
        known = Ages(known.now_ms + passed_ms, known.noted(10**12 + number).ticks)
    assert len(known.ticks) < 300
    put(keys.TIME, known.noted(10**13))
