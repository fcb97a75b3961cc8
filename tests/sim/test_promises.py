"""Each checker is shown a history that breaks its promise, written by hand, and one that does not."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

from chaos.sim.cluster.loop import SimProcess
from chaos.sim.cluster.world import World
from chaos.sim.promises.checkers import Promises
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Absent, Compare, CreatedAt, ModifiedAt, Put
from supervisor.contract.checkpoint import CheckpointRef, CommitHead, CommitRecord, CommitState
from supervisor.contract.desired import (
    Closing,
    ClusterSpec,
    JobPhase,
    JobSwitch,
    LeaderRecord,
    Ledger,
    LostMark,
    RoleAddresses,
)
from supervisor.contract.incident import Cause, Incident, Outcome
from supervisor.contract.job.spec import CheckpointSpec, JobIntent, JobRecord, RestartPolicy, Scope
from supervisor.contract.observed import Appeal, Incarnation, NodeResources
from supervisor.control.decide.checkpoints.collecting import ADOPTED
from tests.support.builders import job_spec, ref, report

JOB, URI = "digits", "file:///checkpoints/digits"
LEADER = LeaderRecord("s1", "s1", 1)
MANIFEST = b'{"files": [{"name": "data"}]}'
SWITCH = JobSwitch(JOB, "uuid", JobPhase.RUNNING, 1, "plan-1")


class History:
    """Writes effects straight into the world's etcd, under the fences that a writer ought to use."""

    def __init__(self, root: Path) -> None:
        self.world = World(1, root)
        self.promises = Promises(self.world)
        self.leader = SimProcess("s1#1")
        self.agent = SimProcess("n1#1")
        self.write(self.leader, keys.LEADER, LEADER, Absent(keys.LEADER))
        self.write(self.agent, keys.node("n1"), incarnation("i1"), Absent(keys.node("n1")))

    def write(self, who: SimProcess, key: str, record: object, *compares: Compare) -> None:
        """With these compares, and all that such a write relies on besides."""
        puts = [Put(key, codec.encode(record))]
        also = {
            "switches": (key, keys.head(JOB), keys.plan(JOB, "plan-2")),
            "commits": (key, keys.node("n1"), keys.switch(JOB), keys.head(JOB)),
            "lost": (key, keys.node("n1")),
        }.get(key.partition("/")[0], ())
        if key.startswith("commits/"):
            puts.append(Put(keys.head(JOB), codec.encode(CommitHead(1, None))))
        if isinstance(record, Incarnation):
            also = tuple(keys.lost("n1", life) for life in record.succeeds)
        compared = {each.key for each in compares}
        relied = [self.as_it_is(name) for name in also if name not in compared]
        assert self.world.etcd.commit_as(who, [*compares, *relied], puts, []).succeeded

    def as_it_is(self, key: str) -> Compare:
        found = self.world.etcd.read(key)
        return ModifiedAt(key, found[0].mod_revision) if found else Absent(key)

    def lead(self, key: str, record: object, *more: Compare) -> None:
        self.write(self.leader, key, record, self.token(), *more)

    def report(self, key: str, record: object) -> None:
        self.write(self.agent, key, record, self.fence())

    def token(self) -> Compare:
        return CreatedAt(keys.LEADER, self.world.etcd.read(keys.LEADER)[0].create_revision)

    def fence(self) -> Compare:
        return ModifiedAt(keys.node("n1"), self.world.etcd.read(keys.node("n1"))[0].mod_revision)

    def commit(self, what: CheckpointRef, parent: CheckpointRef | None = None) -> None:
        path = f"c-{what}"
        manifest = MANIFEST
        self.world.disk.files |= {f"{path}/manifest.json": manifest, f"{path}/data": b"weights"}
        record = CommitRecord("uuid", what, parent, path, 7, "f1a5b4c7", "n1", "i1", 0)
        self.report(keys.commit(JOB, what), replace(record, manifest_crc32c=crc(manifest)))

    @property
    def broken(self) -> list[str]:
        return [line.split("[")[1].split("]")[0] for line in self.world.violations]


def crc(data: bytes) -> str:
    return f"{google_crc32c.value(data):08x}"


def incarnation(life: str, *succeeds: str) -> Incarnation:
    return Incarnation("n1", life, "boot", 4000, "n1", "n1:7000", 1, 2, 1, NodeResources(1.0, 1), succeeds)


def submit(history: History, checkpoint: CheckpointSpec) -> None:
    spec = replace(job_spec(), checkpoint=checkpoint)
    history.lead(keys.job_record(JOB), JobRecord(spec, "uuid", 0))


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path)
    submit(made, CheckpointSpec(URI))
    made.lead(keys.switch(JOB), SWITCH)
    yield made
    made.world.close()


ONE_CHARGED = Ledger(infrastructure=1)


def flip(history: History, base: CheckpointRef | None, ledger: Ledger = ONE_CHARGED) -> None:
    spec = ClusterSpec(JOB, 2, "plan-2", (RoleAddresses("ps", ("n1:1",)),))
    history.lead(keys.cluster_spec(JOB, "plan-2"), spec)
    history.lead(keys.switch(JOB), replace(SWITCH, closing=Closing("plan-2", base)))
    switch = replace(SWITCH, generation=2, plan_id="plan-2", base=base, ledger=ledger)
    history.lead(keys.switch(JOB), switch)


def test_an_ordinary_history_breaks_nothing(history: History) -> None:
    history.commit(ref(1, 10))
    history.commit(ref(1, 20))
    history.report(keys.attempt(report().attempt), report())
    history.lead(keys.switch(JOB), replace(SWITCH, closing=Closing("plan-2", ref(1, 20))))
    flip(history, ref(1, 20))
    assert history.broken == []


def test_a_write_without_the_token(history: History) -> None:
    history.write(history.leader, keys.switch(JOB), SWITCH)
    assert history.broken == ["every write is fenced"]


def test_a_write_under_another_leaders_token(history: History) -> None:
    history.write(SimProcess("s2#1"), keys.switch(JOB), SWITCH, history.token())
    assert history.broken == ["every write is fenced"]


def test_a_report_by_a_predecessor(history: History) -> None:
    old = history.fence()
    successor = SimProcess("n1#2")
    history.write(successor, keys.node("n1"), incarnation("i2", "i1"), old)
    history.write(history.agent, keys.attempt(report().attempt), report(), history.fence())
    assert history.broken == ["every write is fenced"]


def test_a_successor_of_a_marked_life(history: History) -> None:
    history.lead(keys.lost("n1", "i1"), LostMark("n1", "i1", "silent"))
    history.write(SimProcess("n1#2"), keys.node("n1"), incarnation("i2", "i1"), history.fence())
    assert "no life goes on past its lost mark" in history.broken


def test_a_commit_while_closing(history: History) -> None:
    history.lead(keys.switch(JOB), replace(SWITCH, closing=Closing("plan-2", None)))
    history.commit(ref(1, 10))
    assert history.broken == ["no late commit"]


def test_a_commit_of_an_older_generation(history: History) -> None:
    flip(history, None)
    history.commit(ref(1, 10))
    assert history.broken == ["no late commit"]


@pytest.mark.parametrize("base", [None, ref(1, 10)])
def test_a_base_that_is_not_the_newest(history: History, base: CheckpointRef | None) -> None:
    history.commit(ref(1, 10))
    history.commit(ref(1, 20))
    flip(history, base)
    assert history.broken == ["the base is the newest commit"]


def test_a_base_that_is_damaged_in_the_store(history: History) -> None:
    history.commit(ref(1, 10))
    del history.world.disk.files["c-g1-s10/data"]
    flip(history, ref(1, 10))
    assert history.broken == ["the base can be restored"]


def test_a_base_off_the_lineage(history: History) -> None:
    history.commit(ref(1, 10))
    history.commit(ref(1, 20))
    flip(history, ref(1, 20))
    assert history.promises.facts()["flips"] == 1
    history.commit(ref(2, 30), ref(1, 20))
    switch = replace(SWITCH, generation=3, plan_id="plan-2", ledger=Ledger(infrastructure=2))
    closing = Closing("plan-2", ref(1, 20))
    history.lead(keys.switch(JOB), replace(switch, generation=2, base=ref(1, 20), closing=closing))
    history.lead(keys.switch(JOB), replace(switch, base=ref(1, 20)))
    assert history.broken == ["the base is the newest commit"]


def lose(history: History) -> list[CommitRecord]:
    """Two commits; then etcd loses everything, and the job is submitted again. Returns the records."""
    history.commit(ref(1, 10))
    history.commit(ref(1, 20))
    held = [codec.decode(CommitRecord, each.value) for each in history.world.etcd.select("commits/")]
    history.world.lose_etcd()
    history.world.etcd.up()
    history.write(history.leader, keys.LEADER, LEADER, Absent(keys.LEADER))
    submit(history, CheckpointSpec(URI))
    history.lead(keys.intent(JOB), JobIntent())
    waiting = replace(SWITCH, phase=JobPhase.STOPPED, generation=2001, plan_id="", base=ref(1, 20))
    history.lead(keys.switch(JOB), waiting)
    assert history.broken == []
    return held


def rebuild(history: History, *records: CommitRecord) -> None:
    """The writes of a leader that rebuilds records, in one transaction."""
    puts = [Put(keys.commit(JOB, each.ref), codec.encode(each)) for each in records]
    puts.append(Put(keys.head(JOB), codec.encode(CommitHead(1, None))))
    relied = [history.as_it_is(name) for name in (keys.job_record(JOB), keys.intent(JOB), keys.head(JOB))]
    assert history.world.etcd.commit_as(history.leader, [history.token(), *relied], puts, []).succeeded


def test_what_etcd_has_lost_may_be_recorded_again(history: History) -> None:
    rebuild(history, *lose(history))
    assert history.broken == []


def test_a_rebuild_that_leaves_something_out(history: History) -> None:
    rebuild(history, lose(history)[0])
    assert history.broken == ["what etcd has forgotten is recorded again"]


def test_a_rebuild_that_takes_what_is_damaged_for_good(history: History) -> None:
    records = lose(history)
    history.world.rotten.add(records[0].path)
    rebuild(history, *records)
    assert history.broken == ["what is recorded again is read back"]


def test_a_rebuild_that_takes_what_is_good_for_damaged(history: History) -> None:
    first, second = lose(history)
    rebuild(history, replace(first, state=CommitState.QUARANTINED), second)
    assert history.broken == ["what is recorded again is read back"]


def test_a_commit_for_a_job_that_etcd_has_lost(history: History) -> None:
    lose(history)
    history.world.lose_etcd()
    history.world.etcd.up()
    history.write(history.agent, keys.node("n1"), incarnation("i1"), Absent(keys.node("n1")))
    history.commit(ref(1, 30))
    assert history.broken == ["no late commit"]


def collect(history: History, what: CheckpointRef) -> None:
    held = history.world.etcd.read(keys.commit(JOB, what))[0]
    record = codec.decode(CommitRecord, held.value)
    history.lead(held.key, replace(record, state=CommitState.COLLECTING))


NOT_OVER = "only a job that has ended takes an import"
NO_STEP = "a switch takes only the steps that there are"
STOPPED = replace(SWITCH, phase=JobPhase.STOPPED)
TAKEN = replace(STOPPED, generation=2)
IMPORTED = CommitRecord("uuid", ref(2, 50), None, "import", 7, crc(MANIFEST), "elsewhere", ADOPTED, 0)


@pytest.mark.parametrize(
    ("before", "after", "record", "broken"),
    [
        (STOPPED, TAKEN, IMPORTED, []),
        (STOPPED, STOPPED, replace(IMPORTED, ref=ref(1, 50)), ["an import takes a generation"]),
        (STOPPED, TAKEN, replace(IMPORTED, parent=ref(1, 10)), ["an import takes a generation"]),
        (STOPPED, replace(TAKEN, base=ref(1, 10)), IMPORTED, ["an import takes a generation"]),
        (STOPPED, TAKEN, replace(IMPORTED, size=8), ["an import is read back"]),
        (
            replace(STOPPED, held=("worker.0",)),
            TAKEN,
            IMPORTED,
            [NOT_OVER],
        ),
        (
            STOPPED,
            replace(TAKEN, phase=JobPhase.FAILED),
            IMPORTED,
            [NOT_OVER, NO_STEP],
        ),
        (SWITCH, TAKEN, IMPORTED, [NOT_OVER, NO_STEP]),
    ],
)
def test_a_checkpoint_from_elsewhere(
    history: History, before: JobSwitch, after: JobSwitch, record: CommitRecord, broken: list[str]
) -> None:
    history.commit(ref(1, 10))
    if before.phase.ended:
        history.lead(keys.switch(JOB), replace(SWITCH, phase=JobPhase.STOPPING))
    history.lead(keys.switch(JOB), before)
    history.world.disk.files |= {"import/manifest.json": MANIFEST, "import/data": b"weights"}
    what = keys.commit(JOB, record.ref)
    puts = [
        Put(what, codec.encode(record)),
        Put(keys.head(JOB), codec.encode(CommitHead(2, record.ref))),
        Put(keys.switch(JOB), codec.encode(after)),
    ]
    read = (what, keys.head(JOB), keys.switch(JOB), keys.job_record(JOB), keys.intent(JOB))
    compares = [history.token(), *map(history.as_it_is, read)]
    assert history.world.etcd.commit_as(history.leader, compares, puts, []).succeeded
    assert history.broken == broken


def test_the_newest_is_collected(history: History) -> None:
    history.commit(ref(1, 10))
    collect(history, ref(1, 10))
    assert history.broken == ["the newest two and the base stay"]


@pytest.mark.parametrize(
    ("keeps", "broken"),
    [
        (CheckpointSpec(URI, keep=2), []),
        (CheckpointSpec(URI, keep=3), ["what the policy keeps stays"]),
        (CheckpointSpec(URI, keep=2, keep_every=15), ["what the policy keeps stays"]),
        (CheckpointSpec(URI, keep=2, keep_every=9), ["what the policy keeps stays"]),
        (CheckpointSpec(URI, keep=2, keep_for_ms=60_000), ["what the policy keeps stays"]),
    ],
)
def test_what_the_policy_keeps_is_collected(
    history: History, keeps: CheckpointSpec, broken: list[str]
) -> None:
    submit(history, keeps)
    for step in (10, 20, 30):
        history.commit(ref(1, step))
    collect(history, ref(1, 10))
    assert history.broken == broken


def test_of_those_steps_it_was_not_the_first(history: History) -> None:
    submit(history, CheckpointSpec(URI, keep=2, keep_every=25))
    for step in (10, 20, 30, 40):
        history.commit(ref(1, step))
    collect(history, ref(1, 20))
    assert history.broken == []


@pytest.mark.parametrize(
    ("patience_ms", "troubled_s", "base", "broken"),
    [
        (1_000, 0.0, ref(1, 20), []),
        (1_000, 0.0, ref(1, 10), ["a fallback is one step back"]),
        (None, 0.0, ref(1, 20), ["a fallback is one step back"]),
        (1_000, -60.0, ref(1, 20), ["only what cannot be read is passed over"]),
    ],
)
def test_an_older_base_is_chosen(
    history: History, patience_ms: int | None, troubled_s: float, base: CheckpointRef, broken: list[str]
) -> None:
    submit(history, CheckpointSpec(URI, fallback_after_ms=patience_ms))
    for step in (10, 20, 30):
        history.commit(ref(1, step))
    history.lead(keys.switch(JOB), replace(SWITCH, closing=Closing("plan-2", ref(1, 30))))
    history.world.network.troubled_s = troubled_s
    history.lead(keys.switch(JOB), replace(SWITCH, closing=Closing("plan-2", base)))
    assert history.broken == broken
    if not broken:
        flip(history, base)
        assert history.broken == []


@pytest.mark.parametrize("ledger", [Ledger(infrastructure=3), Ledger(program=-1)])
def test_a_failure_that_is_charged_twice_or_given_back(history: History, ledger: Ledger) -> None:
    flip(history, None, ledger=ledger)
    assert history.broken == ["one failure is charged once"]


def test_a_program_fault_that_never_happened(history: History) -> None:
    flip(history, None, ledger=Ledger(program=1))
    assert history.broken == ["only its own faults burn the budget"]


@pytest.mark.parametrize(
    ("policy", "broken"),
    [
        (RestartPolicy(max_restarts=2, max_in_window=1), []),
        (RestartPolicy(max_restarts=1), ["a budget is not overdrawn"]),
        (RestartPolicy(max_in_window=0), ["a budget is not overdrawn"]),
    ],
)
def test_a_budget_that_is_overdrawn(history: History, policy: RestartPolicy, broken: list[str]) -> None:
    history.lead(keys.job_record(JOB), JobRecord(replace(job_spec(), restart=policy), "uuid", 0))
    hang = Incident("h", JOB, Cause.HANG, "digits/worker:0", "n1", "r", Scope.ALL, "", 0, 1)
    history.lead(keys.incident_record(JOB, "h"), hang)
    flip(history, None, ledger=Ledger(program=1, streak=2))
    assert history.broken == broken


def test_a_generation_that_goes_back(history: History) -> None:
    history.lead(keys.switch(JOB), replace(SWITCH, generation=0))
    assert history.broken == ["generations only grow"]


def test_a_generation_that_nothing_brings(history: History) -> None:
    history.lead(keys.switch(JOB), replace(SWITCH, generation=2, phase=JobPhase.FINISHING))
    assert history.broken == ["generations only grow"]


@pytest.mark.parametrize(
    "steps",
    [
        (replace(SWITCH, phase=JobPhase.SUCCEEDED),),
        (replace(SWITCH, phase=JobPhase.FINISHING), SWITCH),
        (replace(SWITCH, phase=JobPhase.STOPPING, closing=Closing("plan-2", None)),),
    ],
)
def test_a_step_that_there_is_not(history: History, steps: tuple[JobSwitch, ...]) -> None:
    for each in steps:
        history.lead(keys.switch(JOB), each)
    assert history.broken == [NO_STEP]


@pytest.mark.parametrize("closing", [None, Closing("plan-1", None), Closing("plan-2", ref(1, 10))])
def test_a_flip_past_its_close(history: History, closing: Closing | None) -> None:
    history.lead(keys.cluster_spec(JOB, "plan-2"), ClusterSpec(JOB, 2, "plan-2", ()))
    history.lead(keys.switch(JOB), replace(SWITCH, closing=closing))
    history.lead(keys.switch(JOB), replace(SWITCH, generation=2, plan_id="plan-2", ledger=ONE_CHARGED))
    assert history.broken == [NO_STEP]


def test_a_closed_incident_is_opened_again(history: History) -> None:
    incident = Incident("i-1", JOB, Cause.PROGRAM_EXIT, "", "", "", Scope.ALL, "", 0, 1)
    key = keys.incident_record(JOB, "i-1")
    history.lead(key, replace(incident, outcome=Outcome.RECOVERED))
    history.lead(key, incident)
    assert history.broken == ["a closed incident stays closed"]


def test_a_flip_that_does_not_compare_the_list_of_commits(history: History) -> None:
    switch = replace(SWITCH, generation=2, plan_id="plan-2", ledger=ONE_CHARGED)
    spec = ClusterSpec(JOB, 2, "plan-2", (RoleAddresses("ps", ("n1:1",)),))
    history.lead(keys.cluster_spec(JOB, "plan-2"), spec)
    history.lead(keys.switch(JOB), replace(SWITCH, closing=Closing("plan-2", None)))
    relied = [history.token(), *map(history.as_it_is, (keys.switch(JOB), keys.plan(JOB, "plan-2")))]
    put = Put(keys.switch(JOB), codec.encode(switch))
    assert history.world.etcd.commit_as(history.leader, relied, [put], []).succeeded
    assert history.broken == ["a decision compares what it relies on"]


def test_a_mark_over_whoever_holds_the_key(history: History) -> None:
    key = keys.lost("n1", "i1")
    put = Put(key, codec.encode(LostMark("n1", "i1", "silent")))
    compares = [history.token(), Absent(key)]
    assert history.world.etcd.commit_as(history.leader, compares, [put], []).succeeded
    assert history.broken == ["a decision compares what it relies on"]


def test_a_good_checkpoint_is_quarantined(history: History) -> None:
    history.commit(ref(1, 10))
    held = history.world.etcd.read(keys.commit(JOB, ref(1, 10)))[0]
    record = replace(codec.decode(CommitRecord, held.value), state=CommitState.QUARANTINED, reason="bad")
    history.lead(held.key, record)
    assert history.broken == ["only what is bad is quarantined"]


def test_a_damaged_checkpoint_may_be_quarantined(history: History) -> None:
    history.commit(ref(1, 10))
    del history.world.disk.files["c-g1-s10/data"]
    held = history.world.etcd.read(keys.commit(JOB, ref(1, 10)))[0]
    record = replace(codec.decode(CommitRecord, held.value), state=CommitState.QUARANTINED, reason="bad")
    history.lead(held.key, record)
    assert history.broken == []


def test_what_fell_off_the_lineage_is_collected_at_once(history: History) -> None:
    for step in (10, 20, 30):
        history.commit(ref(1, step))
    history.lead(
        keys.switch(JOB), replace(SWITCH, generation=2, plan_id="plan-1", base=ref(1, 10), ledger=ONE_CHARGED)
    )
    history.world.violations.clear()
    held = history.world.etcd.read(keys.commit(JOB, ref(1, 20)))[0]
    history.lead(held.key, replace(codec.decode(CommitRecord, held.value), state=CommitState.COLLECTING))
    assert history.broken == ["what fell off the lineage stays for days"]


def test_a_restart_without_a_record(history: History) -> None:
    switch = replace(SWITCH, incident="g1-worker.0-a1", ledger=ONE_CHARGED)
    history.lead(keys.switch(JOB), switch)
    assert history.broken == ["a restart has a record and is charged"]


def test_a_restart_that_is_not_charged(history: History) -> None:
    incident = Incident("i-1", JOB, Cause.KILLED, "", "", "", Scope.TASK, "", 1, 1)
    history.lead(keys.incident_record(JOB, "i-1"), incident)
    history.lead(keys.switch(JOB), replace(SWITCH, incident="i-1"))
    assert history.broken == ["a restart has a record and is charged"]


def test_an_appeal_that_nobody_heard(history: History) -> None:
    mark, key = LostMark("n1", "i1", "silent"), keys.lost("n1", "i1")
    history.lead(key, mark)
    history.write(history.agent, keys.appeal("n1", "i1"), Appeal("n1", "i1"), history.as_it_is(key))
    history.world.loop.run_until_complete(asyncio.sleep(3))
    history.write(history.leader, key, replace(mark, final=True), history.token(), history.as_it_is(key))
    assert history.broken == ["an appeal is heard"]


def test_a_manifest_without_its_data(history: History) -> None:
    file = '{"files": [{"name": "data", "size": 7, "crc32c": "00000000"}]}'
    history.world.disk.files["g00001-s0000000010.x/manifest.json"] = file.encode()
    for look in history.world.disk_changed:
        look()
    assert history.broken == ["a manifest comes after its data"]
