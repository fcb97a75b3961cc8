"""The cadence of saves: the rate of failures that a program is told, and the lines of `status` on saves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.api.views import job_view
from supervisor.contract import keys
from supervisor.contract.desired import Assignment, Cadence, JobPhase
from supervisor.contract.job.spec import JobSpec, Strategy
from supervisor.contract.observed import Pace, Saves
from supervisor.control.decide.checkpoints.cadence import DAY_MS, PRIOR_WEIGHT, text
from supervisor.control.decide.plan import put
from tests.control.world import World, says_of_saves
from tests.support.builders import job_spec

STEERED = Pace(every_ms=9_000, cost_ms=36, pays_ms=9_000, own_ms=600_000)


def started(spec: JobSpec) -> World:
    made = World(spec)
    made.start()
    return made


def told(world: World, member: str) -> Cadence | None:
    job = world.job()
    assignment: Assignment = job.assignments[job.switch.value.plan_id, member].value
    return assignment.cadence


def fail(world: World, member: str) -> None:
    generation = world.switch().generation
    world.end_task(member, signal=9)
    world.until(lambda: world.switch().generation > generation and member in world.running())


@pytest.fixture
def spec() -> JobSpec:
    return job_spec({"chief": 1, "ps": 1, "worker": 2}, strategy=Strategy.ASYNC)


def test_the_saver_alone_is_told_a_failure_a_day_at_first(spec: JobSpec) -> None:
    world = started(spec)
    found = told(world, "chief.0")
    assert found == Cadence(PRIOR_WEIGHT, round(PRIOR_WEIGHT * DAY_MS), 0.01, steers=True)
    assert told(world, "ps.0") is told(world, "worker.0") is None


def test_failures_that_cost_steps_are_told_to_the_next_generation_by_any_leader(spec: JobSpec) -> None:
    world = started(spec)
    fail(world, "ps.0")
    world.new_leader()
    world.tick()
    fail(world, "ps.0")
    found = told(world, "chief.0")
    assert found is not None
    assert found.failures == PRIOR_WEIGHT + 2
    world.end_task("worker.0", signal=9)
    world.until(lambda: "worker.0" in world.running() and world.running()["worker.0"].number == 2)
    fail(world, "ps.0")
    after = told(world, "chief.0")
    assert after is not None
    assert after.failures == PRIOR_WEIGHT + 3, "a worker's restart in place costs no steps"
    world.intend(serial=1)
    world.until(lambda: world.switch().restart_serial == 1 and "chief.0" in world.running())
    assert told(world, "chief.0") == replace(after, failures=PRIOR_WEIGHT, over_ms=found.over_ms)


def test_a_job_that_wants_none_is_told_nothing(spec: JobSpec) -> None:
    off = replace(spec, checkpoint=replace(spec.checkpoint, cadence="off"))
    assert told(started(off), "chief.0") is None


def test_tasks_that_save_together_are_not_asked_each_at_its_own_time() -> None:
    many = told(started(job_spec({"worker": 2}, strategy=Strategy.MULTIWORKER)), "worker.0")
    one = told(started(job_spec({"worker": 1}, strategy=Strategy.MULTIWORKER)), "worker.0")
    assert many is not None
    assert one is not None
    assert (many.steers, one.steers) == (False, True)


def test_what_saves_cost_outlives_the_program(spec: JobSpec) -> None:
    world = started(spec)
    says_of_saves(world, "chief.0", Saves(inside=3, watched=True, pace=STEERED))
    world.tick()
    fail(world, "ps.0")
    found = told(world, "chief.0")
    assert found is not None
    assert found.cost_ms == 36


def test_status_says_how_often_it_saves_and_what_a_failure_would_cost(spec: JobSpec) -> None:
    world = started(spec)
    assert job_view(world.snapshot(), world.job()).cadence == ""
    says_of_saves(world, "chief.0", Saves(inside=3, watched=True, pace=STEERED))
    world.commit(1, 50)
    world.tick(0)
    world.tick(5_000)
    shown = job_view(world.snapshot(), world.job()).cadence
    assert shown == "saves every 9 s (0.4 % of the time); a failure now would cost 5 s"
    chief = world.running()["chief.0"]
    world.end_task("chief.0", code=0)
    ended = world.job().attempts[chief.attempt].value
    saves = Saves(inside=3, watched=True, pace=STEERED)
    world.write(put(keys.attempt(chief.attempt), replace(ended, saves=saves)))
    assert world.switch().phase is JobPhase.RUNNING
    assert job_view(world.snapshot(), world.job()).cadence == "", "it saves no more"


@pytest.mark.parametrize(
    ("pace", "said"),
    [
        (Pace(), ""),
        (replace(STEERED, every_ms=600_000, pays_ms=83_000, own_ms=-1),
         "saves on its own terms, every 600 s (0.0 % of the time); every 83 s would pay"),
        (replace(STEERED, every_ms=-1, own_ms=-1, cost_ms=1_500),
         "saves on its own terms, 1.5 s each; every 9 s would pay"),
        (replace(STEERED, every_ms=2_000),
         "saves every 2 s (1.8 % of the time); every 9 s would do"),
        (replace(STEERED, own_ms=-1, why="its tasks save together"),
         "saves on its own terms, every 9 s (0.4 % of the time); it is left alone: its tasks save together"),
        (Pace(every_ms=600_000, cost_ms=60),
         "saves on its own terms, every 600 s (0.0 % of the time)"),
    ],
)  # fmt: skip
def test_what_cannot_be_steered_is_told_with_what_would_pay(pace: Pace, said: str) -> None:
    assert text(pace, -1) == said
