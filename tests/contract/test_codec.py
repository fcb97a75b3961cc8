"""The one form of every record in etcd and on the wire."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.contract import keys
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.codec import NEEDED, VERSION, decode, encode
from supervisor.contract.desired import Closing, JobPhase, JobSwitch, Ledger, Placement, Plan
from supervisor.contract.errors import IncompatibleRecord
from supervisor.contract.job.spec import JobIntent, JobRecord, SuccessPolicy, Wanted
from supervisor.contract.observed import AttemptReport, Beat, BeatAck, Prepared, Saves, Sign, TaskBeat
from supervisor.contract.views.jobs import SubmitRequest
from supervisor.control.decide.jobs.prepare import bare_assignment
from tests.support.builders import job_spec
from tests.support.records import records

KINDS = (*(family.record for family in keys.FAMILIES), Beat, BeatAck)
any_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
fewer = settings(max_examples=settings().max_examples // 4)
"""Each kind of record runs each test."""
few = settings(max_examples=3)
"""A version, or a field that nobody knows, is read alike whatever the other fields hold."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@any_kind
@fewer
@given(data=st.data())
def test_what_is_written_is_what_is_read_and_is_written_again_as_the_same_bytes(
    kind: type, data: st.DataObject
) -> None:
    record = data.draw(records(kind))
    raw = encode(record)
    assert decode(kind, raw) == record
    assert encode(decode(kind, raw)) == raw
    assert decode(kind, encode(record, brief=True)) == record


@any_kind
@few
@given(data=st.data())
def test_fields_of_a_newer_release_are_ignored(kind: type, data: st.DataObject) -> None:
    record, extra = data.draw(records(kind)), data.draw(JSON)
    body = json.loads(encode(record)) | {"a_field_of_tomorrow": extra}
    assert decode(kind, json.dumps(body).encode()) == record


@any_kind
@few
@given(data=st.data())
def test_a_higher_version_is_refused(kind: type, data: st.DataObject) -> None:
    body = json.loads(encode(data.draw(records(kind)))) | {"v": VERSION + 1}
    with pytest.raises(IncompatibleRecord, match="upgrade this daemon"):
        decode(kind, json.dumps(body).encode())


@any_kind
@fewer
@given(body=JSON, raw=st.binary(max_size=40))
def test_rubbish_raises_nothing_but_incompatible_record(kind: type, body: object, raw: bytes) -> None:
    envelope = {"v": VERSION, "record": kind.__name__}
    fields = body if isinstance(body, dict) else {}
    for candidate in (raw, json.dumps(body).encode(), json.dumps(fields | envelope).encode()):
        try:
            decode(kind, candidate)
        except IncompatibleRecord:
            continue


@any_kind
@fewer
@given(data=st.data())
def test_a_field_of_a_wrong_type_never_crashes_the_reader(kind: type, data: st.DataObject) -> None:
    body = json.loads(encode(data.draw(records(kind))))
    name = data.draw(st.sampled_from(sorted(body.keys() - {"v", "record"})))
    body[name] = data.draw(JSON)
    message = ""
    try:
        decode(kind, json.dumps(body).encode())
    except IncompatibleRecord as error:
        message = str(error)
    assert not message or f"{kind.__name__}.{name}" in message


def test_fields_that_an_older_release_did_not_write_take_their_defaults() -> None:
    assert decode(JobIntent, b'{"v":1,"record":"JobIntent"}') == JobIntent(Wanted.RUN, 0, "")


def test_a_missing_field_without_default_is_named() -> None:
    with pytest.raises(IncompatibleRecord, match=r"BeatAck.*'seq'"):
        decode(BeatAck, b'{"v":1,"record":"BeatAck","protocol":1,"leader":"s1"}')


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "not a BeatAck record"),
        (b"[]", "JSON list"),
        (b"\xff\xfe", "not a BeatAck record"),
        (b"[" * 100_000, "not a BeatAck record"),
        (b'{"v":1,"record":"Beat"}', "expected a BeatAck record, found 'Beat'"),
        (b'{"v":true,"record":"BeatAck"}', "version True"),
        (
            b'{"v":1,"record":"BeatAck","protocol":1,"seq":"2","leader":""}',
            r"BeatAck\.seq: expected int, found str",
        ),
        (b'{"v":1,"record":"BeatAck","protocol":true,"seq":2,"leader":""}', "expected int, found bool"),
    ],
)
def test_the_message_says_what_is_wrong(raw: bytes, message: str) -> None:
    with pytest.raises(IncompatibleRecord, match=message):
        decode(BeatAck, raw)


def test_the_path_of_a_wrong_inner_field_is_named() -> None:
    raw = encode(JobSwitch("a", "u", JobPhase.RUNNING, 1, closing=Closing("p", CheckpointRef(1, 2))))
    broken = raw.replace(b'"step":2', b'"step":"two"')
    with pytest.raises(IncompatibleRecord, match=r"JobSwitch\.closing: Closing\.base: CheckpointRef\.step"):
        decode(JobSwitch, broken)


def test_a_brief_record_has_only_what_a_reader_would_not_assume() -> None:
    task = TaskBeat("a", 3, saves=Saves(inside=2), signs=(Sign("cpu", 300),))
    raw = encode(Beat(1, "n1", "i1", 7, (task, TaskBeat("b"))), brief=True)
    assert json.loads(raw) == {
        "v": VERSION,
        "record": "Beat",
        "protocol": 1,
        "node": "n1",
        "incarnation": "i1",
        "seq": 7,
        "tasks": [
            {"attempt": "a", "step": 3, "saves": {"inside": 2}, "signs": [{"name": "cpu", "age_ms": 300}]},
            {"attempt": "b"},
        ],
    }


def test_infinite_numbers_are_not_written() -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        encode(Beat(1, "n1", "i1", 1, (TaskBeat("a", rate=float("inf")),)))


def test_a_record_of_the_first_release_is_still_read() -> None:
    """Records of this form are in clusters' etcd: what fails here breaks a rolling upgrade."""
    switch = JobSwitch(
        "digits", "u", JobPhase.RUNNING, 3, "p", CheckpointRef(2, 40), ledger=Ledger(program=1)
    )
    written = (
        b'{"base":{"generation":2,"step":40},"closing":null,"generation":3,"incident":"","job":"digits",'
        b'"job_uuid":"u","ledger":{"infrastructure":0,"program":1,"progress":null,"streak":0},'
        b'"phase":"running","plan_id":"p","reason":"","record":"JobSwitch","restart_serial":0,"v":1}'
    )
    assert decode(JobSwitch, written) == switch


@dataclass(frozen=True)
class _Part:
    wings: dict[str, str] = field(default_factory=dict, metadata=NEEDED)


@dataclass(frozen=True)
class Odd:
    parts: tuple[_Part, ...] = ()
    tail: _Part | None = None
    named: dict[str, _Part] = field(default_factory=dict)


WINGED = _Part({"a": "b"})


@pytest.mark.parametrize("odd", [Odd((_Part(), WINGED)), Odd(tail=WINGED), Odd(named={"c": WINGED})])
def test_a_record_is_unreadable_without_a_field_that_must_be_known(odd: Odd) -> None:
    raw = encode(odd)
    assert json.loads(raw)["record"] == "Odd+wings"
    assert decode(Odd, raw) == odd
    with pytest.raises(IncompatibleRecord, match="uses 'tail', which this release does not know: upgrade"):
        decode(Odd, raw.replace(b"+wings", b"+tail+wings"))
    assert json.loads(encode(Odd((_Part(),))))["record"] == "Odd"


def test_records_with_secrets_are_unreadable_to_a_release_that_knows_none() -> None:
    plain = job_spec()
    named = replace(plain, secrets={"TOKEN": "hf"})
    in_role = replace(plain, roles=(replace(plain.roles[0], secrets={"TOKEN": "hf"}), *plain.roles[1:]))
    placement = Placement(plain.roles[0].name, 0, "n", "i")
    for spec, suffix in ((plain, ""), (named, "+secrets"), (in_role, "+secrets")):
        plan = Plan(spec.name, "p", 1, "submit", (placement,))
        for record in (
            JobRecord(spec, "u", 0),
            bare_assignment(spec, "u", plan, placement),
            SubmitRequest(spec),
        ):
            body = json.loads(encode(record))
            assert body["record"] == type(record).__name__ + suffix
            # As releases wrote it before.
            body["record"] = type(record).__name__
            assert decode(type(record), json.dumps(body).encode()) == record


def test_a_job_that_its_first_worker_ends_is_unreadable_to_a_release_that_waits_for_all() -> None:
    for policy, suffix in ((SuccessPolicy.ALL_WORKERS, ""), (SuccessPolicy.WORKER_0, "+success_policy")):
        raw = encode(JobRecord(replace(job_spec(), success_policy=policy), "u", 0))
        assert json.loads(raw)["record"] == f"JobRecord{suffix}"


def test_a_job_with_an_hdfs_user_is_unreadable_to_a_release_that_would_reach_its_store_as_itself() -> None:
    record = JobRecord(job_spec(), "u", 0, hdfs_user="ann")
    body = json.loads(encode(record))
    assert body["record"] == "JobRecord+hdfs_user"
    # As the release before wrote it.
    body["record"] = "JobRecord"
    assert decode(JobRecord, json.dumps(body).encode()) == record
    assert json.loads(encode(replace(record, hdfs_user="")))["record"] == "JobRecord"


def test_no_record_has_a_field_of_the_envelope() -> None:
    @dataclass(frozen=True)
    class Odd:
        record: str

    with pytest.raises(AssertionError, match="envelope"):
        encode(Odd("x"))


def test_every_kind_of_record_has_one_name() -> None:
    names = [kind.__name__ for kind in KINDS]
    assert len(set(names)) == len(names)
    assert {AttemptReport, JobRecord, Prepared} <= set(KINDS)
