"""Checkpoints that a job keeps: each reason alone, and all together on any history."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from recovery.formats.lineage import on_lineage
from recovery.formats.retention import (
    DAY_MS,
    Age,
    Collect,
    Fate,
    Keep,
    RetentionPolicy,
    collectable,
    fates,
)
from recovery.formats.selection import Chosen, candidates, select_base
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState, Verify
from supervisor.contract.desired import Closing, JobPhase, JobSwitch

UUID = "u" * 32


def record(
    generation: int,
    step: int,
    parent: CheckpointRef | None = None,
    *,
    state: CommitState = CommitState.COMMITTED,
    wall_ms: int = 0,
    verified: Verify = Verify.SIZE,
    pinned: bool = False,
) -> CommitRecord:
    ref = CheckpointRef(generation, step)
    made = CommitRecord(UUID, ref, parent, f"{ref}", 1, "0" * 8, "n1", "i1", wall_ms, state)
    return replace(made, verified=verified, pinned=pinned)


def switch(
    generation: int = 1, base: CheckpointRef | None = None, closing: Closing | None = None
) -> JobSwitch:
    return JobSwitch("digits", UUID, JobPhase.RUNNING, generation, "plan", base, closing)


def at(now_ms: int) -> Age:
    """Ages then, of records that say on the same clock when they were made."""
    return lambda one: now_ms - one.wall_ms


def steps(records: tuple[CommitRecord, ...]) -> list[int]:
    return [each.ref.step for each in records]


def whys(found: tuple[Fate, ...]) -> dict[int, Keep | Collect]:
    return {fate.record.ref.step: fate.why for fate in found}


TEN = tuple(record(1, step, wall_ms=step) for step in range(100, 1100, 100))


def test_the_first_of_each_so_many_steps_stays() -> None:
    policy = RetentionPolicy(2, keep_every=400)
    assert steps(collectable(TEN, switch(), [], policy, at(0))) == [200, 300, 500, 600, 700]
    found = whys(fates(TEN, switch(), [], policy, at(0)))
    assert [step for step, why in found.items() if why is Keep.EVERY] == [100, 400, 800]
    assert [step for step, why in found.items() if why is Keep.NEWEST] == [900, 1000]
    # Its first one is bad: the next of the same steps stands for it.
    bad = (replace(TEN[3], state=CommitState.QUARANTINED), *TEN[:3], *TEN[4:])
    assert whys(fates(bad, switch(), [], policy, at(0)))[500] is Keep.EVERY


def test_the_young_stay() -> None:
    policy = RetentionPolicy(2, keep_for_ms=500)
    assert steps(collectable(TEN, switch(), [], policy, at(1100))) == [100, 200, 300, 400, 500, 600]
    assert whys(fates(TEN, switch(), [], policy, at(1100)))[700] is Keep.YOUNG
    # Of what was made since the last note nothing is known but that.
    assert collectable(TEN, switch(), [], policy, at(-DAY_MS)) == ()


def test_the_newest_two_that_were_read_back_stay_whatever_came_later() -> None:
    checked = tuple(replace(each, verified=Verify.READBACK) if each.ref.step <= 300 else each for each in TEN)
    policy = RetentionPolicy(2)
    assert steps(collectable(checked, switch(), [], policy, at(0))) == [100, 400, 500, 600, 700, 800]
    assert whys(fates(checked, switch(), [], policy, at(0)))[200] is Keep.VERIFIED


def test_every_reason_has_its_name() -> None:
    base, asked = CheckpointRef(1, 100), CheckpointRef(1, 200)
    records = (
        record(1, 100),
        record(1, 200),
        record(1, 300, pinned=True),
        record(1, 400),
        record(1, 500, state=CommitState.QUARANTINED, wall_ms=5 * DAY_MS),
        record(1, 600, state=CommitState.COLLECTING),
        record(2, 150, base, state=CommitState.QUARANTINED),
        replace(record(2, 950, base, state=CommitState.QUARANTINED), suspected=True),
        *(record(2, step, base) for step in range(700, 1000, 100)),
    )
    found = whys(fates(records, switch(2, base), [asked], RetentionPolicy(2), at(6 * DAY_MS)))
    assert found == {
        100: Keep.BASE,
        200: Keep.BASE,
        300: Keep.PINNED,
        400: Collect.OFF_LINEAGE,
        500: Keep.GRACE,
        600: Collect.COLLECTING,
        150: Collect.QUARANTINED,
        950: Keep.SUSPECTED,
        700: Collect.SURPLUS,
        800: Keep.NEWEST,
        900: Keep.NEWEST,
    }
    assert collectable(records, switch(2, base), [asked], RetentionPolicy(2), at(6 * DAY_MS)) == tuple(
        each for each in sorted(records, key=lambda each: each.ref) if each.ref.step in (400, 150, 700)
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[tuple[CommitRecord, ...], JobSwitch]:
    """Any number of generations, each begun from a commit of an earlier one, or from scratch."""
    records: list[CommitRecord] = []
    base: CheckpointRef | None = None
    generation = 0
    for generation in range(1, draw(st.integers(1, 5)) + 1):
        earlier = [each.ref for each in records]
        base = draw(st.sampled_from(earlier)) if earlier else None
        records += [
            record(
                generation,
                step,
                base,
                state=draw(st.sampled_from(CommitState)),
                wall_ms=draw(st.integers(0, 20)),
                verified=draw(st.sampled_from(Verify)),
                pinned=draw(st.booleans()),
            )
            for step in sorted(draw(st.sets(st.integers(0, 40), max_size=6)))
        ]
    closing = Closing("plan", draw(st.sampled_from([each.ref for each in records]))) if records else None
    return tuple(draw(st.permutations(records))), switch(
        generation, base, draw(st.sampled_from([None, closing]))
    )


POLICIES = st.builds(
    RetentionPolicy,
    keep=st.integers(0, 4),
    grace_ms=st.just(5),
    branched_age_ms=st.integers(0, 20),
    keep_every=st.integers(0, 12),
    keep_for_ms=st.integers(0, 12),
)


@given(histories(), POLICIES, st.integers(0, 40))
def test_whatever_is_collected_the_promises_hold(
    history: tuple[tuple[CommitRecord, ...], JobSwitch], policy: RetentionPolicy, wall_ms: int
) -> None:
    records, now = history
    going = collectable(records, now, [], policy, at(wall_ms))
    gone = {each.ref for each in going}
    lineage = on_lineage(records, UUID, now.generation, now.base)
    healthy = [each for each in lineage if each.state is CommitState.COMMITTED]
    read_back = [each for each in healthy if each.verified is Verify.READBACK]
    # Rule 9, and what a restart would choose.
    assert not gone & {each.ref for each in (*healthy[:2], *read_back[:2], *healthy[: policy.keep])}
    assert not gone & {now.base, now.closing.base if now.closing else None}
    assert not any(each.pinned or each.state is CommitState.COLLECTING for each in going)
    if policy.keep_every:
        kept = {each.ref.step // policy.keep_every for each in healthy if each.ref not in gone}
        assert kept == {each.ref.step // policy.keep_every for each in healthy}
    if policy.keep_for_ms:
        assert not gone & {each.ref for each in healthy if wall_ms - each.wall_ms < policy.keep_for_ms}
    # What is off the lineage, or bad, has had its grace since the last start of a generation.
    for each in going:
        if each not in healthy:
            assert min(wall_ms - each.wall_ms, policy.branched_age_ms) > policy.grace_ms
    before = select_base(records, now)
    left = tuple(replace(each, state=CommitState.COLLECTING) if each in going else each for each in records)
    after = select_base(left, now)
    assert type(after) is type(before)
    if isinstance(before, Chosen) and isinstance(after, Chosen):
        assert after.record == before.record
        assert candidates(left, now)[1:2] == candidates(records, now)[1:2]
    assert collectable(left, now, [], policy, at(wall_ms)) == (), "one look is enough"


@given(histories(), POLICIES, st.integers(0, 40))
def test_each_checkpoint_has_one_fate_and_more_is_kept_by_more_wishes(
    history: tuple[tuple[CommitRecord, ...], JobSwitch], policy: RetentionPolicy, wall_ms: int
) -> None:
    records, now = history
    found = fates(records, now, [], policy, at(wall_ms))
    assert [fate.record for fate in found] == sorted(records, key=lambda each: each.ref)
    for more in (
        replace(policy, keep=policy.keep + 1),
        replace(policy, keep_for_ms=policy.keep_for_ms + 5),
        replace(policy, grace_ms=policy.grace_ms + 5),
        replace(policy, keep_every=policy.keep_every or 3),
    ):
        fewer = {each.ref for each in collectable(records, now, [], more, at(wall_ms))}
        assert fewer <= {each.ref for each in collectable(records, now, [], policy, at(wall_ms))}
