"""Errors of the program's own code before it has trained: chance once, the end of the job twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import JobSpec, Rule, Strategy
from tests.control.failing import (
    BUG,
    EVALUATED,
    LOST_PEER,
    end,
    kill,
    quiet,
    raised,
    spec_with,
)
from tests.control.world import World
from tests.support.builders import job_spec, role


def untrained(spec: JobSpec | None = None, nodes: int = 3) -> World:
    """A job that has begun and makes no step."""
    world = quiet(World(spec, nodes=nodes))
    return world.start()


def fail_again(world: World, member: str, tail: str) -> World:
    """A task ends with these last words, and what follows is awaited: a restart, or the job's end."""
    world.until(lambda: member in world.running())
    attempt = world.running()[member].attempt
    end(world, member, tail)
    world.until(
        lambda: (
            world.switch().phase is JobPhase.FAILED
            or (member in world.running() and world.running()[member].attempt != attempt)
        )
    )
    return world


def test_the_same_error_of_the_code_on_two_nodes_ends_the_job_with_it() -> None:
    world = fail_again(untrained(job_spec({"worker": 1}, Strategy.PLAIN)), "worker.0", BUG)
    assert world.switch().phase is JobPhase.RUNNING, "once may be chance"
    fail_again(world, "worker.0", BUG.replace("wrong", "wrong, at 0x7f33 and 12:01:07"))
    assert world.switch().phase is JobPhase.FAILED
    assert "ValueError: wrong" in world.switch().reason
    assert "the same ValueError at t.py:3 in <module> as on n" in world.switch().reason
    first, second = sorted(
        (held.value for held in world.job().incidents.values() if held.value.tail),
        key=lambda each: each.wall_ms,
    )
    assert first.node != second.node, "another node is tried before the program is blamed"
    assert (first.cause, second.cause) == (Cause.PROGRAM_EXIT, Cause.USER_ERROR)


def test_on_the_only_node_twice_is_enough() -> None:
    world = untrained(job_spec({"worker": 1}, Strategy.PLAIN), nodes=1)
    fail_again(world, "worker.0", BUG)
    assert world.switch().phase is JobPhase.RUNNING
    fail_again(world, "worker.0", BUG)
    assert world.switch().phase is JobPhase.FAILED


def test_two_tasks_that_raise_the_same_on_two_nodes_are_enough() -> None:
    world = untrained(job_spec({"worker": 2}, Strategy.MULTIWORKER))
    assert len({report.node for report in world.running().values()}) == 2
    end(world, "worker.1", BUG)
    fail_again(world, "worker.0", BUG)
    assert world.switch().phase is JobPhase.FAILED


HELPER = "Exception in thread Thread-1 (watch):\n" + raised(
    "RuntimeError: Attempted to use a closed Session."
)


def test_a_helper_thread_that_dies_later_hides_no_error_of_the_code() -> None:
    world = untrained(job_spec({"worker": 1}, Strategy.PLAIN), nodes=1)
    fail_again(world, "worker.0", BUG + HELPER)
    fail_again(world, "worker.0", BUG + HELPER)
    assert world.switch().phase is JobPhase.FAILED
    assert "ValueError: wrong" in world.switch().reason


def test_a_helper_thread_that_dies_later_hides_no_lost_peer() -> None:
    world = untrained(job_spec({"worker": 1}, Strategy.PLAIN), nodes=1)
    for _ in range(5):
        fail_again(world, "worker.0", LOST_PEER + HELPER)
    assert world.switch().phase is JobPhase.RUNNING
    causes = {held.value.cause for held in world.job().incidents.values()}
    assert causes == {Cause.SUBMITTED, Cause.PEER_LOST}, "nothing is charged"


OTHERWISE = {
    "another line": BUG.replace("line 3", "line 4"),
    "another exception": BUG.replace("ValueError", "KeyError"),
    "a lost peer": LOST_PEER,
    "a file": raised("FileNotFoundError: [Errno 2] No such file or directory: '/data/x'"),
    "no traceback": "ValueError: wrong\n",
    "of a lost peer": LOST_PEER + "\nDuring handling of the above exception, another occurred:\n\n" + BUG,
}


@pytest.mark.parametrize("tail", OTHERWISE.values(), ids=OTHERWISE)
def test_what_is_not_the_same_error_of_the_code_is_restarted_as_ever(tail: str) -> None:
    world = untrained(job_spec({"worker": 1}, Strategy.PLAIN), nodes=1)
    fail_again(world, "worker.0", BUG if "line 4" in tail or "KeyError" in tail else tail)
    fail_again(world, "worker.0", tail)
    assert world.switch().phase is JobPhase.RUNNING


def test_a_job_that_has_trained_is_not_failed_for_an_error_of_its_code() -> None:
    world = World(job_spec({"worker": 1}, Strategy.PLAIN), nodes=1).start()
    for _ in range(2):
        fail_again(world, "worker.0", BUG)
    assert world.switch().phase is JobPhase.RUNNING


def test_a_silent_job_with_a_checkpoint_has_trained() -> None:
    world = untrained(job_spec({"worker": 1}, Strategy.PLAIN), nodes=1)
    world.commit(1, 50)
    for _ in range(2):
        fail_again(world, "worker.0", BUG)
    assert world.switch().phase is JobPhase.RUNNING


@pytest.mark.parametrize(
    ("lived_s", "phase"), [(61, JobPhase.FAILED), (601, JobPhase.RUNNING)], ids=["starts", "trained"]
)
def test_a_silent_job_whose_attempts_live_longer_than_a_start_may_have_trained(
    lived_s: int, phase: JobPhase
) -> None:
    world = untrained(job_spec({"worker": 1}, Strategy.PLAIN), nodes=1)
    fail_again(world, "worker.0", BUG)
    for _ in range(lived_s):
        world.tick(1_000)
    fail_again(world, "worker.0", BUG)
    assert world.switch().phase is phase


def test_an_evaluator_that_finds_nothing_yet_does_not_end_the_job() -> None:
    world = untrained(job_spec(EVALUATED))
    for _ in range(2):
        fail_again(world, "evaluator.0", BUG)
    assert world.switch().phase is JobPhase.RUNNING


@pytest.mark.parametrize("cause", ["program_exit", "user_error"])
def test_a_job_may_say_that_errors_of_its_code_are_restarted(cause: str) -> None:
    spec = replace(spec_with(rules={cause: Rule.RESTART}), roles=(role("worker"),), strategy=Strategy.PLAIN)
    world = untrained(spec, nodes=1)
    for _ in range(2):
        fail_again(world, "worker.0", BUG)
    assert world.switch().phase is JobPhase.RUNNING


def test_the_first_error_of_a_worker_leaves_the_others_alone() -> None:
    world = untrained(job_spec({"chief": 1, "ps": 1, "worker": 2}))
    fail_again(world, "worker.1", BUG)
    assert world.switch().generation == 1


def test_an_error_of_a_warm_start_on_two_nodes_is_repeated_cold_before_the_job_fails() -> None:
    spec = replace(job_spec({"worker": 2}, Strategy.MULTIWORKER), preload=("tensorflow",))
    world = untrained(spec)
    assert not world.switch().cold
    end(world, "worker.1", BUG)
    fail_again(world, "worker.0", BUG)
    assert (world.switch().phase, world.switch().cold) == (JobPhase.RUNNING, True)
    world.until(lambda: len(world.running()) == 2)
    end(world, "worker.1", BUG)
    fail_again(world, "worker.0", BUG)
    assert world.switch().phase is JobPhase.FAILED


def test_an_error_of_attempts_that_may_have_been_warm_does_not_end_the_job() -> None:
    """An agent of an earlier release does not tell, and starts them warm whatever is asked of it."""
    spec = replace(job_spec({"worker": 2}, Strategy.MULTIWORKER), preload=("tensorflow",))
    world = untrained(spec)
    world.tells_warmth = False
    for _ in range(2):
        end(world, "worker.1", BUG)
        fail_again(world, "worker.0", BUG)
        world.until(lambda: len(world.running()) == 2)
    assert world.switch().phase is JobPhase.RUNNING


def test_only_the_restart_after_an_error_of_the_code_is_cold() -> None:
    spec = replace(job_spec({"worker": 1}, Strategy.PLAIN), preload=("tensorflow",))
    world = fail_again(untrained(spec), "worker.0", BUG)
    assert world.switch().cold
    world.until(lambda: "worker.0" in world.running())
    before = world.switch().generation
    kill(world, "worker.0")
    world.until(lambda: world.switch().generation > before)
    assert not world.switch().cold
