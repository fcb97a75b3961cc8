"""A mounted job whose program found no checkpoint and began from scratch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.contract.checkpoint import CheckpointRef, CommitState
from supervisor.contract.incident import Cause, Incident
from supervisor.contract.job.spec import JobSpec, RestartPolicy, Rule, Scope
from tests.control.world import World
from tests.support.builders import job_spec

BASE = CheckpointRef(1, 500)
BEGAN_AT = 5
"""The first step that the agents of `World` report."""


def mounted(**rules: Rule) -> JobSpec:
    spec = job_spec(restart=RestartPolicy(rules=rules))
    return replace(spec, checkpoint=replace(spec.checkpoint, mode="mounted"))


def restarted(spec: JobSpec, step: int = BASE.step) -> World:
    """It goes on from its base, as far as anybody has told it."""
    world = World(spec).start()
    world.commit(1, step)
    world.end_task("chief.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    return world


def misses(world: World) -> list[Incident]:
    return [each for each in world.incidents().values() if each.cause is Cause.BASE_MISSED]


def test_a_run_that_began_before_its_base_is_restarted_once_and_its_commits_are_set_aside() -> None:
    world = restarted(mounted())
    wrong = world.commit(2, 100, BASE)
    world.until(lambda: world.switch().generation == 3)
    (found,) = misses(world)
    assert (found.scope, found.base, found.member) == (Scope.ALL, BASE, "chief.0")
    assert "its first step was 5, though it was to go on from g1-s500" in found.detail
    assert world.switch().base == BASE
    assert world.switch().ledger.program == 0
    record = world.job().commits[wrong].value
    assert record.state is CommitState.QUARANTINED
    assert record.reason == "suspected: saved by a run that had not restored g1-s500"
    # The program may count anew at each start: from the same base it is left alone then.
    world.until(lambda: len(world.running()) == 4)
    for _ in range(50):
        world.tick()
    assert world.switch().generation == 3
    assert len(misses(world)) == 1


def test_a_commit_between_the_decision_and_the_flip_is_set_aside_too() -> None:
    world = restarted(mounted())
    world.until(lambda: world.job().next_plan is not None)
    wrong = world.commit(2, 100, BASE)
    world.until(lambda: world.switch().generation == 3)
    assert world.switch().base == BASE
    assert world.job().commits[wrong].value.state is CommitState.QUARANTINED


@pytest.mark.parametrize(
    ("spec", "step"),
    [(job_spec(), BASE.step), (mounted(), BEGAN_AT), (mounted(base_missed=Rule.IGNORE), BASE.step)],
    ids=["staged", "it goes on", "the job ignores it"],
)
def test_nothing_is_done_where_nothing_was_missed(spec: JobSpec, step: int) -> None:
    world = restarted(spec, step)
    world.until(lambda: len(world.running()) == 4)
    for _ in range(50):
        world.tick()
    assert world.switch().generation == 2


def test_it_is_done_only_so_often_in_a_life() -> None:
    world = restarted(mounted())
    for number in range(3):
        world.until(lambda number=number: len(misses(world)) == number + 1)
        world.until(lambda: world.job().next_plan is None and len(world.running()) == 4)
        generation = world.switch().generation
        world.commit(generation, BASE.step * (generation + 1), world.switch().base)
        world.end_task("chief.0", signal=9)
        world.until(lambda generation=generation: world.switch().generation > generation)
    for _ in range(100):
        world.tick()
    assert len(misses(world)) == 3
