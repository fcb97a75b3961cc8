"""A look leaves out jobs and nodes of which nothing has changed that a rule has read."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.contract import codec, keys
from supervisor.contract.desired import JobPhase, JobSwitch
from supervisor.contract.job.spec import (
    JobIntent,
    JobRecord,
    Limits,
    RestartPolicy,
    Rule,
    Scope,
    Strategy,
)
from supervisor.contract.observed import Incarnation, NodeResources, Sign, TaskBeat
from supervisor.contract.timing import FAST
from supervisor.control.decide.plan import put
from supervisor.control.decide.reconcile import reconcile
from supervisor.control.decide.rest import rests as resting
from supervisor.control.decide.rest.moment import Moment
from supervisor.control.decide.rest.news import is_news, settled
from supervisor.control.decide.rest.rests import Rests
from supervisor.control.decide.snapshot import BeatSeen
from tests.control.world import World
from tests.support.builders import job_spec, resources, role

NOW_MS = 1_000
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
MADE: tuple[Callable[[int, int], int], ...] = (
    lambda now, other: now - other,
    lambda now, other: other - now,
    lambda now, other: now + other,
    lambda now, other: other + now,
    lambda now, other: -now + other,
    lambda now, other: min(now - other, other),
    lambda now, other: max(0, other - now),
    lambda now, other: now + now - other,
)
numbers = st.integers(-3_000, 3_000)


@given(
    make=st.sampled_from(MADE),
    other=numbers,
    compare=st.sampled_from(COMPARISONS),
    limit=numbers,
    swapped=st.booleans(),
)
def test_an_answer_about_time_holds_for_as_long_as_it_says(
    make: Callable[[int, int], int],
    other: int,
    compare: Callable[[int, int], bool],
    limit: int,
    swapped: bool,
) -> None:
    def answer(now: int) -> bool:
        made = make(now, other)
        return compare(limit, made) if swapped else compare(made, limit)

    notes = [math.inf]
    found = answer(Moment(NOW_MS, notes.append))
    assert found == answer(NOW_MS)
    holds_ms = min(4_000.0, *notes)
    assert all(answer(NOW_MS + later) == found for later in range(int(holds_ms)))


@pytest.mark.parametrize("compare", COMPARISONS)
def test_an_answer_holds_no_shorter_than_it_is_true(compare: Callable[[int, int], bool]) -> None:
    for limit in (NOW_MS - 10, NOW_MS - 1, NOW_MS, NOW_MS + 1, NOW_MS + 10):
        notes: list[float] = []
        found = compare(Moment(NOW_MS, notes.append), limit)
        changes = [later for later in range(1, 100) if compare(NOW_MS + later, limit) != found]
        assert min(notes, default=math.inf) == min(changes, default=math.inf)


@pytest.mark.parametrize(
    "use",
    [
        lambda now: now // 2,
        lambda now: now * 3,
        lambda now: now / 1000,
        lambda now: now % 7,
        round,
        int,
        lambda now: f"{now} ms",
        lambda now: {now: "a key"},
        lambda now: now + 0.5,
        lambda now: now - Moment(5, lambda _ms: None),
    ],
)
def test_what_is_not_followed_holds_for_no_time(use: Callable[[int], object]) -> None:
    notes: list[float] = []
    use(Moment(NOW_MS, notes.append))
    assert 0 in notes


def visited(world: World) -> tuple[set[str], set[str]]:
    """The jobs and nodes that the leader's next look would visit."""
    world.rests.begin(world.snapshot())
    jobs = {visit.subject.name for visit in world.rests.jobs() if not visit.is_sample}
    nodes = {visit.subject.node for visit in world.rests.nodes() if not visit.is_sample}
    return jobs, nodes


def at_rest(monkeypatch: pytest.MonkeyPatch) -> World:
    """A job that trains, of which the leader has nothing to do."""
    monkeypatch.setattr(resting, "SAMPLE_MS", 1_000_000_000)
    world = World().start()
    world.rests = Rests()
    world.until(lambda: not reconcile(world.snapshot()) and visited(world) == (set(), set()))
    return world


def test_steps_and_beats_disturb_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    world = at_rest(monkeypatch)
    disturbed = 0
    for _ in range(20):
        world.tick(100, leader=False)
        disturbed += visited(world) != (set(), set())
        world.decide()
    assert disturbed <= 2, "they are asked again about hangs"


def test_a_record_of_a_job_wakes_that_job(monkeypatch: pytest.MonkeyPatch) -> None:
    world = at_rest(monkeypatch)
    intent = world.job().intent.value
    world.write(put(keys.intent("digits"), replace(intent, restart_serial=intent.restart_serial + 1)))
    assert visited(world) == ({"digits"}, set())


def test_news_in_a_beat_wakes_its_node_and_the_jobs_that_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    world = at_rest(monkeypatch)
    report = world.running()["worker.0"]

    def diverge(beat: TaskBeat) -> TaskBeat:
        return replace(beat, nan=True)

    world.agents[report.node].tells[str(report.attempt)] = diverge
    world.tick(100, leader=False)
    assert visited(world) == ({"digits"}, {report.node})


def test_a_silence_wakes_the_node_when_it_is_suspicious_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = at_rest(monkeypatch)
    node = world.node_of("worker.0")
    world.tick(100, leader=False)
    world.decide()
    world.agents[node].beating = False
    silent_ms = world.now_ms
    while node not in visited(world)[1]:
        world.tick(50, leader=False)
    beat = world.snapshot().nodes[node].beat
    assert beat is not None
    assert beat.received_ms <= silent_ms
    assert world.now_ms - beat.received_ms == FAST.suspect_ms


def test_a_beat_after_a_silence_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    world = at_rest(monkeypatch)
    node = world.node_of("worker.0")
    world.agents[node].beating = False
    for _ in range(FAST.suspect_ms // 50 + 1):
        world.tick(50, leader=False)
    before = world.snapshot().nodes[node].news
    world.agents[node].beating = True
    world.tick(50, leader=False)
    assert world.snapshot().nodes[node].news > before


def test_a_sample_finds_what_was_left_out_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    world = at_rest(monkeypatch)
    monkeypatch.setattr(resting, "SAMPLE_MS", 0)
    intent = world.job().intent.value
    world.write(put(keys.intent("digits"), replace(intent, restart_serial=intent.restart_serial + 1)))
    snap = world.snapshot()
    # As if nobody had noticed the change.
    (rest,) = world.rests._jobs.values()
    rest.job = snap.jobs["digits"]
    found = reconcile(snap, rests=world.rests)
    assert found == reconcile(snap)
    assert world.rests.wrong == ["job digits"]


def test_a_beat_that_was_under_way_for_longer_tells_of_no_later_step() -> None:
    before = BeatSeen(1_000, {"a": TaskBeat("a", 7, 400, 1, 900, signs=(Sign("step", 400, 100),))})
    late = BeatSeen(1_300, {"a": TaskBeat("a", 7, 650, 1, 1_200, signs=(Sign("step", 650, 100),))})
    found = settled(before, late, FAST)
    assert found.tasks["a"].step_age_ms == 700
    assert [sign.age_ms for sign in found.tasks["a"].signs] == [700]
    assert not is_news(before, found, FAST)
    again = BeatSeen(1_300, {"a": TaskBeat("a", 8, 20, 1, 1_200, signs=(Sign("step", 20, 100),))})
    assert settled(before, again, FAST) == again
    soon = BeatSeen(1_300, {"a": TaskBeat("a", 8, 690, 1, 1_200, signs=(Sign("step", 690, 100),))})
    assert settled(before, soon, FAST) == soon, "it has made a step"


def test_a_sign_of_work_that_is_too_old_is_news() -> None:
    spec = job_spec()
    spec = replace(spec, limits=Limits(startup_ms=60_000), progress=replace(spec.progress, watch_hangs=False))
    world = World(spec)
    began_ms = world.now_ms

    def idle(beat: TaskBeat) -> TaskBeat:
        """It has worked for five seconds, and made no step."""
        never = replace(beat, step=-1, step_age_ms=-1, first_step=-1, first_step_age_ms=-1, slowest_ms=-1)
        age_ms = max(0, world.now_ms - began_ms - 5_000)
        return replace(never, pace=-1.0, signs=(Sign("cpu", age_ms, -1),))

    for agent in world.agents.values():
        agent.tells["digits/worker:1@1.1"] = idle
    world.start()
    world.until(lambda: "restart_in_place" in world.done)
    assert 60_000 <= world.now_ms - began_ms < 63_000


def test_a_job_that_rests_sees_the_room_that_a_plan_of_the_same_look_leaves() -> None:
    roles = (role("chief"), role("evaluator", need=resources(cpus=1), follow=True))
    elsewhere = RestartPolicy(
        backoff_ms=3_000, rules={"program_exit": Rule.ELSEWHERE}, scope={"evaluator": Scope.TASK}
    )
    world = World(job_spec(roles, restart=elsewhere), nodes=1)
    offer(world, "n0")
    world.start()
    world.register("n1", "i1")
    offer(world, "n1")
    other = job_spec((role("worker", need=resources(cpus=1, labels={"home": "n0"})),), name="other")
    world.write(
        put(keys.job_record("other"), JobRecord(other, "other", 0)),
        put(keys.intent("other"), JobIntent()),
        put(keys.switch("other"), JobSwitch("other", "other", JobPhase.WAITING, 0)),
    )
    for _ in range(10):
        world.tick()
    assert not world.snapshot().jobs["other"].plans
    world.end_task("evaluator.0", code=1)
    # World compares each look with one that visits all.
    world.until(lambda: bool(world.snapshot().jobs["other"].plans))
    assert "moved" in world.done


def test_the_highest_priority_waits_first_and_of_equal_ones_the_oldest() -> None:
    world = World(nodes=0)
    one = (role("worker", need=resources(cpus=1)),)
    for name, priority in (("low", -1), ("first", 5), ("second", 5), ("none", 0)):
        spec = replace(job_spec(one, Strategy.PLAIN, name=name), priority=priority)
        world.write(
            put(keys.job_record(name), JobRecord(spec, name, 0)),
            put(keys.intent(name), JobIntent()),
            put(keys.switch(name), JobSwitch(name, name, JobPhase.WAITING, 0)),
        )
    started: list[str] = []
    for number in range(4):
        world.tick()
        node = f"n{number}"
        world.register(node, "i")
        offer(world, node)
        world.until(lambda count=number: len(planned(world)) > count)
        started += planned(world) - {*started}
    assert started == ["first", "second", "none", "low"]


def planned(world: World) -> set[str]:
    """The small jobs that have a place."""
    return {name for name, job in world.snapshot().jobs.items() if job.plans and name != "digits"}


def offer(world: World, node: str) -> None:
    """From now on the node has one CPU, and a label with its name."""
    held = codec.decode(Incarnation, world.store.read(keys.node(node))[0].value)
    world.write(
        put(keys.node(node), replace(held, resources=NodeResources(1, 1 << 33, labels={"home": node})))
    )
