"""Each checker is shown a history that breaks its promise, written by hand, and one that does not."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

from chaos.sim.loop import SimProcess
from chaos.sim.promises import Promises
from chaos.sim.world import World
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Absent, Compare, CreatedAt, ModifiedAt, Put
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
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
from supervisor.contract.job import Scope
from supervisor.contract.observed import Incarnation, NodeResources
from tests.support.builders import ref, report

JOB = "digits"
LEADER = LeaderRecord("s1", "s1", 1)
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
        put = Put(key, codec.encode(record))
        assert self.world.etcd.commit_as(who, compares, [put], []).succeeded

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
        manifest = b"{}"
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


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path)
    made.lead(keys.switch(JOB), SWITCH)
    yield made
    made.world.loop.close()


ONE_CHARGED = Ledger(infrastructure=1)


def flip(history: History, base: CheckpointRef | None, ledger: Ledger = ONE_CHARGED) -> None:
    spec = ClusterSpec(JOB, 2, "plan-2", (RoleAddresses("ps", ("n1:1",)),))
    history.lead(keys.cluster_spec(JOB, "plan-2"), spec)
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
    history.lead(keys.switch(JOB), replace(switch, base=ref(1, 20)))
    assert history.broken == ["the base is the newest commit"]


def test_the_newest_is_collected(history: History) -> None:
    history.commit(ref(1, 10))
    held = history.world.etcd.read(keys.commit(JOB, ref(1, 10)))[0]
    record = codec.decode(CommitRecord, held.value)
    history.lead(held.key, replace(record, state=CommitState.COLLECTING))
    assert history.broken == ["the newest two and the base stay"]


@pytest.mark.parametrize("ledger", [Ledger(infrastructure=3), Ledger(program=-1)])
def test_a_failure_that_is_charged_twice_or_given_back(history: History, ledger: Ledger) -> None:
    flip(history, None, ledger=ledger)
    assert history.broken == ["one failure is charged once"]


def test_a_program_fault_that_never_happened(history: History) -> None:
    flip(history, None, ledger=Ledger(program=1))
    assert history.broken == ["only its own faults burn the budget"]


def test_a_generation_that_goes_back(history: History) -> None:
    history.lead(keys.switch(JOB), replace(SWITCH, generation=0))
    assert history.broken == ["generations only grow"]


def test_a_closed_incident_is_opened_again(history: History) -> None:
    incident = Incident("i-1", JOB, Cause.PROGRAM_EXIT, "", "", "", Scope.ALL, "", 0, 1)
    key = keys.incident_record(JOB, "i-1")
    history.lead(key, replace(incident, outcome=Outcome.RECOVERED))
    history.lead(key, incident)
    assert history.broken == ["a closed incident stays closed"]
