"""The cost of a look at a healthy cluster: the leader takes twenty a second over 2,000 lines of history."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

from supervisor.contract import keys
from supervisor.contract.desired import JobPhase, JobSwitch
from supervisor.contract.incident import Event
from supervisor.contract.job.spec import JobIntent, JobRecord
from supervisor.contract.timing import FAST
from supervisor.control.decide.jobs.incidents import KEPT_EVENTS
from supervisor.control.decide.plan import put
from supervisor.control.decide.reconcile import reconcile
from supervisor.control.decide.snapshot import JobState, Versioned
from tests.control.world import STEP_MS, World
from tests.support.builders import role

FEW = 3
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
    later = world.view.snapshot(world.now_ms + STEP_MS, 0, world.since_ms, world.token, FAST)
    assert [snap.jobs["digits"].once(rule) for snap in (first, later, first)] == [1, 1, 1]
    changed = replace(first.jobs["digits"], incidents={})
    assert (changed.once(rule), changed.once(rule)) == (2, 2)
    world.write(put(keys.event(1), Event(0, "kind", "digits", "text", {})))
    assert world.job().once(rule) == 1, "what is about no job changes none"
    world.write(put(keys.intent("digits"), first.jobs["digits"].intent.value))
    assert world.job().once(rule) == 3


def work(nodes: int, jobs: int) -> int:
    """The bytecodes that a look takes, as times vary."""
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
    world.until(lambda: not reconcile(world.snapshot()))
    snap, made = world.snapshot(), 0

    def count(frame: FrameType, event: str, _argument: object) -> TraceFunction:
        nonlocal made
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        made += event == "opcode"
        return count

    former = sys.gettrace()
    sys.settrace(count)
    try:
        reconcile(snap)
    finally:
        sys.settrace(former)
    return made


def test_the_work_of_a_look_grows_with_the_cluster_and_no_faster() -> None:
    few, more, many = work(4, 4), work(24, 24), work(44, 44)
    assert few < more
    assert many - more < 1.03 * (more - few)
