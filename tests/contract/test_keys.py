"""Every key in etcd parses in one way only, and sorts by age where the leader relies on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.contract import keys
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.ids import AttemptId, TaskId
from tests.support.records import NAMES

PLANS = st.text("0123456789abcdef", min_size=16, max_size=16)
DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64)
TASKS = st.builds(TaskId, NAMES, NAMES, st.integers(0, 999_999))
ATTEMPTS = st.builds(AttemptId, TASKS, st.integers(0, 10**8 - 1), st.integers(1, 10**6 - 1))
REFS = st.builds(CheckpointRef, st.integers(0, 10**8 - 1), st.integers(0, 10**12 - 1))


@dataclass(frozen=True)
class Row:
    """A builder, arguments for it, and how these are had back from the parts of the key."""

    prefix: str
    build: Callable[..., str]
    arguments: st.SearchStrategy[tuple[object, ...]]
    read: Callable[..., tuple[object, ...]]


def as_given(*parts: str) -> tuple[object, ...]:
    return parts


def numbers(text: str) -> tuple[int, int]:
    first, second = text.split(".")
    return int(first), int(second)


ROWS = (
    Row("nodes/", keys.node, st.tuples(NAMES), as_given),
    Row("lost/", keys.lost, st.tuples(NAMES, PLANS), as_given),
    Row("appeals/", keys.appeal, st.tuples(NAMES, PLANS), as_given),
    Row("cordons/", keys.cordon, st.tuples(NAMES), as_given),
    Row("pardons/", keys.pardon, st.tuples(NAMES), as_given),
    Row("gpus/", keys.gpus, st.tuples(NAMES), as_given),
    Row("quarantines/", keys.quarantine, st.tuples(NAMES, NAMES), as_given),
    Row("jobs/", keys.job_record, st.tuples(NAMES), as_given),
    Row("intents/", keys.intent, st.tuples(NAMES), as_given),
    Row("switches/", keys.switch, st.tuples(NAMES), as_given),
    Row("spares/", keys.spare, st.tuples(NAMES, NAMES), as_given),
    Row("plans/", keys.plan, st.tuples(NAMES, PLANS), as_given),
    Row("specs/", keys.cluster_spec, st.tuples(NAMES, PLANS), as_given),
    Row(
        "assignments/",
        keys.assignment,
        st.tuples(NAMES, TASKS, PLANS),
        lambda node, job, plan, member: (node, TaskId.from_member(job, member), plan),
    ),
    Row(
        "prepared/",
        keys.prepared,
        st.tuples(TASKS, PLANS),
        lambda job, plan, member: (TaskId.from_member(job, member), plan),
    ),
    Row("staged/", keys.staged, st.tuples(NAMES, PLANS, NAMES), as_given),
    Row(
        "attempts/",
        keys.attempt,
        st.tuples(ATTEMPTS),
        lambda job, member, count: (AttemptId(TaskId.from_member(job, member), *numbers(count)),),
    ),
    Row(
        "commits/",
        keys.commit,
        st.tuples(NAMES, REFS),
        lambda job, ref: (job, CheckpointRef(*numbers(ref))),
    ),
    Row("deleted/", keys.deleted, st.tuples(NAMES), as_given),
    Row("heads/", keys.head, st.tuples(NAMES), as_given),
    Row("incidents/", keys.incident_record, st.tuples(NAMES, PLANS), as_given),
    Row("notified/", keys.notified, st.tuples(NAMES), as_given),
    Row("goodput/", keys.goodput_of, st.tuples(NAMES), as_given),
    Row("pools/", keys.pool_record, st.tuples(NAMES), as_given),
    Row("code/", keys.shipped, st.tuples(DIGESTS), as_given),
    Row(
        "bulk/code/",
        keys.chunk,
        st.tuples(DIGESTS, st.integers(0, 9999)),
        lambda digest, index: (digest, int(index)),
    ),
    Row("events/", keys.event, st.tuples(st.integers(0, 10**16 - 1)), lambda serial: (int(serial),)),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.prefix)
@given(data=st.data())
def test_a_key_parses_back_to_what_it_was_built_from(row: Row, data: st.DataObject) -> None:
    arguments = data.draw(row.arguments)
    key = row.build(*arguments)
    assert keys.family(key).prefix == row.prefix
    assert row.read(*keys.parse(key)) == arguments
    assert keys.is_well_formed(key)
    assert not keys.is_well_formed(f"{key}/more")


def test_every_family_has_a_row_here() -> None:
    covered = {row.prefix for row in ROWS} | {keys.LEADER, keys.CLUSTER, keys.CLAIMS, keys.TIME, keys.PAUSE}
    assert covered == {family.prefix for family in keys.FAMILIES}


def test_families_are_disjoint() -> None:
    for one, other in permutations((family.prefix for family in keys.FAMILIES), 2):
        assert not one.startswith(other)


@pytest.mark.parametrize("key", ["", "x", "leader/", "leaders", "clusters", "jobs", "node/a", "/jobs/a"])
def test_a_foreign_key_has_no_family(key: str) -> None:
    with pytest.raises(KeyError):
        keys.family(key)


@pytest.mark.parametrize("key", [keys.LEADER, keys.CLUSTER, keys.CLAIMS, keys.TIME])
def test_the_single_keys_have_families_of_their_own(key: str) -> None:
    assert keys.family(key).prefix == key
    assert keys.parse(key) == ()
    assert keys.is_well_formed(key)
    assert keys.subject_of(key) == ("", "")


@pytest.mark.parametrize(
    ("key", "job", "node"),
    [
        ("nodes/n0", "", "n0"),
        ("quarantines/n0/GPU-1", "", "n0"),
        ("jobs/digits", "digits", ""),
        ("assignments/n0/digits/p1/ps.0", "digits", ""),
        ("staged/digits/p1/n0", "digits", ""),
        ("events/12", "", ""),
    ],
)
def test_a_key_names_the_job_or_the_node_that_it_is_about(key: str, job: str, node: str) -> None:
    assert keys.subject_of(key) == (job, node)


@given(name=NAMES, one=REFS, other=REFS)
def test_commits_sort_by_generation_then_step(name: str, one: CheckpointRef, other: CheckpointRef) -> None:
    assert (keys.commit(name, one) < keys.commit(name, other)) == (one < other)


@given(
    task=TASKS,
    one=st.tuples(st.integers(0, 9999), st.integers(1, 9999)),
    other=st.tuples(st.integers(0, 9999), st.integers(1, 9999)),
)
def test_attempts_sort_by_generation_then_number(
    task: TaskId, one: tuple[int, int], other: tuple[int, int]
) -> None:
    first, second = keys.attempt(AttemptId(task, *one)), keys.attempt(AttemptId(task, *other))
    assert (first < second) == (one < other)


@given(one=st.integers(0, 10**16 - 1), other=st.integers(0, 10**16 - 1))
def test_events_sort_by_age(one: int, other: int) -> None:
    assert (keys.event(one) < keys.event(other)) == (one < other)


@given(one=NAMES, other=NAMES, ref=REFS, task=TASKS, plan=PLANS)
def test_a_prefix_covers_one_name_only(
    one: str, other: str, ref: CheckpointRef, task: TaskId, plan: str
) -> None:
    """`commits/a/` must not list the commits of `a.b`, nor of `ab`."""
    for neighbour in (other, f"{one}.b"[:63], f"{one}b"[:63]):
        same = neighbour == one
        assert keys.commit(neighbour, ref).startswith(keys.commits_of(one)) == same
        assert keys.incident_record(neighbour, plan).startswith(keys.incidents_of(one)) == same
        assert keys.assignment(neighbour, task, plan).startswith(keys.assignments_of(one)) == same
