"""The end of training: an evaluator may judge the last checkpoint, and nobody else is waited for."""

from __future__ import annotations

from dataclasses import replace

from supervisor.contract import keys
from supervisor.contract.desired import LAST_LOOK, LOOK_ASIDE, LOOK_FOR_JUDGES, JobPhase
from supervisor.contract.job.spec import Limits, Scope, Strategy, Wanted
from supervisor.contract.observed import AttemptReport, Exit, ExitReason, Saves
from supervisor.contract.timing import FAST
from supervisor.control.decide.plan import put
from supervisor.control.decide.view import View
from tests.control.world import World
from tests.support.builders import job_spec, role

GRACE_MS = 8_000


def finishing() -> World:
    """Chief and workers have ended; an evaluator and a TensorBoard run beside them."""
    roles = (
        role("chief"),
        role("ps"),
        role("worker", count=2),
        role("evaluator", follow=True),
        role("tensorboard", follow=True),
    )
    spec = replace(job_spec(), roles=roles, limits=Limits(save_grace_ms=GRACE_MS))
    world = World(spec).start()
    world.commit(1, 500)
    world.steps["evaluator"] = 400
    for member in ("chief.0", "worker.0", "worker.1"):
        world.end_task(member, code=0)
    world.until(lambda: world.switch().phase is JobPhase.FINISHING)
    return world


def test_an_evaluator_judges_the_last_checkpoint_before_the_job_has_succeeded() -> None:
    world = finishing()
    for _ in range(40):
        world.tick()
    assert set(world.running()) == {"evaluator.0"}, "servers and TensorBoard are stopped at once"
    world.steps["evaluator"] = 500
    took = world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    assert took < 1_000


def test_an_evaluator_that_ends_by_itself_is_not_waited_for() -> None:
    world = finishing()
    world.end_task("evaluator.0", code=0)
    assert world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED) < 1_000


def test_an_evaluator_that_does_not_come_to_the_last_checkpoint_is_stopped_in_the_end() -> None:
    world = finishing()
    took = world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    assert GRACE_MS < took < GRACE_MS + FAST.suspect_ms + 1_500
    assert "node_cordoned" not in world.done


def test_the_time_to_judge_begins_with_the_last_commit() -> None:
    world = finishing()
    saver = world.job().record.value.spec.saver.member
    assert saver == "chief.0"
    began = world.now_ms
    world.until(lambda: not world.switch().save_grace_ms)
    assert world.now_ms - began >= GRACE_MS


def test_the_last_save_is_looked_for_when_all_that_may_write_are_dead() -> None:
    """A parameter server is not confirmed dead for a while; the evaluator has its own time before that."""
    world = finishing()
    server = next(each for each in world.job().attempts.values() if each.value.role == "ps").value
    world._exited(server, Exit(ExitReason.KILLED, None, 9, 0, confirmed_dead=False))
    for _ in range(20):
        world.tick()
    assert world.switch().look == 0
    world._exited(server, Exit(ExitReason.KILLED, None, 9, 0, confirmed_dead=True), drained=True)
    world.until(lambda: world.switch().look == LOOK_FOR_JUDGES)
    assert set(world.running()) == {"evaluator.0"}
    for agent in world.agents.values():
        agent.obedient = False
    world.steps["evaluator"] = 500
    world.until(lambda: not world.switch().save_grace_ms)
    for _ in range(20):
        world.tick()
    assert world.switch().look == LOOK_FOR_JUDGES, "the evaluator may write"
    world.end_task("evaluator.0", signal=9)
    for agent in world.agents.values():
        agent.obedient = True
    world.until(lambda: world.switch().look == LAST_LOOK)
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    assert not world.switch().uncommitted


def test_a_save_that_could_not_be_committed_is_named() -> None:
    world = finishing()
    world.end_task("evaluator.0", code=0)
    for agent in world.agents.values():
        agent.looks = False
    world.until(lambda: world.switch().look == LAST_LOOK)
    chief = next(each for each in world.job().attempts.values() if each.value.role == "chief").value
    found = replace(chief, look=LAST_LOOK, drained=True, uncommitted="g1-s600 (no space)")
    world.write(put(keys.attempt(chief.attempt), found))
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    assert world.switch().uncommitted == f"g1-s600 (no space) (a copy stays on {chief.node}) is not committed"
    assert world.switch().reason.endswith(f"; warning: {world.switch().uncommitted}")


def test_saves_of_another_task_that_only_its_own_node_sees_are_named() -> None:
    world = finishing()
    for node in world.agents:
        held = world.snapshot().nodes[node].incarnation
        assert held is not None
        world.write(put(held.key, replace(held.value, boot_id=node)))
    worker = next(each.value for each in world.job().attempts.values() if each.value.role == "worker")
    world.write(put(keys.attempt(worker.attempt), replace(worker, saves=Saves(inside=3, watched=True))))
    world.end_task("evaluator.0", code=0)
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    chief = next(each.value for each in world.job().attempts.values() if each.value.role == "chief")
    apart = chief.node != worker.node
    assert apart == bool(world.switch().uncommitted)
    assert not apart or f"{worker.attempt.task} has saved below $CHECKPOINT_DIR" in world.switch().uncommitted


def apart(world: World) -> list[str]:
    """Each node has files of its own; those that have a task, but not the saver."""
    for node in world.agents:
        held = world.snapshot().nodes[node].incarnation
        assert held is not None
        world.write(put(held.key, replace(held.value, boot_id=node)))
    nodes = {each.value.role: each.value.node for each in world.job().attempts.values()}
    others = {each.value.node for each in world.job().attempts.values()} - {nodes["chief"]}
    assert others
    return sorted(others)


def test_a_save_that_only_the_node_of_another_task_sees_is_looked_for_and_named() -> None:
    """A program without hooks notes no save: a look at the directory finds it."""
    world = finishing()
    others = apart(world)
    world.agents[others[0]].aside = "g1-s600"
    world.end_task("evaluator.0", code=0)
    world.until(lambda: world.switch().look == LAST_LOOK)
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    assert world.switch().look == LOOK_ASIDE, "after the saver's node, which may have committed a newer one"
    assert f"(a copy stays on {others[0]}) is not committed" in world.switch().uncommitted
    assert world.switch().uncommitted.startswith("g1-s600 of ")
    assert "only saves of digits/chief:0 are" in world.switch().reason


def test_nodes_that_see_the_savers_files_are_not_asked_for_their_own() -> None:
    world = finishing()
    world.end_task("evaluator.0", code=0)
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    assert (world.switch().look, world.switch().uncommitted) == (LAST_LOOK, "")


def test_a_node_that_does_not_look_for_saves_of_its_own_in_time_is_named() -> None:
    world = finishing()
    others = apart(world)
    world.end_task("evaluator.0", code=0)
    world.agents[others[0]].looks = False
    took = world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    assert took >= FAST.commit_deadline_ms
    assert f"is not known: {others[0]} has not looked for it in time" in world.switch().uncommitted


def test_an_evaluator_that_was_ended_before_its_last_evaluation_is_named() -> None:
    world = finishing()
    world.until(lambda: world.switch().save_grace_ms == 0)
    world.end_task("evaluator.0", signal=9)
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    assert "warning: evaluator:0 ended before it had judged g1-s500" in world.switch().reason
    assert "not committed" not in world.switch().reason


def test_a_stop_that_cuts_off_a_save_says_how_many_steps_are_lost() -> None:
    world = World(job_spec({"worker": 1}, Strategy.PLAIN)).start()
    ref = world.commit(1, 120)
    world.steps["worker"] = 150
    world.tick()
    world.intend(Wanted.STOP, save=True)
    world.until(lambda: world.switch().phase is JobPhase.STOPPING)
    world.end_task("worker.0", signal=9)
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    assert f"warning: it was ended before it had saved; steps lost: 30, after {ref}" in world.switch().reason


def unkillable() -> tuple[World, AttemptReport]:
    """A server cannot be killed for longer than the last commit may take, as where D is longer than that."""
    world = finishing()
    world.end_task("evaluator.0", code=0)
    server = next(each for each in world.job().attempts.values() if each.value.role == "ps").value
    world._exited(server, Exit(ExitReason.KILLED, None, 9, 0, confirmed_dead=False))
    world.until(lambda: not world.switch().save_grace_ms)
    world.new_leader()
    world.view = View(replace(FAST, commit_deadline_ms=FAST.d_ms // 2))
    world.until(lambda: world.switch().look > 0)
    return world, server


def test_a_look_while_something_may_write_is_not_the_last_one() -> None:
    world, server = unkillable()
    for _ in range(5):
        world.tick()
    world._exited(server, Exit(ExitReason.KILLED, None, 9, 0, confirmed_dead=True), drained=True)
    for agent in world.agents.values():
        agent.looks = False
    for _ in range(5):
        world.tick()
    assert world.switch().phase is JobPhase.FINISHING, "it may have saved since"
    for agent in world.agents.values():
        agent.looks = True
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    assert world.switch().look == LAST_LOOK
    assert not world.switch().uncommitted


def test_a_job_ends_though_a_task_of_it_is_not_confirmed_dead() -> None:
    world, _ = unkillable()
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    left = "ps.0 could not be confirmed dead, so that a later save would not be committed"
    assert world.switch().uncommitted == left


def stopped_between_attempts(*, looks: bool) -> World:
    spec = job_spec()
    world = World(replace(spec, restart=replace(spec.restart, scope={"chief": Scope.TASK}))).start()
    for agent in world.agents.values():
        agent.starts, agent.looks = False, looks
    world.end_task("chief.0", code=1)
    world.until(lambda: "restart_in_place" in world.done)
    for _ in range(20):
        world.tick()
    world.intend(Wanted.STOP)
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    return world


def test_the_last_save_is_looked_for_at_a_stop_between_two_attempts_of_the_saver() -> None:
    world = stopped_between_attempts(looks=True)
    assert (world.switch().look, world.switch().uncommitted) == (LAST_LOOK, "")


def test_a_stop_between_two_attempts_of_the_saver_says_that_its_last_save_may_be_lost() -> None:
    left = stopped_between_attempts(looks=False).switch().uncommitted
    assert left.startswith("whether its last save is committed is not known: n")
    assert left.endswith(" has not looked for it in time")
