"""The leader's judgement of a failure: cause, rule, root and budget, and the blame where it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from recovery.policy.blame import NOTICE_LAG_MS
from recovery.policy.suspects import BaseVerdict
from supervisor.contract.checkpoint import CommitState
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Cause, Incident, Outcome
from supervisor.contract.job.spec import JobSpec, RestartPolicy, Rule, Scope, Strategy
from supervisor.contract.observed import Exit, ExitReason
from supervisor.contract.timing import FAST
from supervisor.control.decide.checkpoints.quarantine import with_acquittal
from supervisor.control.decide.nodes import cordons
from supervisor.control.decide.nodes.cordons import COOLDOWN_MS
from supervisor.control.decide.plan import Action, put
from tests.control.world import STEP_MS, World, waiting_for
from tests.support.builders import job_spec, resources, role

ERRORS = "tensorflow.python.framework.errors_impl"
FOLLOWERS_WAIT_MS = max(FAST.suspect_ms + FAST.beat_ms, NOTICE_LAG_MS[Cause.LAUNCHER_LOST])


def raised(line: str) -> str:
    return f'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    g()\n{line}\n'


LOST_PEER = raised(f"{ERRORS}.UnavailableError: Socket closed")
TYPO = raised("ModuleNotFoundError: No module named 'tensorflo'")
NAN = raised("tensorflow.python.training.basic_session_run_hooks.NanLossDuringTrainingError: NaN loss")
CLASH = raised(f"{ERRORS}.UnknownError: Could not start gRPC server")
FLIPPED = raised(f"{ERRORS}.DataLossError: checksum does not match")
BUG = raised("ValueError: wrong")
EVALUATED = {"chief": 1, "ps": 1, "worker": 1, "evaluator": 1}


def end(
    world: World, member: str, tail: str = "", *, code: int | None = 1, signal: int | None = None
) -> None:
    """A running attempt ends, with these last words."""
    world._exited(world.running()[member], Exit(ExitReason.EXIT, code, signal, 10, True, tail=tail))


def kill(world: World, member: str) -> None:
    end(world, member, code=None, signal=9)


def quiet(world: World) -> World:
    """No task makes a step from now on."""
    for agent in world.agents.values():
        agent.steps = False
    return world


def only_the_evaluator_tells(world: World, *generations: int) -> None:
    """It prints the step of the checkpoint that it has just read; those that train make none."""
    for agent in world.agents.values():
        for task in ("chief:0", "worker:0"):
            for generation in generations:
                agent.tells[f"digits/{task}@{generation}.1"] = lambda beat: replace(
                    beat, step=-1, step_age_ms=-1, first_step=-1, first_step_age_ms=-1
                )


def spec_with(
    *,
    max_restarts: int = 3,
    max_in_window: int = 20,
    window_ms: int = 3_600_000,
    rules: Mapping[str, Rule] | None = None,
) -> JobSpec:
    policy = RestartPolicy(
        max_restarts=max_restarts, max_in_window=max_in_window, window_ms=window_ms, rules=dict(rules or {})
    )
    return job_spec(restart=policy)


def failures(world: World) -> list[Incident]:
    return [each for each in world.incidents().values() if each.cause is not Cause.SUBMITTED]


def back(world: World, member: str, number: int) -> int:
    return world.until(
        lambda: member in world.running() and world.running()[member].number == number, limit_ms=120_000
    )


def settled(world: World) -> World:
    for _ in range(10):
        world.tick()
    return world


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


# Whose fault it is.


def restart_all(world: World, member: str, tail: str) -> None:
    """The chief fails; returns when the next generation runs, or the job has ended."""
    generation = world.switch().generation
    end(world, member, tail)
    world.until(
        lambda: (
            world.switch().phase.ended
            or (world.switch().generation > generation and len(world.running()) == len(world.spec.tasks()))
        )
    )


def test_what_returns_on_one_node_is_tried_on_another() -> None:
    world = quiet(World(spec_with(max_restarts=9)).start())
    node = world.running()["worker.0"].node
    for number in (2, 3):
        end(world, "worker.0", code=None, signal=11)
        back(world, "worker.0", number)
        world.agents[node].started.clear()
    end(world, "worker.0", code=None, signal=11)
    world.until(lambda: world.switch().generation == 2 and "worker.0" in world.running())
    assert world.running()["worker.0"].node != node
    last = failures(world)[-1]
    assert f"program_signal 3 times in a row on {node}" in last.rule
    assert world.snapshot().nodes[node].cordon is None, "it may be the fault of this one task"


def test_a_node_on_which_several_tasks_fail_alike_gets_no_new_task_for_a_while() -> None:
    world = quiet(World(spec_with(max_restarts=9), nodes=2).start())
    tasks = world.running()
    node = tasks["worker.0"].node
    (other,) = {"chief.0", "worker.1"} & {name for name, task in tasks.items() if task.node == node}
    end(world, "worker.0", code=None, signal=11)
    back(world, "worker.0", 2)
    end(world, "worker.0", code=None, signal=11)
    back(world, "worker.0", 3)
    end(world, other, code=None, signal=11)
    world.until(lambda: world.snapshot().nodes[node].cordon is not None)
    held = world.snapshot().nodes[node].cordon
    assert held is not None
    assert held.value.cooldown_ms == COOLDOWN_MS
    assert "program_signal 3 times in a row" in held.value.reason
    assert world.done.count("node_cordoned") == 1


def is_cordoned(world: World, node: str) -> bool:
    return world.snapshot().nodes[node].cordon is not None


def crash(world: World, member: str, node: str) -> bool:
    """It is ended by SIGSEGV; returns whether its node is cordoned for that instead of all running again."""
    end(world, member, code=None, signal=11)
    count = len(world.spec.tasks())
    world.until(lambda: len(world.running()) == count or is_cordoned(world, node), limit_ms=200_000)
    return is_cordoned(world, node)


@pytest.mark.parametrize("by", ["its time", "an operator"])
def test_a_node_whose_cordon_is_lifted_is_tried_again_and_what_was_counts_no_more(by: str) -> None:
    """The job has no room elsewhere: the failure that waits is the one that the node was cordoned for."""
    need = resources(cpus=2.0)
    policy = RestartPolicy(max_restarts=30, max_in_window=90)
    spec = job_spec((role("chief", 1, need), role("ps", 1, need), role("worker", 2, need)), restart=policy)
    world = quiet(World(spec, nodes=2).start())
    tasks = world.running()
    node = tasks["worker.0"].node
    (other,) = {"chief.0", "worker.1"} & {name for name, task in tasks.items() if task.node == node}

    def fail(member: str) -> bool:
        return crash(world, member, node)

    assert [fail(member) for member in ("worker.0", "worker.0", other)] == [False, False, True]
    settled(world)
    assert other not in world.running(), "there is no room for it"
    held = world.snapshot().nodes[node].cordon
    assert held is not None
    if by == "an operator":
        world.run(cordons.lift(world.snapshot(), held, "let go"))
    world.until(lambda: other in world.running(), limit_ms=2 * COOLDOWN_MS, step_ms=1_000)
    world.new_leader()
    quiet(settled(world))
    assert world.done.count("node_cordoned") == 1
    # It takes as many as the first time: what waited is not one of them, though it was recorded since.
    assert [fail(member) for member in ("worker.0", other, "worker.0")] == [False, False, True]


def test_several_that_waited_for_their_node_do_not_cordon_it_again_among_themselves() -> None:
    need = resources(cpus=1.0)
    policy = RestartPolicy(max_restarts=30, max_in_window=90)
    spec = job_spec((role("chief", 1, need), role("ps", 1, need), role("worker", 6, need)), restart=policy)
    world = quiet(World(spec, nodes=2).start())
    tasks = world.running()
    node = next(
        task.node for name, task in tasks.items() if name != "ps.0" and task.node != tasks["ps.0"].node
    )
    first, *others = [name for name, task in sorted(tasks.items()) if task.node == node]

    for _ in range(2):
        end(world, first, code=None, signal=11)
        world.until(lambda: len(world.running()) == len(spec.tasks()), limit_ms=200_000)
    for member in others:
        end(world, member, code=None, signal=11)
    world.until(lambda: is_cordoned(world, node), limit_ms=200_000)
    waiting = [member for member in others if member not in settled(world).running()]
    assert len(waiting) == 3, "there is no room for them"
    world.until(lambda: len(world.running()) == len(spec.tasks()), limit_ms=2 * COOLDOWN_MS, step_ms=1_000)
    quiet(settled(world))
    assert world.done.count("node_cordoned") == 1


def test_an_attempt_that_began_before_a_cordon_was_lifted_is_not_held_against_its_node() -> None:
    need = resources(cpus=1.0)
    policy = RestartPolicy(max_restarts=30, max_in_window=90)
    spec = job_spec((role("chief", 1, need), role("ps", 1, need), role("worker", 6, need)), restart=policy)
    world = quiet(World(spec, nodes=2).start())
    workers = [name for name in world.running() if name.startswith("worker")]
    node = world.node_of(workers[0])
    first, second, old = [name for name in workers if world.node_of(name) == node][:3]

    def fail(member: str) -> bool:
        return crash(world, member, node)

    assert [fail(member) for member in (first, first, second)] == [False, False, True]
    world.until(lambda: second in world.running(), limit_ms=2 * COOLDOWN_MS, step_ms=1_000)
    assert [fail(member) for member in (second, second, old)] == [False, False, False]
    assert fail(old)


def test_a_checkpoint_whose_restore_fails_twice_is_set_aside_and_the_one_before_restored() -> None:
    world = World(spec_with(max_restarts=9)).start()
    good, bad = world.commit(1, 100), world.commit(1, 200)
    kill(world, "ps.0")
    world.until(lambda: world.switch().generation == 2 and "chief.0" in world.running())
    quiet(world)
    restart_all(world, "chief.0", FLIPPED)
    assert world.switch().base == bad
    restart_all(world, "chief.0", FLIPPED)
    record = world.job().commits[bad].value
    assert (record.state, record.suspected) == (CommitState.QUARANTINED, True)
    assert "data_loss before the first step in 2 generations" in record.reason
    assert world.switch().base == good


def test_so_it_is_though_an_evaluator_has_read_it_well() -> None:
    """Fault `unrestorable`: its word was taken for a step of training, and the job failed."""
    world = World(job_spec(EVALUATED, restart=RestartPolicy(max_restarts=3))).start()
    good, bad = world.commit(1, 100), world.commit(1, 200)
    only_the_evaluator_tells(world, 2, 3)
    kill(world, "ps.0")
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 4)
    restart_all(world, "chief.0", FLIPPED)
    restart_all(world, "chief.0", FLIPPED)
    assert world.job().commits[bad].value.suspected
    assert world.switch().base == good
    assert [each.from_step for each in failures(world)[1:]] == [-1, -1]


def test_a_node_is_suspected_though_an_evaluator_on_another_reads_on() -> None:
    """Fault `node-bad`."""
    world = World(job_spec(EVALUATED, restart=RestartPolicy(max_restarts=3))).start()
    world.commit(1, 100)
    only_the_evaluator_tells(world, 2, 3, 4)
    kill(world, "ps.0")
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 4)
    node = world.running()["ps.0"].node
    for _ in range(3):
        restart_all(world, "ps.0", BUG)
    assert world.switch().phase is JobPhase.RUNNING
    assert world.running()["ps.0"].node != node


def test_the_last_checkpoint_is_never_set_aside() -> None:
    world = World(spec_with(max_restarts=9)).start()
    only = world.commit(1, 100)
    kill(world, "ps.0")
    world.until(lambda: world.switch().generation == 2 and "chief.0" in world.running())
    quiet(world)
    restart_all(world, "chief.0", FLIPPED)
    restart_all(world, "chief.0", FLIPPED)
    assert world.switch().phase is JobPhase.FAILED
    assert "no other checkpoint is left" in world.switch().reason
    assert world.job().commits[only].value.state is CommitState.COMMITTED


def test_what_returns_from_two_checkpoints_is_the_programs_and_the_checkpoint_is_cleared() -> None:
    world = World(spec_with(max_restarts=9)).start()
    older, newer = world.commit(1, 100), world.commit(1, 200)
    kill(world, "ps.0")
    world.until(lambda: world.switch().generation == 2 and "chief.0" in world.running())
    quiet(world)
    first = world.running()["chief.0"].node
    restart_all(world, "chief.0", BUG)
    restart_all(world, "chief.0", BUG)
    assert world.running()["chief.0"].node != first
    assert world.switch().base == newer
    restart_all(world, "chief.0", BUG)
    assert world.job().commits[newer].value.state is CommitState.QUARANTINED
    assert world.switch().base == older
    restart_all(world, "chief.0", BUG)
    assert world.switch().phase is JobPhase.FAILED
    assert "it is not the checkpoint's fault" in world.switch().reason
    assert world.job().commits[newer].value.state is CommitState.COMMITTED


def test_a_program_whose_steps_cannot_be_read_has_no_checkpoint_suspected() -> None:
    world = quiet(World(spec_with(max_restarts=9)))
    world.until(lambda: len(world.running()) == 4)
    world.commit(1, 100)
    newest = world.commit(1, 200)
    for _ in range(4):
        restart_all(world, "chief.0", BUG)
    assert world.job().commits[newest].value.state is CommitState.COMMITTED
    assert world.switch().base == newest


def test_a_checkpoint_that_is_being_collected_is_not_cleared() -> None:
    world = World(spec_with(max_restarts=9)).start()
    older, newer = world.commit(1, 100), world.commit(1, 200)
    held = world.job().commits[newer]
    going = replace(held.value, state=CommitState.COLLECTING, suspected=True)
    world.write(put(held.key, going))
    verdict = BaseVerdict(older, quarantine=False, reason="returns", acquitted=(newer,))
    failing = Action("job_failed", "digits", "job failed", (), ())
    assert with_acquittal(world.job(), failing, verdict) == failing, "its files may be gone already (rule 9)"


def lose_launcher(world: World, member: str, *, ran: bool = True) -> None:
    """Its launcher dies while the task makes steps, or before; returns when the job has answered that."""
    report = world.running()[member]
    attempt = report.attempt
    gone = Exit(ExitReason.LAUNCHER_LOST, None, None, 10, True, detail="its launcher died")
    world._exited(report if ran else replace(report, pid=0), gone)
    world.until(
        lambda: (
            world.switch().phase.ended
            or (member in world.running() and world.running()[member].attempt != attempt)
        )
    )
    for _ in range(5):
        world.tick()


def test_a_job_that_always_ends_its_launcher_fails_although_it_makes_steps() -> None:
    world = World().start()
    for row in range(6):
        assert world.switch().phase is JobPhase.RUNNING, row
        lose_launcher(world, "worker.0")
    assert world.switch().phase is JobPhase.FAILED
    assert "a launcher was lost 6 times in a row" in world.switch().reason
    assert world.switch().ledger.program == 0


@pytest.mark.parametrize("saves", [True, False])
def test_a_newer_checkpoint_or_a_minute_ends_a_row_of_lost_launchers(*, saves: bool) -> None:
    world = World().start()
    for row in range(1, 8):
        lose_launcher(world, "worker.0")
        if saves:
            world.commit(1, 1_000 * row)
        else:
            world.until(lambda began=world.now_ms: world.now_ms > began + 60_000, 90_000, step_ms=1_000)
    assert world.switch().phase is JobPhase.RUNNING


def test_lost_launchers_of_different_tasks_are_no_row() -> None:
    world = World(job_spec((role("chief"), role("ps"), role("worker", 5)))).start()
    for index in range(5):
        lose_launcher(world, f"worker.{index}")
    lose_launcher(world, "ps.0")
    causes = [(each.cause, each.scope) for each in failures(world)]
    assert causes == [(Cause.LAUNCHER_LOST, Scope.TASK)] * 5 + [(Cause.LAUNCHER_LOST, Scope.ALL)]
    assert world.switch().phase is JobPhase.RUNNING


def test_attempts_that_never_ran_are_no_launchers_that_the_program_ended() -> None:
    world = World().start()
    for _ in range(8):
        lose_launcher(world, "worker.0", ran=False)
    lose_launcher(world, "worker.0")
    assert world.switch().phase is JobPhase.RUNNING
    assert {each.cause for each in failures(world)} == {Cause.LAUNCHER_LOST}
    assert "did not start: its launcher died" in failures(world)[0].detail


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


# The program's own code.


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


def test_a_silent_job_whose_attempts_live_for_a_minute_may_have_trained() -> None:
    world = untrained(job_spec({"worker": 1}, Strategy.PLAIN), nodes=1)
    fail_again(world, "worker.0", BUG)
    for _ in range(61):
        world.tick(1_000)
    fail_again(world, "worker.0", BUG)
    assert world.switch().phase is JobPhase.RUNNING


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
