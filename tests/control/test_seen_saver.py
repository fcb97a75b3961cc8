"""The node of the task that saves commits, whatever its role is called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.contract import keys
from supervisor.contract.desired import JobPhase
from supervisor.contract.job.spec import Scope
from supervisor.contract.observed import AttemptReport, Saves
from supervisor.control.decide.plan import put
from tests.control.world import World
from tests.support.builders import job_spec

NOTHING, ONCE, TWICE = Saves(watched=True), Saves(watched=True, inside=1), Saves(watched=True, inside=2)
CHANGED = "saver_changed"


@pytest.fixture
def world() -> World:
    made = World(job_spec({"worker": 3, "ps": 1}))
    made.start()
    for index in range(3):
        says(made, f"worker.{index}", NOTHING)
    return made


def says(world: World, member: str, saves: Saves) -> None:
    """From now on a running attempt's process says so of its saves."""
    report = world.running()[member]
    world.agents[report.node].tells[str(report.attempt)] = lambda beat: replace(beat, saves=saves)


def ends(world: World, member: str, saves: Saves) -> AttemptReport:
    """The program of a task has ended well, and its agent says so; it has nothing of it to commit."""
    report = world.running()[member]
    world.end_task(member, code=0)
    held = world.job().attempts[report.attempt].value
    told = replace(held, saves=saves, drained=True)
    world.write(put(keys.attempt(report.attempt), told))
    return told


def ticks(world: World, count: int = 3) -> None:
    for _ in range(count):
        world.tick()


def test_another_task_that_alone_saves_is_the_saver_once_it_has_saved_twice(world: World) -> None:
    says(world, "worker.1", ONCE)
    ticks(world)
    assert world.job().saver.member == "worker.0"
    says(world, "worker.1", TWICE)
    ticks(world)
    assert world.job().saver.member == "worker.1"
    assert world.done.count(CHANGED) == 1


def test_the_expected_one_is_the_saver_as_soon_as_it_saves(world: World) -> None:
    says(world, "worker.1", TWICE)
    ticks(world)
    says(world, "worker.0", ONCE)
    ticks(world)
    assert world.job().saver.member == "worker.0"
    says(world, "worker.1", replace(TWICE, inside=9))
    ticks(world)
    assert world.job().saver.member == "worker.0"
    assert world.done.count(CHANGED) == 2


def test_where_several_others_save_nothing_is_changed(world: World) -> None:
    says(world, "worker.1", TWICE)
    says(world, "worker.2", ONCE)
    ticks(world)
    assert world.done.count(CHANGED) == 0


def test_of_a_saver_that_nothing_is_known_of_nothing_is_taken_away(world: World) -> None:
    says(world, "worker.0", Saves())
    says(world, "worker.1", TWICE)
    ticks(world)
    assert world.done.count(CHANGED) == 0, "it began cold: it may save unseen"
    report = world.running()["worker.0"]
    says(world, "worker.0", NOTHING)
    world.agents[report.node].omits.add(str(report.attempt))
    ticks(world)
    assert world.done.count(CHANGED) == 0, "its agent says nothing of it"


def test_a_saver_that_was_restarted_after_a_commit_is_not_one_that_saves_nothing() -> None:
    world = World(job_spec({"worker": 2, "ps": 1}, scope={"worker": Scope.TASK}))
    world.start()
    says(world, "worker.0", ONCE)
    ticks(world)
    world.commit(1, 10)
    before = world.running()["worker.0"].attempt
    world.end_task("worker.0", code=1)
    world.until(lambda: "worker.0" in world.running() and world.running()["worker.0"].attempt != before)
    says(world, "worker.0", NOTHING)
    says(world, "worker.1", TWICE)
    ticks(world, 8)
    assert world.done.count(CHANGED) == 0


@pytest.mark.parametrize("boot_id", ["boot", "another"])
def test_a_saver_whose_node_commits_what_only_it_can_see_stays_the_saver(world: World, boot_id: str) -> None:
    """A child process of it saves without a note. On one machine both may see the same files."""
    nodes = {report.attempt.task.member: report.node for report in world.running().values()}
    held = world.snapshot().nodes[nodes["worker.1"]].incarnation
    assert held is not None
    world.write(put(held.key, replace(held.value, boot_id=boot_id)))
    world.commit(1, 10, node=nodes["worker.0"])
    says(world, "worker.1", TWICE)
    ticks(world)
    assert world.job().saver.member == ("worker.1" if boot_id == "boot" else "worker.0")


def test_an_evaluator_that_saves_is_no_saver() -> None:
    world = World(job_spec({"worker": 1, "ps": 1, "evaluator": 1}))
    world.start()
    says(world, "worker.0", NOTHING)
    says(world, "evaluator.0", TWICE)
    ticks(world)
    assert world.done.count(CHANGED) == 0


def test_nothing_is_changed_while_the_switch_is_closing(world: World) -> None:
    for agent in world.agents.values():
        agent.stages = False
    world.end_task("ps.0", code=1)
    world.until(lambda: world.switch().closing is not None)
    says(world, "worker.1", TWICE)
    ticks(world)
    assert world.done.count(CHANGED) == 0


def test_the_next_generation_begins_with_the_one_that_was_seen(world: World) -> None:
    says(world, "worker.1", TWICE)
    ticks(world)
    world.end_task("ps.0", code=1)
    world.until(lambda: world.switch().generation == 2)
    world.new_leader()
    ticks(world)
    assert world.job().saver.member == "worker.1"


@pytest.mark.parametrize(("member", "scope"), [("worker.0", Scope.TASK), ("worker.1", Scope.ALL)])
def test_the_loss_of_the_seen_saver_restarts_all_and_that_of_another_worker_only_it(
    world: World, member: str, scope: Scope
) -> None:
    says(world, "worker.1", TWICE)
    ticks(world)
    world.end_task(member, code=1)
    world.until(lambda: any(each.member == member for each in world.incidents().values()))
    (incident,) = (each for each in world.incidents().values() if each.member == member)
    assert incident.scope is scope
    assert incident.rule.endswith(".saver") is (scope is Scope.ALL)


def test_a_checkpoint_that_another_task_saved_last_is_looked_for_before_the_job_succeeds(
    world: World,
) -> None:
    for agent in world.agents.values():
        agent.looks = False
    for member in ("worker.0", "worker.2"):
        ends(world, member, NOTHING)
    ends(world, "worker.1", ONCE)
    world.until(lambda: world.job().saver.member == "worker.1")
    ticks(world, 5)
    assert world.switch().phase is JobPhase.FINISHING
    for agent in world.agents.values():
        agent.looks = True
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    assert not world.switch().uncommitted


def test_a_mounted_job_keeps_its_saver() -> None:
    spec = job_spec({"worker": 2, "ps": 1})
    world = World(replace(spec, checkpoint=replace(spec.checkpoint, mode="mounted", uri="hdfs://h/x")))
    world.start()
    says(world, "worker.0", NOTHING)
    says(world, "worker.1", TWICE)
    ticks(world)
    assert world.done.count(CHANGED) == 0


@pytest.mark.parametrize(("workers", "saver"), [(2, "worker.0"), (4, "worker.2")])
def test_a_seen_saver_stays_so_while_it_is_in_the_plan_in_force(
    world: World, workers: int, saver: str
) -> None:
    """The last of three workers saves, and the job gets another size."""
    says(world, "worker.2", TWICE)
    ticks(world)
    assert world.job().saver.member == "worker.2"
    intent = world.job().intent.value
    world.write(put(keys.intent(world.spec.name), replace(intent, sizes={"worker": workers})))
    world.commit(1, 10)
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().saver == saver
    plan = world.job().plan_in_force
    assert plan is not None
    assert saver in {each.member for each in plan.value.placements}


def test_a_worker_that_has_left_the_generation_is_no_saver(world: World) -> None:
    plan = world.job().plan_in_force
    assert plan is not None
    says(world, "worker.2", TWICE)
    left = replace(plan.value, placements=tuple(p for p in plan.value.placements if p.member != "worker.2"))
    world.write(put(plan.key, left))
    ticks(world)
    assert world.done.count(CHANGED) == 0
