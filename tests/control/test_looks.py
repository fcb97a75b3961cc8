"""The cost of a look at a healthy cluster: the leader takes twenty a second over 2,000 lines of history."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from supervisor.contract import keys
from supervisor.contract.desired import JobPhase, JobSwitch
from supervisor.contract.incident import Event, Outcome
from supervisor.contract.job.goodput import Category, Goodput
from supervisor.contract.job.spec import JobIntent, JobRecord, RestartPolicy
from supervisor.control.decide.assess import progress
from supervisor.control.decide.assess.assess import assess
from supervisor.control.decide.assess.servers import MOST
from supervisor.control.decide.jobs.incidents import KEPT_EVENTS
from supervisor.control.decide.nodes.offers import grouped
from supervisor.control.decide.nodes.placement import Before, place
from supervisor.control.decide.plan import Action, put
from supervisor.control.decide.reconcile import reconcile
from supervisor.control.decide.rest import rests as resting
from supervisor.control.decide.rest.rests import Rests
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned
from tests.control.world import STEP_MS, World
from tests.support.builders import job_spec, offer, resources, role

FEW = 3
WORKERS = 120
MOST_AT_REST = 100
"""Bytecodes that a look may take for one more job and one more node at rest."""
NODE_CPUS = 4
"""Of each node of a world."""
if TYPE_CHECKING:
    from _typeshed import TraceFunction


class Read(tuple[Versioned[Event], ...]):
    """Events of which each that is walked over counts."""

    __slots__ = ()
    walked = 0

    def __iter__(self) -> Iterator[Versioned[Event]]:
        for event in super().__iter__():
            Read.walked += 1
            yield event


def test_a_look_at_a_healthy_cluster_does_not_read_its_history() -> None:
    world = World().start()
    for serial in range(1000, 1000 + KEPT_EVENTS):
        world.write(put(keys.event(serial), Event(0, "kind", "digits", "text", {})))
    world.tick()
    snap = world.snapshot()
    assert len(snap.events) == KEPT_EVENTS
    Read.walked = 0
    assert reconcile(replace(snap, events=Read(snap.events))) == ()
    assert Read.walked <= FEW


def test_what_follows_from_records_alone_is_found_once_for_all_pictures_of_them() -> None:
    world = World().start()
    looked: list[JobState] = []

    def rule(job: JobState) -> int:
        looked.append(job)
        return len(looked)

    first = world.snapshot()
    later = world.view.snapshot(world.now_ms + STEP_MS, 0, world.since_ms, world.token)
    assert [snap.jobs["digits"].once(rule) for snap in (first, later, first)] == [1, 1, 1]
    changed = replace(first.jobs["digits"], incidents={})
    assert (changed.once(rule), changed.once(rule)) == (2, 2)
    world.write(put(keys.event(1), Event(0, "kind", "", "text", {})))
    assert world.job().once(rule) == 1, "what is about no job changes none"
    world.write(put(keys.intent("digits"), first.jobs["digits"].intent.value))
    assert world.job().once(rule) == 3


def is_hurt(job: JobState) -> bool:
    """Whether an incident of the job is open: it is visited at each look."""
    return any(held.value.outcome is Outcome.OPEN for held in job.incidents.values())


def work(nodes: int, jobs: int, rests: Rests | None = None) -> int:
    """The bytecodes that a look takes, as times vary; with `rests`, of one that follows another."""
    world = World(nodes=nodes).start()
    record = world.job().record.value
    for number in range(jobs):
        name = f"other{number}"
        spec = replace(record.spec, name=name, roles=(role("worker", 2),))
        world.write(
            put(keys.job_record(name), JobRecord(spec, name, 0)),
            put(keys.switch(name), JobSwitch(name, name, JobPhase.WAITING, 0)),
            put(keys.intent(name), JobIntent()),
        )
    world.until(
        lambda: all(each.switch.value.phase is JobPhase.RUNNING for each in world.snapshot().jobs.values())
    )
    world.until(
        lambda: not reconcile(world.snapshot()) and not any(map(is_hurt, world.snapshot().jobs.values()))
    )
    if rests is not None:
        reconcile(world.snapshot(), rests=rests)
        reconcile(world.snapshot(), rests=rests)
    snap = world.snapshot()
    return bytecodes(lambda: reconcile(snap, rests=rests))


def bytecodes(call: Callable[[], object]) -> int:
    made = 0

    def count(frame: FrameType, event: str, _argument: object) -> TraceFunction:
        nonlocal made
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        made += event == "opcode"
        return count

    former = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(former)
    return made


def test_the_work_of_a_look_grows_with_the_cluster_and_no_faster() -> None:
    few, more, many = work(4, 4), work(24, 24), work(44, 44)
    assert few < more
    assert many - more < 1.03 * (more - few)


def judging(workers: int) -> int:
    """The bytecodes of a look at so many workers whose first incident is open, and of one at their paces."""
    world = World(job_spec({"chief": 1, "ps": 1, "worker": workers}), nodes=4)
    world.until(lambda: len(world.running()) == len(world.spec.tasks()))
    hurt = world.snapshot()
    assert is_hurt(hurt.jobs["digits"])
    for report in world.running().values():
        world.agents[report.node].tells[str(report.attempt)] = lambda beat: replace(beat, pace=10.0)
    world.tick()
    snap = world.snapshot()
    return bytecodes(lambda: reconcile(hurt)) + bytecodes(lambda: reconcile(snap))


def test_the_work_of_a_look_grows_with_the_tasks_of_a_job_and_no_faster() -> None:
    few, more, many = judging(8), judging(28), judging(48)
    assert many - more < 1.05 * (more - few)


def hanging(workers: int, hung: int, most_restarts: int) -> tuple[int, int]:
    """The bytecodes of what asks for restarts in a job of which none hangs, and so many of its tasks do."""
    spec = job_spec(
        {"chief": 1, "ps": 1, "worker": workers}, restart=RestartPolicy(max_restarts=most_restarts)
    )
    world = World(spec, nodes=1 + workers // 8)
    world.until(lambda: len(world.running()) == len(world.spec.tasks()))
    for _ in range(5):
        world.tick()
    well = world.snapshot()
    for index in range(1, hung + 1):
        report = world.running()[f"worker.{index}"]
        world.agents[report.node].tells[str(report.attempt)] = lambda beat: replace(beat, step_age_ms=50_000)
    for agent in world.agents.values():
        world._beat(agent)
    ill = world.snapshot()
    job = ill.jobs[spec.name]
    hang = assess(ill, job).liveness.judgement.hang
    assert hang is not None
    assert len(hang.others) == hung - 1
    return bytecodes(lambda: judged(well)), bytecodes(lambda: judged(ill))


def judged(snap: Snapshot) -> None:
    job = snap.jobs["digits"]
    found = assess(snap, job)
    progress.find(snap, job, found.members, found.liveness)
    progress.suspicions(snap, job, found)


@pytest.mark.parametrize(("hung", "most_restarts"), [(MOST - 1, 0), (WORKERS // 2, 0), (WORKERS // 2, 3)])
def test_tasks_that_hang_together_are_judged_with_little_more_work(hung: int, most_restarts: int) -> None:
    """Also where they are left running, which may be for days."""
    well, ill = hanging(WORKERS, hung, most_restarts)
    assert ill < 1.5 * well


def placing(nodes: int, tasks: int) -> int:
    """The bytecodes that it takes to place tasks on nodes with as much room each."""
    offers = grouped(offer(f"n{number:03}") for number in range(nodes))
    spec = job_spec((role("ps", 2, resources(cpus=2)), role("worker", tasks, resources(cpus=1))))
    return bytecodes(lambda: place(spec, offers, Before()))


def test_a_task_is_placed_with_as_much_work_on_any_number_of_nodes() -> None:
    assert placing(200, 10) < 1.01 * placing(100, 10)
    few, more, many = (placing(100, tasks) for tasks in (10, 40, 70))
    assert many - more < 1.05 * (more - few)


def crowd(nodes: int, jobs: int, cpus: float) -> World:
    """A world in which so many jobs wait. Each of their tasks asks for so many CPUs."""
    world = World(nodes=nodes).start()
    world.until(lambda: not reconcile(world.snapshot()))
    for number in range(jobs):
        name = f"other{number}"
        spec = job_spec((role("worker", 2, resources(cpus=cpus)),), name=name)
        world.write(
            put(keys.job_record(name), JobRecord(spec, name, 0)),
            put(keys.switch(name), JobSwitch(name, name, JobPhase.WAITING, 0)),
            put(keys.intent(name), JobIntent()),
            put(keys.goodput_of(name), waiting(name)),
        )
    return world


def waiting(name: str) -> Goodput:
    """The ledger of a job that is known to have no room."""
    return Goodput(job=name, job_uuid=name, since_wall_ms=0, wall_ms=0, category=Category.WAITING_ROOM)


def look_at_waiting(nodes: int, jobs: int, cpus: float) -> int:
    """The bytecodes of a look at so many jobs that wait."""
    snap = crowd(nodes, jobs, cpus).snapshot()
    made = bytecodes(lambda: reconcile(snap))
    kinds = [each.kind for each in reconcile(snap) if isinstance(each, Action)]
    assert kinds.count("prepare") == (0 if cpus > NODE_CPUS else jobs)
    return made


@pytest.mark.parametrize("cpus", [NODE_CPUS + 1, NODE_CPUS / 8])
def test_a_job_that_waits_asks_each_kind_of_node_and_not_each_node(cpus: float) -> None:
    """Those that find places do so in one look, and each takes room from those after it."""
    on_few, on_many = (look_at_waiting(nodes, 8, cpus) - look_at_waiting(nodes, 4, cpus) for nodes in (8, 24))
    assert on_many < 1.05 * on_few


def test_a_job_that_fits_nowhere_rests_while_others_change_and_nodes_have_as_much_left() -> None:
    world, rests = crowd(4, 3, NODE_CPUS + 1), Rests()
    assert not reconcile(world.snapshot(), rests=rests)
    waiting = {name: rest for name, rest in rests._jobs.items() if name != "digits"}
    assert len(waiting) == 3
    world.end_task("worker.1", signal=9)
    assert reconcile(world.snapshot(), rests=rests)
    assert all(rests._jobs[name] is rest for name, rest in waiting.items())


def test_what_rests_costs_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "SAMPLE_MS", 1_000_000_000)
    few, many = (work(size, size, Rests()) for size in (4, 44))
    assert many - few < 40 * MOST_AT_REST
    assert many < work(44, 44) / 50
