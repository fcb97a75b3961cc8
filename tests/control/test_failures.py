"""The leader's judgement of a failure: cause, rule, root and budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.contract.desired import JobPhase, Placement, Plan
from supervisor.contract.incident import Cause, Outcome
from supervisor.contract.job.spec import RestartPolicy, Rule, Scope, Strategy
from supervisor.contract.observed import Exit, ExitReason
from supervisor.contract.timing import FAST
from supervisor.control.decide.jobs.prepare import bare_assignment
from tests.control.failing import (
    BUG,
    CLASH,
    ERRORS,
    EVALUATED,
    FOLLOWERS_WAIT_MS,
    LOST_PEER,
    NAN,
    TYPO,
    back,
    end,
    failures,
    kill,
    only_the_evaluator_tells,
    quiet,
    raised,
    settled,
    spec_with,
)
from tests.control.world import STEP_MS, World, waiting_for
from tests.support.builders import job_spec, role

# Rules.


def test_an_error_of_the_user_fails_the_job_at_once_with_its_last_lines() -> None:
    world = quiet(World())
    world.until(lambda: "worker.0" in world.running())
    end(world, "worker.0", TYPO)
    world.tick()
    assert world.switch().phase is JobPhase.FAILED
    assert "No module named 'tensorflo'" in world.switch().reason
    (incident,) = failures(world)
    assert (incident.cause, incident.outcome) == (Cause.USER_ERROR, Outcome.FAILED)
    assert incident.tail == TYPO
    assert world.switch().ledger.program == 0


def test_the_same_error_after_a_step_is_restarted() -> None:
    world = World().start()
    end(world, "worker.0", TYPO)
    back(world, "worker.0", 2)
    assert failures(world)[0].cause is Cause.PROGRAM_EXIT


def test_nan_fails_the_job_unless_it_says_otherwise() -> None:
    world = World().start()
    end(world, "worker.0", NAN)
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    world = World(spec_with(rules={"nan_loss": Rule.RESTART})).start()
    end(world, "worker.0", NAN)
    back(world, "worker.0", 2)


def test_a_job_may_fail_at_once_on_any_exit_code() -> None:
    world = World(spec_with(rules={"program_exit": Rule.FAIL})).start()
    end(world, "worker.0", BUG)
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    assert "restart.rules" in world.switch().reason


def test_an_exit_code_may_be_restarted_where_others_fail_the_job() -> None:
    spec = spec_with(rules={"program_exit": Rule.FAIL})
    world = World(replace(spec, restart=replace(spec.restart, retry_from=128))).start()
    end(world, "worker.0", code=138)
    back(world, "worker.0", 2)
    end(world, "worker.0", code=127)
    world.until(lambda: world.switch().phase is JobPhase.FAILED)


def test_an_ignored_end_counts_as_done() -> None:
    world = World(spec_with(rules={"program_exit": Rule.IGNORE})).start()
    end(world, "worker.0", BUG)
    settled(world)
    assert failures(world) == []
    for member in ("chief.0", "worker.1"):
        end(world, member, code=0)
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)


def test_an_end_of_the_chief_is_never_ignored() -> None:
    world = World(spec_with(rules={"program_exit": Rule.IGNORE})).start()
    end(world, "chief.0", BUG)
    world.until(lambda: world.switch().generation == 2)
    (incident,) = failures(world)
    assert (incident.cause, incident.rule) == (Cause.PROGRAM_EXIT, "async.chief.all")
    assert world.switch().ledger.program == 1


def test_who_loses_its_peer_again_after_its_own_restart_pays_for_that() -> None:
    """The root never steps again, so that its incident stays open."""
    world = World().start()
    world.agents[world.running()["worker.0"].node].tells["digits/worker:0@1.2"] = lambda beat: replace(
        beat, step=-1, step_age_ms=-1, first_step=-1, first_step_age_ms=-1
    )
    kill(world, "worker.0")
    back(world, "worker.0", 2)
    for number in range(2, 6):
        end(world, "worker.1", LOST_PEER)
        back(world, "worker.1", number)
        settled(world)
    causes = [each.cause for each in failures(world)]
    assert causes.count(Cause.KILLED) == 1
    assert causes.count(Cause.PEER_LOST) == 3, "the first one followed from the root"
    assert world.switch().ledger.infrastructure == 4


def test_what_ended_with_its_machine_ended_when_that_was_heard_last() -> None:
    """The machine comes back before anybody declares it lost; nobody there knows for how long it was away."""
    world = World().start()
    report = world.running()["worker.0"]
    world.agents[report.node].beating = False
    heard_ms = world.now_ms
    world.now_ms += FAST.suspect_ms - 2 * STEP_MS
    back_again = world.register(report.node, "next", succeeds=(report.incarnation,), boot_id="other")
    back_again.acting = False
    end_ = Exit(ExitReason.LAUNCHER_LOST, None, None, 5, confirmed_dead=True, rebooted=True)
    world._exited(replace(report, incarnation="next"), end_)
    known_ms = world.now_ms
    world.until(lambda: bool(failures(world)))
    (incident,) = failures(world)
    assert incident.cause is Cause.LAUNCHER_LOST
    assert 0 <= incident.phases_ms["detected"] - (known_ms - heard_ms) <= 2 * STEP_MS


def test_after_a_restart_of_its_machine_no_task_goes_on_in_a_directory_that_was_staged_before() -> None:
    """Staged files are used before they are synced to disk: after a restart there may be zeros instead."""
    world = World().start()
    report = world.running()["worker.0"]
    world.register(report.node, "next", succeeds=(report.incarnation,), boot_id="other")
    end_ = Exit(ExitReason.LAUNCHER_LOST, None, None, 5, confirmed_dead=True, rebooted=True)
    world._exited(replace(report, incarnation="next"), end_)
    world.until(lambda: world.switch().generation == 2)
    (incident,) = failures(world)
    assert "its machine has restarted" in incident.rule


def test_what_an_evaluator_says_of_the_base_is_no_first_step() -> None:
    world = World(job_spec(EVALUATED)).start()
    only_the_evaluator_tells(world, 2)
    kill(world, "ps.0")
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 4)
    (incident,) = failures(settled(world))
    assert (incident.outcome, incident.to_step) == (Outcome.OPEN, -1)
    for agent in world.agents.values():
        agent.tells.clear()
    world.until(lambda: failures(world)[0].outcome is Outcome.RECOVERED)


def test_a_port_clash_is_a_new_generation_that_does_not_burn_the_budget() -> None:
    world = World().start()
    end(world, "worker.0", CLASH)
    world.until(lambda: world.switch().generation == 2)
    (incident,) = failures(world)
    assert (incident.cause, incident.scope) == (Cause.PORT_CLASH, Scope.ALL)
    assert "port is taken" in incident.rule
    assert world.switch().ledger.program == 0


def test_a_port_clash_again_and_again_ends_the_job_and_says_who_holds_the_port() -> None:
    """A server that binds plainly beside the launcher's holder of its port clashes in every generation."""
    world = World().start()
    for generation in range(1, 7):
        end(world, "worker.0", CLASH)
        world.until(
            lambda before=generation: (
                world.switch().phase is JobPhase.FAILED
                or (world.switch().generation > before and len(world.running()) == 4)
            )
        )
    assert world.switch().phase is JobPhase.FAILED
    assert world.switch().generation == 6
    said = world.job().incidents[world.switch().incident].value
    assert "a port was taken 6 times in a row" in world.switch().reason
    assert "the launcher holds the task's port" in said.detail


@pytest.mark.parametrize(("strategy", "alone"), [(Strategy.PLAIN, True), (Strategy.ASYNC, False)])
def test_a_program_of_no_style_of_tensorflow_has_its_port_for_itself(strategy: Strategy, alone: bool) -> None:
    spec = job_spec((role("worker"),), strategy=strategy)
    placement = Placement("worker", 0, "node-0", "i")
    plan = Plan("digits", "p", 1, "inc", (placement,))
    assert bare_assignment(spec, "u", plan, placement).binds_alone is alone


LOCKED = raised(
    f"{ERRORS}.AlreadyExistsError: There appears to be a concurrent caching iterator running - cache "
    "lockfile already exists ('/tmp/cache/x_0.lockfile'). Lockfile contents: Created at: 1764310000"
)


def test_a_lock_that_a_killed_attempt_left_is_not_charged_once_and_is_named_always() -> None:
    world = World().start()
    for member, tail in (("worker.0", None), ("worker.0", LOCKED), ("worker.0", LOCKED)):
        number = world.running()[member].number
        if tail is None:
            kill(world, member)
        else:
            end(world, member, tail)
        back(world, member, number + 1)
    killed, first, second = failures(world)
    assert [each.cause for each in (killed, first, second)] == [
        Cause.KILLED,
        Cause.LEFT_LOCK,
        Cause.PROGRAM_EXIT,
    ]
    assert "cache() found /tmp/cache/x_0.lockfile, the lockfile of an attempt that was killed" in first.detail
    assert "remove it" in second.detail
    assert world.switch().ledger.program == 1


def test_a_lock_that_was_there_before_the_job_is_charged() -> None:
    world = World().start()
    end(world, "worker.0", LOCKED)
    back(world, "worker.0", 2)
    assert world.switch().ledger.program == 1


def test_elsewhere_takes_another_node_where_there_is_one() -> None:
    world = World(spec_with(rules={"oom": Rule.ELSEWHERE, "program_exit": Rule.ELSEWHERE})).start()
    node = world.running()["worker.0"].node
    end(world, "worker.0", BUG)
    world.until(lambda: world.switch().generation == 2 and "worker.0" in world.running())
    assert world.running()["worker.0"].node != node
    alone = World(spec_with(rules={"program_exit": Rule.ELSEWHERE}), nodes=1).start()
    end(alone, "worker.0", BUG)
    back(alone, "worker.0", 2)
    assert alone.switch().generation == 1


# One root, one incident.


def test_a_peers_words_wait_for_the_failure_that_they_speak_of() -> None:
    world = World().start()
    end(world, "worker.0", LOST_PEER)
    for _ in range(10):
        world.tick()
    assert failures(world) == []
    kill(world, "ps.0")
    world.until(lambda: world.switch().generation == 2)
    settled(world)
    (incident,) = failures(world)
    assert (incident.cause, incident.task) == (Cause.KILLED, "digits/ps:0")
    assert (world.switch().ledger.program, world.switch().ledger.infrastructure) == (0, 1)


def test_a_lost_peer_that_nobody_lost_is_answered_after_a_bounded_wait() -> None:
    world = World().start()
    end(world, "worker.0", LOST_PEER)
    took = back(world, "worker.0", 2)
    assert FOLLOWERS_WAIT_MS <= took <= FOLLOWERS_WAIT_MS + 500
    (incident,) = failures(world)
    assert (incident.cause, incident.scope, incident.tail) == (Cause.PEER_LOST, Scope.TASK, LOST_PEER)
    assert world.switch().ledger.program == 0


def test_what_followed_from_a_restart_in_place_is_the_same_incident() -> None:
    world = quiet(World().start())
    kill(world, "worker.0")
    back(world, "worker.0", 2)
    end(world, "chief.0", LOST_PEER)
    world.until(lambda: world.switch().generation == 2)
    for agent in world.agents.values():
        agent.steps = True
    settled(world)
    (incident,) = failures(world)
    assert (incident.cause, incident.task) == (Cause.KILLED, "digits/worker:0")
    assert (incident.scope, incident.outcome) == (Scope.ALL, Outcome.RECOVERED)
    assert world.switch().ledger.infrastructure == 1


def test_the_peers_of_a_node_that_is_being_lost_are_one_incident_with_it() -> None:
    world = World(job_spec({"worker": 3}, Strategy.MULTIWORKER)).start()
    silent = world.running()["worker.0"].node
    world.agents[silent].acting = False
    for member in ("worker.1", "worker.2"):
        if world.running()[member].node != silent:
            end(world, member, LOST_PEER)
    world.until(lambda: world.switch().generation == 2)
    settled(world)
    (incident,) = failures(world)
    assert incident.cause is Cause.NODE_LOST


# Budget and back-off.


def test_a_kill_loop_without_a_step_pauses_but_never_ends_the_job() -> None:
    world = quiet(World(nodes=1).start())
    took = []
    for number in range(2, 8):
        kill(world, "worker.0")
        took.append(back(world, "worker.0", number))
    assert [ms < 500 for ms in took] == [True, True, False, False, False, False]
    assert sorted(took[2:]) == took[2:]
    assert world.switch().phase is JobPhase.RUNNING
    assert world.switch().ledger.program == 0


def test_kills_with_steps_between_never_pause() -> None:
    world = World().start()
    for number in range(2, 10):
        kill(world, "worker.0")
        assert back(world, "worker.0", number) < 500
        settled(world)


def test_kills_of_different_workers_are_no_loop() -> None:
    spec = job_spec({"chief": 1, "ps": 1, "worker": 6})
    world = quiet(World(spec).start())
    for index in range(6):
        kill(world, f"worker.{index}")
    took = world.until(lambda: all(world.running().get(f"worker.{i}") for i in range(6)))
    assert took < 1_000


def test_a_worker_that_dies_again_and_again_ends_the_job_though_the_job_progresses() -> None:
    world = World(spec_with(max_restarts=2)).start()
    quiet(world)
    for number in (1, 2, 3):
        world.commit(1, 100 * number)
        end(world, "worker.0", BUG)
        if number < 3:
            back(world, "worker.0", number + 1)
            world.agents[world.running()["worker.0"].node].started.clear()
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    assert "of this task in a row without a step of its own" in world.switch().reason


@pytest.mark.parametrize("changed", [False, True])
def test_too_many_faults_within_the_window_end_the_job_whoever_leads(*, changed: bool) -> None:
    world = World(spec_with(max_in_window=4)).start()
    for number in range(1, 6):
        world.commit(1, 100 * number)
        end(world, "worker.0", BUG)
        if changed:
            world.new_leader()
        if number < 5:
            back(world, "worker.0", number + 1)
            settled(world)
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    assert "restart.max_in_window allows 4" in world.switch().reason


def test_a_start_after_the_end_is_told_of_and_begins_a_new_count() -> None:
    """Simulator, seed 9830923: it had the incident of the first start, which was over, and no own life."""
    world = World(spec_with(max_in_window=1)).start()
    for number in (1, 2):
        world.commit(1, 100 * number)
        end(world, "worker.0", BUG)
        if number == 1:
            back(world, "worker.0", 2)
            settled(world)
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    world.intend(serial=1)
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 4)
    settled(world)
    started = world.incidents()["start-1"]
    assert (started.cause, started.outcome, started.generation) == (Cause.SUBMITTED, Outcome.RECOVERED, 2)
    assert started.detail == "an operator started the job"
    end(world, "worker.0", BUG)
    back(world, "worker.0", 2)
    assert world.switch().phase is JobPhase.RUNNING


def test_faults_that_are_older_than_the_window_are_forgotten() -> None:
    world = World(spec_with(max_in_window=2, window_ms=60_000)).start()
    for number in range(1, 7):
        world.commit(1, 100 * number)
        end(world, "worker.0", BUG)
        back(world, "worker.0", number + 1)
        for _ in range(40):
            world.tick(1_000)
    assert world.switch().phase is JobPhase.RUNNING


def test_an_operators_restart_begins_a_new_count() -> None:
    world = World(spec_with(max_restarts=1)).start()
    end(world, "worker.0", BUG)
    back(world, "worker.0", 2)
    world.intend(serial=1)
    world.until(lambda: world.switch().generation == 2 and "worker.0" in world.running())
    end(world, "worker.0", BUG)
    back(world, "worker.0", 2)
    assert world.switch().phase is JobPhase.RUNNING


# What is not the program's fault.


def test_code_that_etcd_has_no_more_is_asked_for_again_and_burns_nothing() -> None:
    world = World().start()
    for agent in world.agents.values():
        agent.refuses, agent.no_code = "its code is not here: etcd has it no more", True
    kill(world, "ps.0")
    world.until(lambda: world.done.count("plan_abandoned") == 5, limit_ms=300_000, step_ms=1_000)
    world.until(lambda: "its code is not here" in waiting_for(world.snapshot(), world.job()))
    assert world.switch().phase is JobPhase.RUNNING
    assert world.switch().ledger.program == 0
    for agent in world.agents.values():
        agent.refuses = ""
    world.until(lambda: world.switch().generation == 2, step_ms=1_000)


def test_code_that_can_be_unpacked_nowhere_fails_the_job_at_once_with_the_reason() -> None:
    world = World()
    for agent in world.agents.values():
        agent.refuses, agent.hopeless = "its code is not here: the archive is cut off", True
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    assert world.done.count("prepare") == 1
    assert "the archive is cut off" in world.switch().reason
    for _ in range(5):
        world.tick()
    assert world.done.count("prepare") == 1, "nobody has asked for another try"


def test_a_task_whose_address_others_know_goes_elsewhere_with_all_of_them() -> None:
    service = replace(role("dispatcher"), in_cluster=False)
    spec = job_spec((*job_spec().roles, service), restart=RestartPolicy(rules={"oom": Rule.ELSEWHERE}))
    world = World(spec).start()
    before = world.running()["dispatcher.0"].node
    world._exited(world.running()["dispatcher.0"], Exit(ExitReason.EXIT, None, 9, 10, True, oom=True))
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 5)
    assert world.running()["dispatcher.0"].node != before
    assert failures(world)[0].scope is Scope.ALL
