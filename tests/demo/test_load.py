"""`benchmarks.load`: what it reads from the records in etcd, its plot, and a small cluster under it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.support.load_records import LoadRecords
from benchmarks.support.plot import lines_of, svg
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import KeyDeleted, KeyValue
from supervisor.contract.desired import Assignment, JobPhase, JobSwitch, LostMark, Placement, Plan
from supervisor.contract.ids import TaskId
from supervisor.contract.job.spec import JobRecord
from supervisor.contract.observed import (
    AttemptReport,
    AttemptState,
    Exit,
    ExitReason,
    Incarnation,
    NodeResources,
)
from tests.support.builders import GIB, job_spec, resources, role

ROOT = Path(__file__).resolve().parents[2]
OFFER = NodeResources(2.0, 4 * GIB)
LIFE = Incarnation("n1", "life1", "boot", 12_000, "h", "h:1", 20_000, 20_999, 1, OFFER)
RUNNING = AttemptReport("a", "worker", 0, 1, 1, "p1", "n1", "life1", AttemptState.RUNNING, 10, 1, "h:20000")


class Writes:
    """Puts records into what watches, each in a revision of its own."""

    def __init__(self) -> None:
        self.records = LoadRecords()
        self._revisions = itertools.count(1)
        self.put(keys.node("n1"), LIFE)

    def put(self, key: str, record: object, at_s: float = 0.0) -> None:
        revision = next(self._revisions)
        self.records.take([KeyValue(key, codec.encode(record), revision, revision)], at_s)

    def delete(self, key: str) -> None:
        self.records.take([KeyDeleted(key, next(self._revisions))], 0.0)

    def job(self, name: str, workers: int) -> None:
        """A job whose workers ask for one CPU each, all of them on n1."""
        spec = job_spec((role("worker", workers, resources(1.0)),), name=name)
        self.put(keys.job_record(name), JobRecord(spec, name, 0))
        self.plan(name, 1, workers)

    def plan(self, name: str, generation: int, workers: int) -> None:
        places = tuple(Placement("worker", index, "n1", "life1") for index in range(workers))
        plan_id = f"p{generation}"
        self.put(keys.plan(name, plan_id), Plan(name, plan_id, generation, "", places))


def test_a_node_with_more_tasks_than_room_is_found() -> None:
    writes = Writes()
    writes.job("a", 1)
    writes.job("b", 1)
    assert not writes.records.overcommitted
    assert writes.records.fullest == 1.0
    writes.job("c", 1)
    assert len(writes.records.overcommitted) == 1
    assert "n1: 3 CPUs of 2" in writes.records.overcommitted[0]


def test_the_next_generation_takes_the_room_of_the_present_one() -> None:
    writes = Writes()
    writes.job("a", 2)
    writes.put(keys.switch("a"), JobSwitch("a", "a", JobPhase.RUNNING, 1, "p1"))
    writes.plan("a", 2, 2)
    assert not writes.records.overcommitted


def test_an_attempt_takes_room_until_it_is_confirmed_dead() -> None:
    writes = Writes()
    writes.job("a", 1)
    key = keys.attempt(RUNNING.attempt)
    writes.put(key, RUNNING)
    writes.put(keys.switch("a"), JobSwitch("a", "a", JobPhase.STOPPED, 1, "p1"))
    writes.delete(keys.plan("a", "p1"))
    writes.job("b", 2)
    assert len(writes.records.overcommitted) == 1
    dead = Exit(ExitReason.KILLED, None, 9, 0, confirmed_dead=True)
    writes.put(key, replace(RUNNING, state=AttemptState.EXITED, exit=dead))
    writes.plan("b", 1, 2)
    assert len(writes.records.overcommitted) == 1


def test_a_kill_is_followed_until_its_task_runs_again() -> None:
    writes = Writes()
    records = writes.records
    kill = records.killed(RUNNING, 1.0)
    dead = Exit(ExitReason.EXIT, None, 9, 0, confirmed_dead=True)
    writes.put(keys.attempt(RUNNING.attempt), replace(RUNNING, state=AttemptState.EXITED, exit=dead), 2.0)
    order = Assignment("a", "a", "worker", 0, 1, "p1", "n1", "life1", 1, ("x",), "/")
    key = keys.assignment("n1", TaskId("a", "worker", 0), "p1")
    writes.put(key, order, 2.5)
    assert kill.ordered_s == -1
    writes.put(key, replace(order, attempt=2), 3.0)
    again = replace(RUNNING, number=2)
    writes.put(keys.attempt(again.attempt), again, 4.0)
    assert (kill.reported_s, kill.ordered_s, kill.running_s) == (2.0, 3.0, 4.0)
    assert not records.ended


def test_an_end_that_nobody_caused_is_told_of() -> None:
    writes = Writes()
    late = Exit(ExitReason.DEADLINE, None, 9, 0, confirmed_dead=True)
    writes.put(keys.attempt(RUNNING.attempt), RUNNING)
    writes.put(keys.attempt(RUNNING.attempt), replace(RUNNING, state=AttemptState.EXITED, exit=late))
    writes.put(keys.lost("n1", "life1"), LostMark("n1", "life1", "silent"), 5.0)
    assert writes.records.ended == [("n1", "a/worker:0@1.1: deadline")]
    assert writes.records.lost == {"n1": (5.0, "silent")}


def test_the_plot_has_a_line_for_each_measure() -> None:
    looks = [{"jobs": jobs, "tasks_of_one_more": 0, "look_ms": ms} for jobs, ms in ((10, 0.5), (100, 5.0))]
    scale = {"benchmark": "scale", "leaders": {"now": looks}}
    rest = {"leader": "s", "processes": {"s": {"percent": 4.0}, "etcd-0": {"percent": 1.0}}}
    load = {"benchmark": "load", "settings": {"agents": 50}, "at rest": rest}
    lines = lines_of([scale, load])
    assert [(each.name, each.points) for each in lines] == [
        ("a look in memory, ms", [(40, 0.5), (400, 5.0)]),
        ("leader, % of a core", [(50, 4.0)]),
        ("etcd (all members), % of a core", [(50, 1.0)]),
    ]
    assert svg(lines).count("<polyline") == 3


@pytest.mark.slow
def test_a_small_cluster_under_load() -> None:
    flags = ("--agents", "6", "--jobs", "2", "--minutes", "0.3", "--losses", "1", "--profile", "fast")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load", *flags],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"]["result"]["kills"] > 5
    assert found["node losses"]["result"]["tasks"] > 0
    assert found["change of leader"]["result"]["first_action_ms"]
    assert found["overcommitted"]["checks"] > 10
    assert found["false_losses"] == {}
    assert found["ended_by_themselves"]["count"] == 0
