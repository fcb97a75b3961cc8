"""The leader's decisions, rule by rule, over scripted agents."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.checkpoints.retention import DAY_MS
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.checkpoint import CheckpointRef, CommitState
from supervisor.contract.desired import JobPhase, LostMark
from supervisor.contract.errors import InvariantBroken
from supervisor.contract.incident import PHASES, Cause, Event, Outcome
from supervisor.contract.job import RestartPolicy, Scope, Strategy, Wanted
from supervisor.contract.observed import ExitReason, StageFailure
from supervisor.contract.timing import FAST
from supervisor.control.incidents import KEPT_EVENTS
from supervisor.control.plan import Action, put
from supervisor.control.reconcile import reconcile, waiting_for
from tests.control.world import STEP_MS, World
from tests.support.builders import job_spec, resources, role


def node_of(world: World, member: str) -> str:
    return world.running()[member].node


def lose(world: World, node: str) -> None:
    """Power off: no beat and no act from now on."""
    world.agents[node].acting = False


def test_a_submitted_job_comes_into_force_by_prepare_close_flip() -> None:
    world = World().start()
    assert [kind for kind in world.done if kind in {"prepare", "close", "flip"}] == [
        "prepare",
        "close",
        "flip",
    ]
    assert world.switch().generation == 1
    assert set(world.running()) == {"chief.0", "ps.0", "worker.0", "worker.1"}
    assert world.incidents()["submit"].outcome is Outcome.RECOVERED


def test_jobs_that_are_planned_in_one_look_have_plans_of_their_own() -> None:
    world = World()
    world.spec = replace(world.spec, name="letters")
    world.submit()
    plans = [
        each for each in reconcile(world.snapshot()) if isinstance(each, Action) and each.kind == "prepare"
    ]
    assert {each.job for each in plans} == {job_spec().name, "letters"}
    assert len({each.fields["plan"] for each in plans}) == 2, "agents know ports and bases by the plan's id"


def test_a_restart_that_is_asked_for_before_the_start_is_the_start() -> None:
    world = World()
    world.until(lambda: "prepare" in world.done)
    world.intend(serial=1)
    world.start()
    assert world.switch().generation == 1
    assert world.switch().restart_serial == 1
    assert world.switch().ledger.infrastructure == 0
    assert set(world.incidents()) == {"submit"}


def test_agents_of_one_machine_avoid_each_others_ports() -> None:
    world = World().start()
    ended = world.running()["worker.0"]
    world.end_task("worker.0", signal=9, confirmed=False)
    world.until(lambda: world.switch().generation == 2)
    plan, port = world.switch().plan_id, int(ended.address.rpartition(":")[2])
    avoided = {
        held.value.node: held.value.avoid_ports
        for (plan_id, _), held in world.job().assignments.items()
        if plan_id == plan
    }
    assert len(avoided) > 1
    assert all(port in ports for ports in avoided.values()), "all of them are at 127.0.0.1"


def test_a_lost_worker_is_restarted_in_place_and_explained() -> None:
    world = World().start()
    before = world.running()
    world.end_task("worker.0", signal=9)
    world.until(lambda: "worker.0" in world.running() and world.running()["worker.0"].number == 2)
    world.tick()
    world.tick()
    after = world.running()
    assert after["worker.0"].node == before["worker.0"].node
    assert after["chief.0"] == before["chief.0"]
    assert world.switch().generation == 1
    incident = world.incidents()["g1-worker.0-a1"]
    assert incident.cause is Cause.KILLED
    assert incident.scope is Scope.TASK
    assert incident.outcome is Outcome.RECOVERED
    assert incident.to_step == 5
    assert world.switch().ledger.infrastructure == 1


def test_a_lost_parameter_server_is_a_new_generation_from_the_newest_commit() -> None:
    world = World().start()
    world.commit(1, 100)
    newest = world.commit(1, 200)
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().base == newest
    world.until(lambda: world.incidents()["g1-ps.0-a1"].outcome is Outcome.RECOVERED)
    incident = world.incidents()["g1-ps.0-a1"]
    assert incident.scope is Scope.ALL
    assert set(incident.phases_ms) == set(PHASES) - {"all_running"}


def test_training_that_goes_on_before_all_of_it_runs_is_told_when_it_did() -> None:
    """Chaos: one worker's process could not be killed for ten seconds, and the others went on without it."""
    world = World(nodes=4).start()
    late = world.agents[world.running()["worker.1"].node]
    late.starts = False
    began_ms = world.now_ms
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 3)
    stepped_ms = world.now_ms - began_ms
    world.until(lambda: world.now_ms - began_ms > 10_000)
    assert world.incidents()["g1-ps.0-a1"].outcome is Outcome.OPEN
    late.starts = True
    world.until(lambda: len(world.running()) == 4)
    all_ms = world.now_ms - began_ms
    world.until(lambda: world.incidents()["g1-ps.0-a1"].outcome is Outcome.RECOVERED)
    incident = world.incidents()["g1-ps.0-a1"]
    assert abs(incident.to_first_step_ms - stepped_ms) <= 2 * STEP_MS
    assert abs(incident.total_ms - all_ms) <= 2 * STEP_MS


def test_a_commit_between_close_and_flip_makes_the_flip_stale() -> None:
    world = World().start()
    world.end_task("ps.0", signal=9)
    while world.switch().closing is None:
        world.tick()
    flip = _action(world, "flip")
    world.commit(1, 300)
    assert not world.run(flip)


def test_a_base_that_was_brought_in_before_a_boot_is_brought_in_again() -> None:
    """The disk need not have it: a restore does not wait for that (decision 0018)."""
    world = World().start()
    slow, booted = (world.running()[member].node for member in ("worker.0", "worker.1"))
    assert slow != booted
    first = set(world.job().staged)
    world.agents[slow].stages = False
    world.end_task("ps.0", signal=9)

    def staged() -> set[str]:
        return {held.value.node for key, held in world.job().staged.items() if key not in first}

    world.until(lambda: booted in staged())
    agent = world.register(booted, "booted", succeeds=(world.agents[booted].incarnation,), boot_id="boot2")
    agent.stages = False
    world.agents[slow].stages = True
    world.until(lambda: slow in staged())
    for _ in range(5):
        world.tick()
    assert world.switch().generation == 1
    agent.stages = True
    world.until(lambda: world.switch().generation == 2)


def _action(world: World, kind: str) -> Action:
    world.tick(leader=False)
    (action,) = [a for a in reconcile(world.snapshot()) if isinstance(a, Action) and a.kind == kind]
    return action


def test_a_deposed_leaders_decision_has_no_effect() -> None:
    world = World().start()
    world.end_task("worker.0", signal=9)
    old = world.token
    action = _action(world, "restart_in_place")
    world.new_leader()
    assert not world.run(action, old)
    assert world.run(action)


def test_an_attempt_that_is_not_confirmed_dead_is_not_restarted_at_its_address() -> None:
    world = World().start()
    world.end_task("worker.0", signal=9, confirmed=False)
    generation = world.switch().generation
    world.tick()
    assert "restart_in_place" not in world.done
    world.until(lambda: world.switch().generation == generation + 1)
    assert "not confirmed dead" in world.incidents()["g1-worker.0-a1"].rule


def test_a_silent_node_is_marked_but_not_replaced_before_d() -> None:
    world = World().start()
    node = node_of(world, "worker.0")
    lose(world, node)
    took = world.until(lambda: world.switch().generation == 2)
    assert FAST.suspect_ms + FAST.d_ms <= took <= FAST.suspect_ms + FAST.d_ms + 500
    assert node not in {report.node for report in world.running().values()}
    incident = next(i for i in world.incidents().values() if i.cause is Cause.NODE_LOST)
    assert incident.node == node


def test_the_flip_that_replaces_a_node_makes_its_mark_final_and_an_appeal_too_late() -> None:
    world = World().start()
    node = node_of(world, "worker.0")
    lose(world, node)
    world.until(lambda: world.switch().generation == 2)
    incarnation = world.agents[node].incarnation
    world.appeal(node, incarnation)
    for _ in range(20):
        world.tick()
    mark = world.snapshot().nodes[node].marks[incarnation]
    assert mark.value.final


def test_an_appeal_withdraws_the_mark_and_nothing_is_restarted() -> None:
    world = World().start()
    node = node_of(world, "worker.0")
    before = world.running()
    world.agents[node].beating = False
    incarnation = world.agents[node].incarnation
    world.until(lambda: incarnation in world.snapshot().nodes[node].marks)
    world.appeal(node, incarnation)
    world.agents[node].beating = True
    for _ in range(200):
        world.tick()
    assert world.running() == before
    assert not world.snapshot().nodes[node].marks
    assert [i for i in world.incidents().values() if i.cause is Cause.NODE_LOST] == []
    assert world.job().next_plan is None


def test_a_second_appeal_over_the_first_is_heard_too() -> None:
    world = World().start()
    node = node_of(world, "worker.0")
    incarnation = world.agents[node].incarnation
    world.agents[node].beating = False
    for _ in range(2):
        world.until(lambda: incarnation in world.snapshot().nodes[node].marks)
        world.appeal(node, incarnation, "successor")
        world.decide()
        assert not world.snapshot().nodes[node].marks


def test_a_leader_whose_watch_is_late_hears_an_appeal_that_is_made_again_and_again() -> None:
    world = World().start()
    node = node_of(world, "worker.0")
    incarnation = world.agents[node].incarnation
    world.agents[node].beating = False
    world.until(lambda: incarnation in world.snapshot().nodes[node].marks)
    world.appeal(node, incarnation)
    decided = [each for each in reconcile(world.snapshot()) if isinstance(each, Action)]
    (cleared,) = [each for each in decided if each.kind == "node_cleared"]
    world.appeal(node, incarnation)
    assert world.run(cleared)


def test_an_adopted_task_is_no_incident() -> None:
    world = World().start()
    node = node_of(world, "worker.0")
    old = world.agents[node]
    old.beating = False
    world.until(lambda: old.incarnation in world.snapshot().nodes[node].marks)
    world.appeal(node, old.incarnation, "successor")
    world.until(lambda: not world.snapshot().nodes[node].marks)
    heir = world.register(node, "successor", succeeds=(old.incarnation,))
    heir.started = old.started
    before = world.running()
    for _ in range(200):
        world.tick()
    assert world.running() == before
    assert set(world.incidents()) == {"submit"}


def test_a_node_whose_key_vanished_is_marked_before_its_tasks_are_replaced() -> None:
    world = World().start()
    node = node_of(world, "worker.0")
    lose(world, node)
    world.write(Delete(keys.node(node)))
    world.tick()
    assert world.snapshot().nodes[node].marks
    took = world.until(lambda: world.switch().generation == 2)
    assert took >= FAST.d_ms - 100


def test_a_process_failure_elsewhere_does_not_shorten_the_wait_for_a_silent_node() -> None:
    world = World().start()
    node = node_of(world, "worker.1")
    other = "ps.0" if node_of(world, "ps.0") != node else "chief.0"
    lose(world, node)
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    world.end_task(other, signal=9)
    took = world.until(lambda: world.switch().generation == 2)
    assert took >= FAST.d_ms - 100


def test_a_new_leader_waits_d_again() -> None:
    world = World().start()
    node = node_of(world, "worker.0")
    lose(world, node)
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    for _ in range(FAST.d_ms // 50 - 10):
        world.tick()
    world.new_leader()
    took = world.until(lambda: world.switch().generation == 2)
    assert took >= FAST.d_ms


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_any_leader_finishes_what_another_began(limits: list[int]) -> None:
    """Each round is cut off after a few transactions, and a leader that knows nothing goes on."""
    world = World().start()
    world.commit(1, 100)
    world.end_task("ps.0", signal=9)
    for most in limits:
        world.now_ms += 50
        world.decide(most)
        world.new_leader()
        world.tick(leader=False)
    world.until(lambda: world.switch().generation >= 2 and len(world.running()) == 4)
    assert world.switch().ledger.infrastructure == 1
    assert world.switch().base == CheckpointRef(1, 100)
    for _ in range(10):
        world.tick()
    assert [i.id for i in world.incidents().values() if i.cause is Cause.KILLED] == ["g1-ps.0-a1"]
    assert set(world.job().plans) == {world.switch().plan_id}


def test_a_bad_base_is_quarantined_and_the_one_before_it_restored() -> None:
    world = World().start()
    good = world.commit(1, 100)
    bad = world.commit(1, 200)
    for agent in world.agents.values():
        agent.staging = StageFailure.BAD
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.job().commits[bad].value.state is CommitState.QUARANTINED)
    for agent in world.agents.values():
        agent.staging = None
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().base == good
    assert "flipped byte" in world.job().commits[bad].value.reason


def test_an_unreadable_base_is_waited_for_with_the_reason_shown() -> None:
    world = World().start()
    world.commit(1, 100)
    for agent in world.agents.values():
        agent.staging = StageFailure.UNKNOWN
    world.end_task("ps.0", signal=9)
    for _ in range(100):
        world.tick()
    assert world.switch().generation == 1
    snap = world.snapshot()
    assert "g1-s100" in waiting_for(snap, snap.jobs["digits"])
    for agent in world.agents.values():
        agent.staging = None
    world.until(lambda: world.switch().generation == 2)


def test_none_left_where_some_existed_is_a_stop() -> None:
    world = World().start()
    world.commit(1, 100)
    for agent in world.agents.values():
        agent.staging = StageFailure.BAD
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    assert "no checkpoint is left" in world.switch().reason


def test_a_program_that_fails_again_and_again_backs_off_then_fails_with_its_last_lines() -> None:
    world = World(job_spec(restart=RestartPolicy(max_restarts=2, backoff_ms=1000))).start()
    for _ in range(2):
        world.end_task("worker.0", code=1)
        world.until(lambda: "worker.0" in world.running())
    world.end_task("worker.0", code=1)
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    assert "3 program faults in a row" in world.switch().reason
    assert world.incidents()["g1-worker.0-a3"].tail == "last words"
    assert world.incidents()["g1-worker.0-a3"].outcome is Outcome.FAILED


def test_budget_survives_a_change_of_leader() -> None:
    world = World(job_spec(restart=RestartPolicy(max_restarts=1, backoff_ms=1000))).start()
    world.end_task("worker.0", code=1)
    world.until(lambda: "worker.0" in world.running())
    world.new_leader()
    world.end_task("worker.0", code=1)
    world.until(lambda: world.switch().phase is JobPhase.FAILED)


def test_a_task_that_cannot_be_prepared_fails_the_job_with_its_reason() -> None:
    world = World(job_spec(restart=RestartPolicy(max_restarts=1, backoff_ms=100)))
    for agent in world.agents.values():
        agent.refuses = "no such interpreter: /nowhere/python"
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    assert "/nowhere/python" in world.switch().reason


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


def with_a_plan_that_waits() -> World:
    """A parameter server has failed, and no agent can prepare what follows, for now."""
    world = World().start()
    for agent in world.agents.values():
        agent.delay = "its disk is full"
    world.end_task("ps.0", code=1)
    world.until(lambda: world.job().next_plan is not None)
    return world


def test_a_plan_that_took_effect_unseen_is_not_written_over_from_the_same_look() -> None:
    """The simulator's seed 9840191: tasks were assigned to the nodes of both, and started twice."""
    world = World()
    snap = world.snapshot()
    fewer = {name: node for name, node in snap.nodes.items() if name != "n1"}
    later = replace(snap, nodes=fewer)
    first, second = (
        next(each for each in reconcile(look) if isinstance(each, Action) and each.kind == "prepare")
        for look in (snap, later)
    )
    assert world.run(first)
    plan = world.job().next_plan
    assert not world.run(second)
    assert world.job().next_plan == plan


def test_what_restarts_one_task_leaves_open_what_a_lost_plan_was_for() -> None:
    """The simulator's seeds 9840018 and 9840328: a generation began from an incident that was over."""
    world = with_a_plan_that_waits()
    failed = next(iter(world.incidents().keys() - {"submit"}))
    silent = node_of(world, "chief.0")
    world.agents[silent].beating = False
    world.until(lambda: (plan := world.job().next_plan) is not None and plan.value.incident != failed)
    other = next(each for each in ("worker.0", "worker.1") if node_of(world, each) != silent)
    world.end_task(other, signal=9)
    world.until(lambda: other in world.running() and world.running()[other].number == 2)
    assert world.incidents()[failed].outcome is Outcome.OPEN
    for agent in world.agents.values():
        agent.beating, agent.delay = True, ""
    world.appeal(silent, world.agents[silent].incarnation)
    world.until(lambda: world.incidents()[failed].outcome is Outcome.RECOVERED)
    assert world.switch().incident == failed


def test_a_plan_whose_incident_is_over_is_not_taken_for_another_failure() -> None:
    """The simulator's seed 9850042: its task had been restarted in place before the plan came into force."""
    world = with_a_plan_that_waits()
    plan = world.job().next_plan
    assert plan is not None
    held = world.job().incidents[plan.value.incident]
    world.write(put(held.key, replace(held.value, outcome=Outcome.SUPERSEDED)))
    world.intend(serial=1)
    for agent in world.agents.values():
        agent.delay = ""
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().incident == "op-1"


def test_an_operators_restart_is_done_once() -> None:
    world = World().start()
    world.intend(serial=1)
    world.until(lambda: world.switch().generation == 2)
    for _ in range(50):
        world.tick()
    assert world.switch().generation == 2
    assert world.incidents()["op-1"].cause is Cause.OPERATOR


def test_an_operators_restart_of_one_worker_is_in_place() -> None:
    world = World().start()
    world.intend(serial=1, member="worker.1")
    world.until(lambda: "restart_in_place" in world.done)
    assert world.switch().generation == 1


def test_a_task_killed_by_its_own_agent_is_restarted() -> None:
    world = World().start()
    world.end_task("worker.0", signal=9, reason=ExitReason.KILLED)
    world.until(
        lambda: world.running().get("worker.0") is not None and world.running()["worker.0"].number == 2
    )


def test_a_job_that_does_not_fit_waits_and_says_for_what() -> None:
    roles = (role("chief"), role("ps"), role("worker", 20, resources(cpus=1)))
    world = World(job_spec(roles))
    for _ in range(20):
        world.tick()
    snap = world.snapshot()
    assert world.switch().phase is JobPhase.WAITING
    assert "cpu" in waiting_for(snap, snap.jobs["digits"]).lower()


def test_surplus_checkpoints_are_collected_record_first() -> None:
    world = World().start()
    for step in range(10):
        world.commit(1, step * 10)
    for _ in range(40):
        world.tick()
    left = sorted(ref.step for ref in world.job().commits)
    assert left == [50, 60, 70, 80, 90]
    assert all(d.record.state is CommitState.COLLECTING for d in world.deleted)


def test_a_broken_invariant_stops_the_leader() -> None:
    world = World().start()
    world.commit(7, 100)
    with pytest.raises(InvariantBroken, match="not in force yet"):
        world.tick()


def test_a_second_mark_of_a_registered_node_is_not_written() -> None:
    world = World().start()
    node = node_of(world, "worker.0")
    incarnation = world.agents[node].incarnation
    world.write(put(keys.lost(node, incarnation), LostMark(node, incarnation, "by hand")))
    world.agents[node].beating = False
    marked = world.done.count("node_suspected")
    for _ in range(20):
        world.tick()
    assert world.done.count("node_suspected") == marked


def test_a_disobedient_agent_is_given_up_and_its_node_cordoned_until_it_is_restarted() -> None:
    world = World().start()
    node = node_of(world, "worker.0")
    world.agents[node].obedient = False
    world.end_task("ps.0" if node_of(world, "ps.0") != node else "chief.0", signal=9)
    world.until(lambda: world.snapshot().nodes[node].cordon is not None)
    mark = world.snapshot().nodes[node].marks[world.agents[node].incarnation]
    assert mark.value.final
    world.register(node, "fresh")
    world.until(lambda: world.snapshot().nodes[node].cordon is None)


def test_a_node_on_which_a_task_cannot_be_killed_is_given_up_though_its_launcher_is_gone() -> None:
    """Its successor cannot start there while it may live, and nobody would start it anywhere else."""
    world = World().start()
    node = node_of(world, "worker.0")
    world.end_task("worker.0", signal=9, confirmed=False)
    world.until(lambda: world.switch().generation == 2)
    assert world.snapshot().nodes[node].cordon is None
    took_ms = world.until(lambda: world.snapshot().nodes[node].cordon is not None)
    assert took_ms <= 3 * world.snapshot().timing.d_ms
    assert world.snapshot().nodes[node].marks[world.agents[node].incarnation].value.final


def test_fallback_after_restores_the_one_before_an_unreadable_base() -> None:
    spec = job_spec()
    world = World(replace(spec, checkpoint=replace(spec.checkpoint, fallback_after_ms=2000))).start()
    older, newest = world.commit(1, 100), world.commit(1, 200)
    world.wall_ms = 9 * DAY_MS
    for agent in world.agents.values():
        agent.staging = StageFailure.UNKNOWN
    world.end_task("ps.0", signal=9)
    world.until(lambda: "fallback" in world.done)
    for agent in world.agents.values():
        agent.staging = None
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().base == older
    for _ in range(5):
        world.tick()
    held = world.job().commits[newest]
    assert held.value.state is CommitState.COMMITTED, "the grace runs from the fallback, however old it is"


def test_without_fallback_after_an_unreadable_base_stops_the_job_for_its_operator() -> None:
    world = World().start()
    world.commit(1, 100)
    for agent in world.agents.values():
        agent.staging = StageFailure.UNKNOWN
    world.end_task("ps.0", signal=9)
    took = world.until(lambda: world.switch().phase is JobPhase.FAILED, limit_ms=700_000, step_ms=1000)
    assert took >= 600_000
    assert "mend the store" in world.switch().reason


def test_peers_that_die_of_a_silent_node_are_not_the_programs_fault() -> None:
    world = World(job_spec({"worker": 3}, Strategy.MULTIWORKER)).start()
    node = node_of(world, "worker.0")
    lose(world, node)
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    for member in ("worker.1", "worker.2"):
        if world.running()[member].node != node:
            world.end_task(member, code=1)
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().ledger.program == 0
    assert {i.cause for i in world.incidents().values()} == {Cause.SUBMITTED, Cause.NODE_LOST}


def test_a_killed_worker_is_restarted_at_once_although_another_node_is_silent() -> None:
    world = World().start()
    node = node_of(world, "worker.1")
    member = next(m for m in ("worker.0", "chief.0", "ps.0") if node_of(world, m) != node)
    assert member == "worker.0"
    lose(world, node)
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    world.end_task("worker.0", signal=9)
    took = world.until(lambda: "restart_in_place" in world.done)
    assert took <= 100


def test_an_incident_that_was_planned_for_all_and_ends_in_place_is_closed() -> None:
    world = World().start()
    node = node_of(world, "worker.1")
    agent = world.agents[node]
    agent.beating = False
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    world.end_task("worker.1", signal=9)
    world.until(lambda: "g1-worker.1-a1" in world.incidents())
    opened = world.incidents()["g1-worker.1-a1"]
    assert (opened.outcome, opened.scope) == (Outcome.OPEN, Scope.ALL)
    agent.beating = True
    world.appeal(node, agent.incarnation)
    world.until(lambda: "restart_in_place" in world.done)
    world.until(lambda: world.incidents()[opened.id].outcome is not Outcome.OPEN)
    closed = world.incidents()[opened.id]
    assert (closed.outcome, closed.scope, closed.generation) == (Outcome.RECOVERED, Scope.TASK, 1)
    assert set(closed.phases_ms) >= {"detected", "decided", "ready", "restored", "first_step"}


def test_what_restarts_one_task_does_not_take_a_recovery_of_all_along() -> None:
    """A chief's end is answered; then a worker's is reported, which was earlier and is answered in place."""
    world = World().start()
    world.end_task("chief.0", signal=9)
    world.until(lambda: "g1-chief.0-a1" in world.incidents())
    world.end_task("worker.1", signal=9, age_ms=2_000)
    world.until(lambda: "restart_in_place" in world.done)
    assert world.incidents()["g1-chief.0-a1"].outcome is Outcome.OPEN
    world.until(lambda: world.switch().generation == 2)
    world.until(lambda: all(each.outcome is not Outcome.OPEN for each in world.incidents().values()))
    assert world.incidents()["g1-chief.0-a1"].outcome is Outcome.RECOVERED


def test_a_mark_that_raced_with_a_succession_is_stale() -> None:
    world = World().start()
    node = node_of(world, "worker.0")
    old = world.agents[node]
    old.beating = False
    world.until(lambda: world.snapshot().silence_ms(world.snapshot().nodes[node]) > FAST.suspect_ms - 100)
    world.now_ms += 200
    (mark,) = [a for a in reconcile(world.snapshot()) if isinstance(a, Action) and a.kind == "node_suspected"]
    world.register(node, "successor", succeeds=(old.incarnation,))
    assert not world.run(mark)


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


def test_a_job_started_again_waits_d_for_what_its_last_life_left_on_a_silent_node() -> None:
    world = World(job_spec(restart=RestartPolicy(max_restarts=0))).start()
    node = node_of(world, "worker.1")
    assert node_of(world, "worker.0") != node
    lose(world, node)
    world.end_task("worker.0", code=1)
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    world.intend(serial=1)
    took = world.until(lambda: world.switch().phase is JobPhase.RUNNING)
    assert took >= FAST.d_ms - 100


def test_an_incident_whose_first_plan_was_lost_is_recovered_by_the_next() -> None:
    world = World().start()
    world.end_task("ps.0", signal=9)
    world.decide()
    plan = world.job().next_plan
    assert plan is not None
    target = plan.value.placements[0].node
    lose(world, target)
    took_ms = world.until(lambda: world.switch().generation >= 2, limit_ms=20_000)
    took_ms += world.until(lambda: world.incidents()["g1-ps.0-a1"].outcome is Outcome.RECOVERED)
    told = world.incidents()["g1-ps.0-a1"]
    assert abs(told.total_ms - took_ms) <= 2 * STEP_MS, "the plan that was lost took its time, too"


def test_events_that_a_refused_transaction_left_behind_are_removed() -> None:
    world = World().start()
    for serial in (1, 7, 8, KEPT_EVENTS + 7):
        world.write(put(keys.event(serial), Event(0, "kind", "", "text", {})))
    world.tick()
    world.tick()
    left = {held.key for held in world.snapshot().events}
    assert left == {keys.event(8), keys.event(KEPT_EVENTS + 7)}
    assert world.done.count("events_removed") == 1
