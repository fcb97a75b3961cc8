"""The records as the checkers read them, held against the product's own; and the reader of lines."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.history import lines, records
from chaos.history.formats import EtcdLine, StoreLine
from chaos.history.past import State, lineage, moments
from chaos.promises.generations import KILL_TIME_MS
from recovery.formats.lineage import on_lineage
from supervisor.contract import codec, desired, incident, keys, observed
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.job import pause, spec
from supervisor.contract.keys import Writer
from supervisor.contract.timing import PROFILES
from tests.support.records import records as any_record

PAIRS = {
    records.Cluster: desired.ClusterRecord,
    records.Incarnation: observed.Incarnation,
    records.Mark: desired.LostMark,
    records.Switch: desired.JobSwitch,
    records.Pause: pause.Pause,
    records.Intent: spec.JobIntent,
    records.Plan: desired.Plan,
    records.Assignment: desired.Assignment,
    records.Report: observed.AttemptReport,
    records.Prepared: observed.Prepared,
    records.Commit: CommitRecord,
    records.Incident: incident.Incident,
    records.Event: incident.Event,
}


@pytest.mark.parametrize(("ours", "theirs"), PAIRS.items(), ids=[each.__name__ for each in PAIRS])
@settings(max_examples=25)
@given(data=st.data())
def test_every_field_is_read_as_the_product_has_it(ours: type, theirs: type, data: st.DataObject) -> None:
    record = data.draw(any_record(theirs))
    read: object = lines.parse(ours, codec.encode(record))
    for field in dataclasses.fields(ours):
        assert_same(getattr(read, field.name), getattr(record, field.name))


def assert_same(read: object, record: object) -> None:
    """`read` may know fewer fields."""
    if dataclasses.is_dataclass(read):
        for field in dataclasses.fields(read):
            assert_same(getattr(read, field.name), getattr(record, field.name))
    elif isinstance(read, tuple):
        assert isinstance(record, tuple)
        for mine, other in zip(read, record, strict=True):
            assert_same(mine, other)
    else:
        assert read == codec.to_plain(record)


def test_staged_is_read_as_prepared_is() -> None:
    staged = observed.Staged("job", "p1", "n1", "a1", None)
    assert lines.parse(records.Prepared, codec.encode(staged)) == records.Prepared("n1", "a1")


def test_whose_fence_a_key_needs_is_what_the_product_says() -> None:
    families = {
        Writer.LEADER: records.BY_LEADER,
        Writer.AGENT: records.BY_AGENT,
        Writer.BOTH: records.BY_BOTH,
    }
    for family in keys.FAMILIES:
        if family.writer in families:
            assert family.prefix in families[family.writer], family.prefix
        else:
            assert family.prefix in (records.LEADER, "appeals/")


def test_what_burns_a_budget_is_what_the_product_says() -> None:
    assert {cause.value for cause in incident.Cause if cause.program_fault} == records.PROGRAM_FAULTS
    assert {cause.value for cause in incident.Cause} >= records.ASKED_FOR
    # A parked job's stored phase is that of a failed one.
    shown = {desired.JobPhase.PARKED}
    ended = {phase.value for phase in desired.JobPhase if phase.ended and phase not in shown}
    assert ended == records.ENDED


def test_killing_takes_as_long_as_the_product_says() -> None:
    assert {name: timing.kill_time_ms for name, timing in PROFILES.items()} == KILL_TIME_MS


def commit(generation: int, step: int, parent: CheckpointRef | None, state: CommitState) -> CommitRecord:
    ref = CheckpointRef(generation, step)
    return CommitRecord("u", ref, parent, "p", 1, "0", "n", "i", 0, state)


@given(data=st.data())
def test_the_lineage_is_the_products(data: st.DataObject) -> None:
    found: list[CommitRecord] = []
    base: CheckpointRef | None = None
    last = data.draw(st.integers(1, 4))
    for generation in range(1, last + 1):
        steps = sorted(data.draw(st.sets(st.integers(1, 9), max_size=3)))
        found += [commit(generation, step, base, data.draw(st.sampled_from(CommitState))) for step in steps]
        if generation < last:
            base = data.draw(st.sampled_from([None, *(record.ref for record in found)]))
    switch = desired.JobSwitch("job", "u", desired.JobPhase.RUNNING, last, "p", base)
    ours = lineage(
        [lines.parse(records.Commit, codec.encode(each)) for each in found],
        lines.parse(records.Switch, codec.encode(switch)),
    )
    theirs = on_lineage(found, "u", last, base)
    assert list(map(str, ours)) == [str(each.ref) for each in theirs if each.state is CommitState.COMMITTED]


# Lines.


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    line = StoreLine(1.0, 2.0, "p", "whole", size=3)
    lines.append(path, [line, line])
    with path.open("a") as file:
        file.write('{"after_ms": 1')
    assert lines.read(StoreLine, path) == (line, line), "a torn last line does not count"
    assert lines.read(StoreLine, tmp_path / "none") == ()


def test_unknown_fields_are_passed_over_and_wrong_ones_are_named(tmp_path: Path) -> None:
    assert lines.parse(records.Cluster, '{"d_ms": 1, "new": [1]}') == records.Cluster(1)
    path = tmp_path / "x.jsonl"
    path.write_text('{"after_ms": 1, "at_ms": 2, "path": 3, "found": ""}\n')
    with pytest.raises(lines.NotReadable, match=r"x.jsonl:1: StoreLine.path: expected str, found int"):
        lines.read(StoreLine, path)


def test_a_recording_that_begins_late_begins_with_what_is_there() -> None:
    base = EtcdLine("base", 7, "cluster", '{"d_ms": 5}', created=3, version=2, at_ms=10.0)
    change = EtcdLine("put", 9, "cluster", '{"d_ms": 6}', created=3, version=3, after_ms=11.0, at_ms=12.0)
    first, second = moments([base, change])
    assert (first.live, second.live) == (False, True)
    state = State()
    state.apply(first)
    assert state.d_ms == 5
    state.apply(second)
    assert state.d_ms == 6
