"""TensorFlow's files, lineage, selection and retention."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.formats.lineage import on_lineage
from recovery.formats.paths import staging_path, stored_path, stored_ref
from recovery.formats.retention import DAY_MS, Age, RetentionPolicy, collectable
from recovery.formats.selection import Chosen, FromScratch, NoneLeft, candidates, select_base
from recovery.formats.tf_files import (
    complete_set,
    number_of,
    parse_state,
    render_state,
    require_set,
)
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState, Verify
from supervisor.contract.desired import Closing, JobPhase, JobSwitch
from supervisor.contract.errors import BadCheckpoint

UUID = "u" * 32


def test_names_in_the_store() -> None:
    ref = CheckpointRef(3, 120)
    assert stored_path(ref, "ab12") == "g00003-s0000000120.ab12"
    assert stored_ref(stored_path(ref, "ab12")) == ref
    assert stored_ref(stored_path(CheckpointRef(99_999_999, 10**12 - 1), "x")) == CheckpointRef(
        99_999_999, 10**12 - 1
    )
    assert staging_path(ref, "ab12") == ".staging/g00003-s0000000120.ab12"
    for name in (".staging", "g1-s1", "g00003-s0000000120", "model", "g00003-s0000000120.a/b", "x-y"):
        assert stored_ref(name) is None


def test_state_file_of_tensorflow() -> None:
    text = (
        'model_checkpoint_path: "model.ckpt-120"\n'
        'all_model_checkpoint_paths: "model.ckpt-80"\n'
        'all_model_checkpoint_paths: "model.ckpt-120"\n'
        "all_model_checkpoint_timestamps: 1700000000.5\n"
        "last_preserved_timestamp: 1700000000.1\n"
    )
    state = parse_state(text)
    assert state is not None
    assert (state.newest, state.known) == ("model.ckpt-120", ("model.ckpt-80", "model.ckpt-120"))
    assert parse_state(render_state("model.ckpt-120").decode()) is not None
    escaped = parse_state('model_checkpoint_path: "caf\\303\\251 \\"x\\"\\\\-7"')
    assert escaped is not None
    assert escaped.newest == 'café "x"\\-7'
    for foreign in ("", "model_checkpoint_path: ", 'model_checkpoint_path: "cut', "\0\1"):
        assert parse_state(foreign) is None


@given(st.text())
def test_any_state_file_can_be_read(text: str) -> None:
    parse_state(text)


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1))
def test_the_state_file_that_we_write_names_its_prefix(prefix: str) -> None:
    state = parse_state(render_state(prefix).decode())
    assert state is not None
    assert state.newest == prefix


def test_steps() -> None:
    assert number_of("model.ckpt-120") == 120
    assert number_of("model-x-0") == 0
    for name in ("model.ckpt", "model.ckpt-", "model.ckpt-1x", "model.ckpt-" + "1" * 21, "m-\u0661"):
        assert number_of(name) is None


def test_complete_sets() -> None:
    two = ["m-1.data-00000-of-00002", "m-1.data-00001-of-00002"]
    found = complete_set("m-1", ["m-1.index", *two, "m-1.meta", "m-12.index", "m-1.index.tmp"])
    assert found is not None
    assert found.names == ("m-1.data-00000-of-00002", "m-1.data-00001-of-00002", "m-1.index", "m-1.meta")
    assert [name for name in found.names if found.in_place(name)] == ["m-1.index", "m-1.meta"]
    assert complete_set("m-1", two) is None
    assert complete_set("m-1", ["m-1.index", two[0]]) is None
    assert complete_set("m-1", ["m-1.index", "m-1.data-00000-of-00000"]) is None
    assert complete_set("m-1", ["m-1.index", *two, "m-1.data-00000-of-00001"]) is None
    with pytest.raises(BadCheckpoint, match="no file of"):
        require_set("m-1", ["m-1.index", *two, "other"])


# Lineage, selection, retention.


def record(
    generation: int,
    step: int,
    parent: CheckpointRef | None = None,
    state: CommitState = CommitState.COMMITTED,
    wall_ms: int = 0,
    *,
    pinned: bool = False,
    job_uuid: str = UUID,
) -> CommitRecord:
    ref = CheckpointRef(generation, step)
    return CommitRecord(
        job_uuid, ref, parent, stored_path(ref, "0"), 1, "0" * 8, "n1", "i", wall_ms, state, pinned=pinned
    )


def switch(generation: int, base: CheckpointRef | None, closing: Closing | None = None) -> JobSwitch:
    return JobSwitch("digits", UUID, JobPhase.RUNNING, generation, "plan", base, closing)


def refs(records: tuple[CommitRecord, ...]) -> list[tuple[int, int]]:
    return [(one.ref.generation, one.ref.step) for one in records]


# Generation 1 saved 10, 20, 30; 2 began at 1-20 and saved 25, 35; 3 began at 1-30 (a roll-back) and saved 40.
STORY = (
    record(1, 10),
    record(1, 20),
    record(1, 30),
    record(2, 25, CheckpointRef(1, 20)),
    record(2, 35, CheckpointRef(1, 20)),
    record(3, 40, CheckpointRef(1, 30)),
)


@pytest.mark.parametrize(
    ("generation", "base", "expected"),
    [
        (3, CheckpointRef(1, 30), [(3, 40), (1, 30), (1, 20), (1, 10)]),
        (4, CheckpointRef(2, 25), [(2, 25), (1, 20), (1, 10)]),
        (4, CheckpointRef(3, 40), [(3, 40), (1, 30), (1, 20), (1, 10)]),
        (2, CheckpointRef(1, 20), [(2, 35), (2, 25), (1, 20), (1, 10)]),
        (4, None, []),
        (5, CheckpointRef(4, 99), []),
    ],
)
def test_lineage(generation: int, base: CheckpointRef | None, expected: list[tuple[int, int]]) -> None:
    assert refs(on_lineage(STORY, UUID, generation, base)) == expected
    assert refs(on_lineage((*STORY, record(4, 99, job_uuid="other")), UUID, generation, base)) == expected


def test_selection_takes_the_newest_that_may_be_restored() -> None:
    chosen = select_base(STORY, switch(3, CheckpointRef(1, 30)))
    assert isinstance(chosen, Chosen)
    usable = candidates(STORY, switch(3, CheckpointRef(1, 30)))
    assert chosen.record == usable[0]
    assert refs(usable) == [(3, 40), (1, 30), (1, 20), (1, 10)]
    for state in (CommitState.QUARANTINED, CommitState.COLLECTING):
        records = (*STORY[:-1], record(3, 40, CheckpointRef(1, 30), state))
        chosen = select_base(records, switch(3, CheckpointRef(1, 30)))
        assert isinstance(chosen, Chosen)
        assert refs((chosen.record,)) == [(1, 30)]


def test_never_a_silent_start_from_scratch() -> None:
    assert select_base((), switch(1, None)) == FromScratch()
    assert select_base((record(9, 9, job_uuid="other"),), switch(1, None)) == FromScratch()
    bad = record(1, 10, state=CommitState.QUARANTINED)
    assert select_base((bad,), switch(1, None)) == NoneLeft(bad)
    assert select_base((), switch(2, CheckpointRef(1, 10))) == NoneLeft(None)
    assert select_base((record(1, 10),), switch(2, None)) == NoneLeft(None)


def at(now_ms: int) -> Age:
    """Ages then, of records that say on the same clock when they were made."""
    return lambda one: now_ms - one.wall_ms


def test_retention_keeps_the_newest_the_bases_and_the_pinned() -> None:
    records = tuple(record(1, step, pinned=step == 30) for step in range(10, 110, 10))
    now = switch(1, None, Closing("plan", CheckpointRef(1, 40)))
    going = collectable(records, now, [CheckpointRef(1, 50)], RetentionPolicy(3), at(0))
    assert refs(going) == [(1, 10), (1, 20), (1, 60), (1, 70)]
    # Verified less than by reading back: the two that always stay are here only because they are the newest.
    cheap = tuple(replace(each, verified=Verify.SIZE) for each in records)
    assert len(collectable(cheap, switch(1, None), [], RetentionPolicy(0), at(0))) == 10 - 1 - 2


def test_off_the_lineage_there_is_a_grace() -> None:
    now = switch(3, CheckpointRef(1, 30))
    policy = RetentionPolicy(10, grace_ms=DAY_MS)
    assert collectable(STORY, now, [], policy, at(DAY_MS)) == ()
    assert refs(collectable(STORY, now, [], policy, at(DAY_MS + 1))) == [(2, 25), (2, 35)]


_STATES = st.sampled_from(list(CommitState))


@st.composite
def histories(draw: st.DrawFn) -> tuple[tuple[CommitRecord, ...], JobSwitch]:
    """Any number of generations, each begun from a commit of an earlier one, or from scratch."""
    records: list[CommitRecord] = []
    base: CheckpointRef | None = None
    generation = 0
    for generation in range(1, draw(st.integers(1, 6)) + 1):
        earlier = [one.ref for one in records]
        base = draw(st.sampled_from(earlier)) if earlier else None
        steps = sorted(draw(st.sets(st.integers(0, 50), max_size=5)))
        records += [
            record(generation, step, base, draw(_STATES), draw(st.integers(0, 9)), pinned=draw(st.booleans()))
            for step in steps
        ]
    return tuple(draw(st.permutations(records))), switch(generation, base)


@given(histories(), st.integers(0, 4), st.integers(0, 20))
def test_collecting_never_takes_what_a_restart_would_choose(
    history: tuple[tuple[CommitRecord, ...], JobSwitch], keep: int, wall_ms: int
) -> None:
    records, now = history
    going = collectable(records, now, [], RetentionPolicy(keep, grace_ms=5), at(wall_ms))
    before = select_base(records, now)
    assert now.base not in {one.ref for one in going}
    assert not any(one.pinned or one.state is CommitState.COLLECTING for one in going)
    left = tuple(replace(one, state=CommitState.COLLECTING) if one in going else one for one in records)
    after = select_base(left, now)
    if isinstance(before, Chosen):
        assert isinstance(after, Chosen)
        assert after.record == before.record
        assert candidates(left, now)[1:2] == candidates(records, now)[1:2]
    else:
        assert type(after) is type(before)
    assert collectable(left, now, [], RetentionPolicy(keep, grace_ms=5), at(wall_ms)) == ()


@given(histories())
def test_lineage_is_newest_first_and_closed_under_parents(
    history: tuple[tuple[CommitRecord, ...], JobSwitch],
) -> None:
    records, now = history
    lineage = on_lineage(records, now.job_uuid, now.generation, now.base)
    generations = [one.ref.generation for one in lineage]
    assert generations == sorted(generations, reverse=True)
    assert list(lineage) == sorted(lineage, key=lambda one: one.ref, reverse=True)
    known = {one.ref for one in records}
    on_it = {one.ref for one in lineage}
    for one in lineage:
        assert one.parent is None or one.parent not in known or one.parent in on_it


def test_one_that_is_only_suspected_stays_until_the_job_got_further() -> None:
    older, accused = record(1, 100), record(1, 200, state=CommitState.QUARANTINED)
    accused = replace(accused, suspected=True)
    records = (older, accused)
    now = switch(2, older.ref)
    policy = RetentionPolicy(5, grace_ms=DAY_MS)
    assert collectable(records, now, [], policy, at(9 * DAY_MS)) == (), "it may be cleared yet"
    further = (*records, record(2, 201, older.ref, wall_ms=9 * DAY_MS))
    assert refs(collectable(further, now, [], policy, at(9 * DAY_MS))) == [(1, 200)]
