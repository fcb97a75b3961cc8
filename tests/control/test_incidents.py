"""The records of failures: which recovery belongs to which, and when each is over (rule 13)."""

from __future__ import annotations

from dataclasses import replace

from supervisor.api.views import explanation, job_view
from supervisor.contract import keys
from supervisor.contract.incident import Cause, Event, Outcome
from supervisor.contract.job.spec import RestartPolicy, Scope, Strategy
from supervisor.control.decide.facts.history import incident_id
from supervisor.control.decide.jobs.incidents import KEPT_EVENTS
from supervisor.control.decide.plan import put
from tests.control.world import STEP_MS, World
from tests.support.builders import job_spec

UNAVAILABLE = "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed"


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


def silent_after_a_kill() -> World:
    """A parameter server was killed, and all tasks run again; none prints a step."""
    world = World()
    for agent in world.agents.values():
        agent.steps = False
    world.start()
    world.until(lambda: len(world.running()) == 4)
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 4)
    world.tick(1_000)
    assert world.incidents()["g1-ps.0-a1"].outcome is Outcome.OPEN
    return world


def test_a_checkpoint_that_a_silent_program_saves_ends_its_incident() -> None:
    world = silent_after_a_kill()
    world.commit(2, 1)
    world.until(lambda: world.incidents()["g1-ps.0-a1"].outcome is Outcome.RECOVERED, limit_ms=1_000)
    assert world.incidents()["g1-ps.0-a1"].to_step == -1


def test_a_checkpoint_of_the_generation_before_ends_no_incident() -> None:
    world = silent_after_a_kill()
    world.commit(1, 1)
    world.tick(1_000)
    assert world.incidents()["g1-ps.0-a1"].outcome is Outcome.OPEN


def test_a_checkpoint_before_the_first_step_does_not_end_the_incident_of_a_program_that_prints_steps() -> (
    None
):
    world = World().start()
    for agent in world.agents.values():
        agent.steps = False
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 4)
    world.commit(2, 0)
    world.tick(1_000)
    assert world.incidents()["g1-ps.0-a1"].outcome is Outcome.OPEN


def test_a_start_whose_program_has_saved_is_not_superseded_by_the_next_failure() -> None:
    world = World()
    for agent in world.agents.values():
        agent.steps = False
    world.start()
    world.commit(1, 5)
    world.tick()
    assert world.incidents()["submit"].outcome is Outcome.OPEN, "a first step may still come"
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    assert world.incidents()["submit"].outcome is Outcome.RECOVERED


def test_both_sentences_about_the_steps_before_a_restart_name_the_newest_one() -> None:
    """Others train on between the failure and the flip."""
    world = World().start()
    world.steps["worker"] = 72
    world.commit(1, 60)
    world.tick()
    world.end_task("ps.0", signal=9)
    world.until(lambda: "g1-ps.0-a1" in world.incidents())
    world.steps["worker"] = 82
    world.until(lambda: world.switch().generation == 2)
    found = world.incidents()["g1-ps.0-a1"]
    assert (found.from_step, found.lost_steps, found.reached) == (72, 22, 82)
    assert replace(found, to_step=1, lost_steps=71).reached == 72, "it counts from its first step"
    told = explanation(world.snapshot(), world.spec.name).incidents
    assert [each.from_step for each in told if each.id == found.id] == [82]


def test_a_save_that_has_the_number_of_the_next_step_is_no_step_that_was_made() -> None:
    world = World().start()
    step = job_view(world.snapshot(), world.job()).step
    assert step == 10
    world.commit(1, step + 1)
    assert job_view(world.snapshot(), world.job()).step == step
    world.commit(1, step + 90)
    assert job_view(world.snapshot(), world.job()).step == step + 90, "steps are printed now and then"


def test_a_silent_task_that_came_back_in_place_needs_a_checkpoint_after_that() -> None:
    world = World()
    for agent in world.agents.values():
        agent.steps = False
    world.start()
    world.until(lambda: len(world.running()) == 4)
    world.commit(1, 1)
    world.tick()
    world.end_task("worker.1", signal=9)
    world.until(lambda: "g1-worker.1-a1" in world.incidents() and "worker.1" in world.running())
    world.tick(1_000)
    assert world.incidents()["g1-worker.1-a1"].outcome is Outcome.OPEN
    world.commit(1, 2)
    world.until(lambda: world.incidents()["g1-worker.1-a1"].outcome is Outcome.RECOVERED, limit_ms=1_000)


def with_a_plan_that_waits() -> World:
    """A parameter server has failed, and no agent can prepare what follows, for now."""
    world = World().start()
    for agent in world.agents.values():
        agent.delay = "its disk is full"
    world.end_task("ps.0", code=1)
    world.until(lambda: world.job().next_plan is not None)
    return world


def test_what_restarts_one_task_leaves_open_what_a_lost_plan_was_for() -> None:
    """The simulator's seeds 9840018 and 9840328: a generation began from an incident that was over."""
    world = with_a_plan_that_waits()
    failed = next(iter(world.incidents().keys() - {"submit"}))
    silent = world.node_of("chief.0")
    world.agents[silent].beating = False
    world.until(lambda: (plan := world.job().next_plan) is not None and plan.value.incident != failed)
    other = next(each for each in ("worker.0", "worker.1") if world.node_of(each) != silent)
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


def with_a_base_that_is_not_brought_in() -> tuple[World, str]:
    """A server's node, the second item, has fallen silent, and nobody can restore what would follow."""
    world = World().start()
    for agent in world.agents.values():
        agent.stages = False
    silent = world.node_of("ps.0")
    world.agents[silent].beating = False
    world.until(lambda: world.switch().closing is not None)
    return world, silent


def test_a_restart_is_charged_for_what_its_record_tells_of() -> None:
    """The simulator: a lost node's restart was charged to a program that had waited for that node."""
    world, silent = with_a_base_that_is_not_brought_in()
    world.end_task("chief.0", code=1)
    world.agents[silent].beating = True
    world.appeal(silent, world.agents[silent].incarnation)
    world.tick()
    for agent in world.agents.values():
        agent.stages = True
    world.until(lambda: world.switch().generation == 2)
    switch = world.switch()
    assert world.incidents()[switch.incident].cause is Cause.NODE_LOST
    assert (switch.ledger.infrastructure, switch.ledger.program) == (1, 0)


def test_a_failure_that_is_paid_for_is_not_charged_again_for_another_restart_in_between() -> None:
    """The simulator: all tasks restarted for a server that had been restarted alone, and a chief since."""
    restart = RestartPolicy(scope={"ps": Scope.TASK, "chief": Scope.TASK, "worker": Scope.ALL})
    world = World(replace(job_spec({"chief": 1, "ps": 1, "worker": 2}, Strategy.ASYNC), restart=restart))
    world.start()
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().incident == "g1-ps.0-a1")
    for agent in world.agents.values():
        agent.starts, agent.delay = False, "it is busy"
    world.end_task("worker.1", code=1, tail=UNAVAILABLE)
    world.until(lambda: world.job().next_plan is not None)
    world.end_task("chief.0", code=1)
    world.until(lambda: world.switch().incident == "g1-chief.0-a1")
    world.end_task("worker.0", code=1, tail=UNAVAILABLE)
    world.tick(5_000)
    for agent in world.agents.values():
        agent.starts, agent.delay = True, ""
    world.until(lambda: world.switch().generation == 2)
    switch = world.switch()
    assert switch.incident == "g1-ps.0-a1"
    assert (switch.ledger.infrastructure, switch.ledger.program) == (1, 1)


def test_what_passes_and_comes_back_has_a_record_of_its_own() -> None:
    """The simulator: a restart had no record, as that of a fault which had passed was closed."""
    world, silent = with_a_base_that_is_not_brought_in()
    passed = next(name for name in world.incidents() if "node" in name)
    world.agents[silent].beating = True
    world.appeal(silent, world.agents[silent].incarnation)
    world.until(lambda: world.incidents()[passed].outcome is Outcome.SUPERSEDED)
    assert world.switch().generation == 1
    for agent in world.agents.values():
        agent.stages = True
    world.switch_off(silent)
    world.agents[silent].beating = False
    again = f"{passed}#2"
    world.until(lambda: again in world.incidents() and world.incidents()[again].outcome is Outcome.RECOVERED)
    assert (world.switch().generation, world.switch().incident) == (2, again)
    assert world.switch().ledger.infrastructure == 1


def test_ids_of_what_comes_back() -> None:
    world = World().start()
    natural = "g1-node.n1-ab"
    known = {"submit": world.job().incidents["submit"]}
    over = replace(known["submit"], value=replace(known["submit"].value, outcome=Outcome.SUPERSEDED))
    still = replace(over, value=replace(over.value, outcome=Outcome.OPEN))

    def told_as(**records: str) -> str:
        held = {natural + name: {"over": over, "still": still}[what] for name, what in records.items()}
        return incident_id(replace(world.job(), incidents={**known, **held}), natural)

    assert told_as() == natural
    assert told_as(**{"": "still"}) == natural
    assert told_as(**{"": "over"}) == f"{natural}#2"
    assert told_as(**{"": "over", "#2": "still"}) == f"{natural}#2"
    assert told_as(**{"#9": "over", "#10": "over"}) == f"{natural}#11", "the first are forgotten"
    assert told_as(**{"#2-evaluator.0": "over", "-evaluator.0": "over", "c": "over"}) == natural


def test_an_incident_that_was_planned_for_all_and_ends_in_place_is_closed() -> None:
    world = World().start()
    node = world.node_of("worker.1")
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


def test_who_is_restarted_for_what_a_peers_end_led_to_leaves_the_record_to_that_peer() -> None:
    """A worker ends for the second time, and another for the first time as it misses it."""
    world = World().start()
    first = world.running()["worker.1"]
    world.end_task("worker.1", signal=9)
    world.until(lambda: world.running().get("worker.1", first).attempt != first.attempt)
    world.end_task("worker.1", signal=9)
    world.end_task("worker.0", code=1, tail="Traceback (most recent call last):\n" + UNAVAILABLE)
    world.until(lambda: world.done.count("restart_in_place") == 3)
    told = world.incidents()["g1-worker.1-a2"]
    assert (told.outcome, told.member, told.attempt) == (Outcome.OPEN, "worker.1", 3)
    world.until(lambda: world.incidents()["g1-worker.1-a2"].outcome is Outcome.RECOVERED)


def test_an_incident_whose_first_plan_was_lost_is_recovered_by_the_next() -> None:
    world = World().start()
    world.end_task("ps.0", signal=9)
    world.decide()
    plan = world.job().next_plan
    assert plan is not None
    target = plan.value.placements[0].node
    world.switch_off(target)
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
