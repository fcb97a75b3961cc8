"""The leader prepares generations, puts them in force, and restarts what has failed in them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import PHASES, Cause, Outcome
from supervisor.contract.job.spec import RestartPolicy, Scope
from supervisor.contract.observed import ExitReason
from supervisor.control.decide.plan import Action
from supervisor.control.decide.reconcile import reconcile
from tests.control.world import World, waiting_for
from tests.support.builders import job_spec, resources, role


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


def test_a_new_generation_says_whether_a_program_was_at_fault() -> None:
    """So that what died of a killed peer is not held against its warm start."""
    world = World(job_spec(restart=RestartPolicy(max_restarts=9))).start()
    assert world.switch().blameless
    for code, signal, blameless in ((None, 9, True), (1, None, False), (None, 9, True)):
        world.until(lambda: "ps.0" in world.running())
        before = world.switch().generation
        world.end_task("ps.0", code=code, signal=signal)
        world.until(lambda before=before: world.switch().generation > before)
        assert world.switch().blameless == blameless


def test_a_deposed_leaders_decision_has_no_effect() -> None:
    world = World().start()
    world.end_task("worker.0", signal=9)
    old = world.token
    action = world.next_action("restart_in_place")
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


def test_a_broken_invariant_of_a_job_parks_it() -> None:
    world = World().start()
    world.commit(7, 100)
    world.parks = True
    world.tick()
    parked = world.switch().parked
    assert parked is not None
    assert "not in force yet" in parked.error


def test_a_program_is_shown_each_restart_that_there_was_whole_or_of_one_task() -> None:
    world = World().start()

    def shown(member: str) -> int:
        held = world.job().assigned(world.switch().plan_id, member)
        assert held is not None
        return held.value.restart_count

    assert shown("worker.0") == 0
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2 and "worker.1" in world.running())
    assert (shown("ps.0"), shown("worker.0")) == (1, 1)
    world.end_task("worker.1", signal=9)
    world.until(lambda: "worker.1" in world.running() and world.running()["worker.1"].number == 2)
    assert (shown("worker.1"), shown("worker.0")) == (2, 1)
