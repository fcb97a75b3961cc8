"""Ends of jobs, and starts after them."""

from __future__ import annotations

from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Cause, Outcome
from supervisor.contract.job.spec import Wanted
from supervisor.contract.observed import StageFailure
from supervisor.contract.timing import FAST
from tests.control.world import World
from tests.support.builders import job_spec


def test_success_after_the_last_checkpoint_is_dealt_with() -> None:
    world = World().start()
    for member in ("chief.0", "worker.0", "worker.1"):
        world.end_task(member, code=0)
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    assert "finishing" in world.done
    assert world.running() == {}


def test_a_workers_death_after_the_chief_is_done_is_no_failure() -> None:
    world = World().start()
    world.end_task("chief.0", code=0)
    world.tick()
    world.end_task("worker.0", code=1)
    world.end_task("worker.1", code=0)
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)


def test_after_a_long_run_too_the_workers_have_their_grace_from_the_chiefs_end() -> None:
    world = World().start()
    for _ in range(2 * FAST.completion_grace_ms // 1000):
        world.tick(1000)
    world.end_task("chief.0", code=0)
    took = world.until(lambda: world.switch().phase is JobPhase.FINISHING)
    assert took >= FAST.completion_grace_ms
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    assert "2 training tasks did not end within" in world.switch().reason, "not that all have finished"


def test_after_a_master_too_the_workers_have_their_grace() -> None:
    world = World(job_spec({"master": 1, "ps": 1, "worker": 2})).start()
    for _ in range(2 * FAST.completion_grace_ms // 1000):
        world.tick(1000)
    world.end_task("master.0", code=0)
    took = world.until(lambda: world.switch().phase is JobPhase.FINISHING)
    assert took >= FAST.completion_grace_ms


def test_a_report_of_a_life_that_is_over_does_not_outlive_its_job() -> None:
    """A job is stopped, one of its tasks is reported by nobody any more: the node's agent has begun anew."""
    world = World().start()
    report = world.running()["worker.0"]
    world.agents[report.node].acting = world.agents[report.node].beating = False
    world.intend(wanted=Wanted.STOP)
    world.register(report.node, "next").acting = False
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    assert str(report.attempt) in {str(each) for each in world.job().attempts}
    world.until(lambda: report.attempt not in world.job().attempts)
    assert len(world.job().attempts) == len(world.spec.tasks()) - 1, "how the others have ended stays"


def test_an_operators_stop_and_start() -> None:
    world = World().start()
    newest = world.commit(1, 50)
    world.intend(wanted=Wanted.STOP)
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    assert world.running() == {}
    world.intend(wanted=Wanted.RUN, serial=1)
    world.until(lambda: world.switch().phase is JobPhase.RUNNING)
    assert world.switch().base == newest
    assert world.switch().generation == 2


def test_a_start_is_not_the_restart_that_was_prepared_when_the_job_was_stopped() -> None:
    """The simulator's seed 7770485: the plan, and its incident, came into force with the next run."""
    world = World().start()
    for agent in world.agents.values():
        agent.delay = "its disk is full"
    world.intend(serial=1)
    world.until(lambda: world.job().next_plan is not None)
    world.intend(Wanted.STOP, serial=1)
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    world.intend(serial=2)
    for agent in world.agents.values():
        agent.delay = ""
    world.until(lambda: world.switch().phase is JobPhase.RUNNING)
    incidents = world.incidents()
    assert incidents[world.switch().incident].cause is Cause.SUBMITTED
    assert incidents["op-1"].outcome is Outcome.ENDED


def test_a_restart_asked_for_as_the_job_ends_does_not_start_it_again() -> None:
    world = World().start()
    for member in ("chief.0", "worker.0", "worker.1"):
        world.end_task(member, code=0)
    world.until(lambda: world.switch().phase is JobPhase.FINISHING)
    world.intend(serial=1)
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    for _ in range(20):
        world.tick()
    assert world.switch().phase is JobPhase.SUCCEEDED


def test_a_restart_asked_for_while_the_job_stops_starts_it_again() -> None:
    world = World().start()
    world.intend(wanted=Wanted.STOP)
    world.until(lambda: world.switch().phase is JobPhase.STOPPING)
    world.intend(serial=1)
    world.until(lambda: world.switch().phase is JobPhase.RUNNING)
    assert world.switch().generation == 2


def test_a_job_that_fails_before_its_restart_is_in_force_stays_failed() -> None:
    world = World().start()
    world.commit(1, 100)
    world.intend(wanted=Wanted.STOP)
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    for agent in world.agents.values():
        agent.staging = StageFailure.BAD
    world.intend(serial=1)
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    began = world.done.count("started")
    for _ in range(40):
        world.tick()
    assert world.done.count("started") == began
    assert world.switch().phase is JobPhase.FAILED
