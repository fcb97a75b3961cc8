"""Beats lead the leader to hangs, NaN losses, deadlines and stragglers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from recovery.policy.causes import NEVER_READY_CODE
from supervisor.contract import keys
from supervisor.contract.boundaries import Put
from supervisor.contract.desired import JobPhase
from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Cause, Event, Outcome
from supervisor.contract.job.spec import JobSpec, Limits, ProgressSpec, RestartPolicy, Rule, Scope, Strategy
from supervisor.contract.observed import Exit, ExitReason, Prepared, Sign, TaskBeat
from supervisor.contract.timing import FAST
from supervisor.control.decide.assess import assess as assessing
from supervisor.control.decide.assess import progress
from supervisor.control.decide.assess.assess import Assessments, assess
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.assess.servers import MOST
from supervisor.control.decide.assess.stacks import to_dump
from supervisor.control.decide.jobs.restart import in_place
from supervisor.control.decide.plan import Action, put
from supervisor.control.decide.snapshot import Snapshot
from tests.control.world import Agent, World, waiting_for
from tests.support.builders import job_spec


def say(world: World, member: str, tell: Callable[[TaskBeat], TaskBeat]) -> str:
    """From now on its agent says so of the attempt that runs."""
    report = world.running()[member]
    world.agents[report.node].tells[str(report.attempt)] = tell
    return str(report.attempt)


def dumped(snap: Snapshot, node: str) -> tuple[str, ...]:
    """The attempts whose stacks are asked for, without an error."""

    def broken(_job: str, error: Exception) -> None:
        raise error

    return to_dump(Assessments(snap), snap.jobs, node, broken)


def suspicions(world: World) -> list[Action]:
    snap = world.snapshot()
    job = snap.jobs[world.spec.name]
    return progress.suspicions(snap, job, assess(snap, job))


def slow_tasks(world: World) -> dict[TaskId, float]:
    snap = world.snapshot()
    return progress.slow_tasks(snap, assess(snap, snap.jobs[world.spec.name]))


def asked_by_beats(world: World) -> Need | None:
    """The restart that beats alone ask for."""
    snap = world.snapshot()
    job = snap.jobs[world.spec.name]
    found = assess(snap, job)
    return progress.find(snap, job, found.members, found.liveness)


def hang(world: World, *names: str) -> list[str]:
    """These make no step from now on."""
    began = world.now_ms
    return [say(world, name, lambda beat: replace(beat, step_age_ms=world.now_ms - began)) for name in names]


def with_limits(limits: Limits) -> JobSpec:
    return replace(job_spec(), limits=limits)


def watching_nan(*, asked: bool) -> JobSpec:
    return replace(job_spec(), progress=ProgressSpec(watch_nan=asked))


def test_a_worker_that_hangs_is_restarted_in_place_though_it_lives() -> None:
    world = World().start()
    hang(world, "worker.0")
    world.until(lambda: "g1-worker.0-a1" in world.incidents(), step_ms=500)
    took = world.incidents()["g1-worker.0-a1"]
    assert (took.cause, took.scope, took.phases_ms["detected"]) == (Cause.HANG, Scope.TASK, 30_000)
    assert "digits/worker:0 on" in took.detail
    assert "has made no step for 30." in took.detail
    assert world.switch().ledger.program == 1
    assert world.switch().generation == 1


def test_a_task_that_has_ended_and_cannot_be_reported_is_no_hang_nor_are_those_that_wait_for_it() -> None:
    world = World().start()
    hang(world, "chief.0", "worker.0", "worker.1")
    say(world, "ps.0", lambda beat: replace(beat, ended=True))
    later_ms = world.now_ms + 50_000
    world.until(lambda: world.now_ms > later_ms, step_ms=500)
    assert set(world.incidents()) == {"submit"}
    say(world, "ps.0", lambda beat: beat)
    world.until(lambda: len(world.incidents()) > 1, step_ms=500)


def test_an_error_about_one_job_is_told_and_asks_for_no_stack_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World().start()
    monkeypatch.setattr(assessing, "liveness_of", lambda *_: 1 // 0)
    about: list[tuple[str, str]] = []
    found = to_dump(
        Assessments(world.snapshot()),
        ["digits"],
        "n0",
        lambda job, error: about.append((job, type(error).__name__)),
    )
    assert (found, about) == ((), [("digits", "ZeroDivisionError")])


def test_on_suspicion_its_stack_is_asked_for_and_one_event_written() -> None:
    world = World().start()
    (attempt,) = hang(world, "worker.0")
    node = world.running()["worker.0"].node
    assert dumped(world.snapshot(), node) == ()
    for _ in range(14):
        world.tick(500)
    assert dumped(world.snapshot(), node) == (attempt,)
    assert all(dumped(world.snapshot(), other) == () for other in world.agents if other != node)
    (action,) = suspicions(world)
    assert (action.kind, action.fields["attempt"]) == ("hang_suspected", attempt)
    world.write(put(keys.event(1), Event(0, action.kind, "digits", action.text, action.fields)))
    assert suspicions(world) == []
    assert not world.incidents().get("g1-worker.0-a1")


def test_when_a_stopped_server_holds_all_up_it_is_the_root_and_all_restart() -> None:
    world = World().start()
    say(world, "ps.0", lambda beat: replace(beat, stopped=True))
    hang(world, "chief.0", "worker.0", "worker.1")
    world.until(lambda: world.switch().generation == 2, step_ms=500)
    found = [each for each in world.incidents().values() if each.cause is Cause.HANG]
    assert [(each.id, each.scope) for each in found] == [("g1-ps.0-a1", Scope.ALL)]
    assert "no task of digits has made a step" in found[0].detail
    assert "digits/ps:0 on" in found[0].detail


def test_when_all_hang_and_none_stands_out_the_whole_job_restarts_once() -> None:
    world = World(job_spec(strategy=Strategy.SYNC)).start()
    hang(world, "chief.0", "worker.0", "worker.1")
    nodes = {report.node for report in world.running().values()}
    for _ in range(14):
        world.tick(500)
    asked = [each for node in nodes for each in dumped(world.snapshot(), node)]
    assert len(asked) == 4  # the server too: it may be who the others wait for
    world.until(lambda: world.switch().generation == 2, step_ms=500)
    world.until(lambda: world.incidents()["g1-hang"].outcome is Outcome.RECOVERED, step_ms=500)
    assert len([each for each in world.incidents().values() if each.cause is Cause.HANG]) == 1


def test_a_hang_is_not_judged_while_a_node_of_the_job_is_not_heard() -> None:
    world = World().start()
    hang(world, "worker.0")
    silent = next(r.node for m, r in world.running().items() if r.node != world.running()["worker.0"].node)
    for _ in range(50):
        world.tick(500)
    world.agents[silent].beating = False
    for _ in range(3):
        world.tick(500)
    assert asked_by_beats(world) is None
    assert dumped(world.snapshot(), world.running()["worker.0"].node) == ()


def test_what_was_heard_before_a_leader_stood_still_is_no_hang() -> None:
    world = World().start()
    for agent in world.agents.values():
        agent.beating = False
    world.now_ms += 60_000
    # It has been frozen, and listens again: nobody counts as silent yet.
    world.since_ms = world.now_ms
    assert asked_by_beats(world) is None
    assert not suspicions(world)


@pytest.mark.parametrize("rule", [Rule.IGNORE, Rule.FAIL])
def test_a_job_may_have_another_rule_for_hangs(rule: Rule) -> None:
    spec = job_spec()
    world = World(replace(spec, restart=replace(spec.restart, rules={"hang": rule}))).start()
    hang(world, "worker.0")
    for _ in range(80):
        world.tick(500)
    expected = JobPhase.FAILED if rule is Rule.FAIL else JobPhase.RUNNING
    assert world.switch().phase is expected
    assert world.running().get("worker.0") is None or world.running()["worker.0"].number == 1


def test_what_was_begun_for_a_hang_is_carried_through_when_it_passes() -> None:
    world = World(job_spec(strategy=Strategy.SYNC)).start()
    hang(world, "chief.0", "worker.0", "worker.1")
    world.until(lambda: world.job().next_plan is not None, step_ms=50)
    for agent in world.agents.values():
        agent.tells.clear()
    world.until(lambda: world.switch().generation == 2)
    world.until(lambda: world.incidents()["g1-hang"].outcome is Outcome.RECOVERED)


def test_of_a_hung_job_the_stack_of_the_task_that_drives_it_is_kept() -> None:
    world = World(job_spec(strategy=Strategy.SYNC)).start()
    reports = world.running()
    hang(world, "chief.0", "worker.0", "worker.1")
    world.until(lambda: world.switch().generation == 2, step_ms=500)
    assert world.incidents()["g1-hang"].detail.startswith("digits has made no step for 30")
    chief = reports.pop("chief.0")
    for report in reports.values():
        world._exited(report, _killed("server.join()"), drained=True)
    assert not any(progress.stacks(each) for each in world.snapshot().jobs.values())
    world._exited(chief, _killed("File train.py, line 7"), drained=True)
    world.until(lambda: world.incidents()["g1-hang"].stack == "digits/chief:0, File train.py, line 7")
    assert world.incidents()["g1-hang"].detail.endswith("; /a is kept")


def test_a_stack_of_an_earlier_suspicion_is_not_shown_for_another_failure() -> None:
    world = World().start()
    report = world.running()["worker.0"]
    exited = Exit(ExitReason.EXIT, 1, None, 10, confirmed_dead=True, stack="File train.py, line 7")
    world._exited(report, exited)
    world.until(lambda: "g1-worker.0-a1" in world.incidents())
    for _ in range(40):
        world.tick()
    assert world.incidents()["g1-worker.0-a1"].stack == ""


def test_of_a_task_that_was_restarted_since_the_stack_of_its_last_attempt_is_kept() -> None:
    world = World(job_spec(strategy=Strategy.SYNC)).start()
    reports = world.running()
    hang(world, "chief.0", "worker.0", "worker.1")
    world.until(lambda: world.switch().generation == 2, step_ms=500)
    chief = reports["chief.0"]
    world._exited(chief, _killed("an old one"), drained=True)
    world._exited(replace(chief, number=2), _killed("File train.py, line 9"), drained=True)
    world.until(lambda: world.incidents()["g1-hang"].stack == "digits/chief:0, File train.py, line 9")


def _killed(stack: str) -> Exit:
    return Exit(ExitReason.KILLED, None, 9, 0, confirmed_dead=True, stack=stack, detail="/a is kept")


def test_who_was_restarted_for_a_hang_has_as_long_as_the_others_before_all_are() -> None:
    """A chief that waits for a stopped worker has made no step for long when the new one starts."""
    spec = replace(job_spec(), progress=ProgressSpec(act_after_ms=8_000))
    world = World(spec).start()
    hang(world, "chief.0", "worker.1")
    began_ms = world.now_ms
    say(world, "worker.0", lambda beat: replace(beat, step_age_ms=world.now_ms - began_ms, stopped=True))
    agent = world.agents[world.running()["worker.0"].node]
    agent.tells["digits/worker:0@1.2"] = lambda beat: replace(beat, step=-1, step_age_ms=-1)
    world.until(lambda: "g1-worker.0-a1" in world.incidents(), step_ms=250)
    assert world.now_ms - began_ms >= 8_000
    world.until(lambda: world.running()["worker.0"].attempt.number == 2, step_ms=250)
    again_ms = world.now_ms
    world.until(lambda: "g1-hang" in world.incidents(), step_ms=250)
    assert 7_500 <= world.now_ms - again_ms <= 9_000


def test_steps_that_a_restarted_agent_has_not_heard_of_yet_are_no_missing_ones() -> None:
    spec = replace(job_spec(), progress=ProgressSpec(act_after_ms=8_000))
    world = World(spec).start()
    hang(world, "chief.0", "worker.1")
    for _ in range(30):
        world.tick(250)
    node = world.running()["worker.0"].node
    world.register(node, "again", succeeds=(world.agents[node].incarnation,))
    joined_ms = world.now_ms
    say(world, "worker.0", lambda beat: replace(beat, step=-1, step_age_ms=-1))
    world.until(lambda: "g1-hang" in world.incidents(), step_ms=250)
    assert world.now_ms - joined_ms >= FAST.d_ms


def test_each_hang_before_doubles_what_is_borne() -> None:
    world = World().start()
    for number, least_ms in ((1, 30_000), (2, 60_000)):
        began = world.now_ms
        hang(world, "worker.0")
        incident, following = f"g1-worker.0-a{number}", number + 1
        world.until(lambda wanted=incident: wanted in world.incidents(), 200_000, 500)
        assert world.now_ms - began >= least_ms
        world.until(lambda wanted=following: world.running()["worker.0"].number == wanted, step_ms=500)
        for _ in range(4):
            world.tick()


@pytest.mark.parametrize("apart_ms", [0, 300, 3_000])
def test_workers_that_hang_together_restart_together_as_one_failure(apart_ms: int) -> None:
    world = World(job_spec({"chief": 1, "ps": 1, "worker": 12})).start()
    hung = [f"worker.{index}" for index in range(1, 11)]
    for name in hung:
        hang(world, name)
        for _ in range(4):
            world.tick(apart_ms // 4)
    world.until(lambda: all(world.running()[name].number == 2 for name in hung), 40_000, 250)
    found = {each.id: each for each in world.incidents().values() if each.cause is Cause.HANG}
    assert [(each.member, each.scope) for each in found.values()] == [("worker.1", Scope.TASK)]
    assert "digits/worker:9 and 1 more hang with it" in found["g1-worker.1-a1"].detail
    assert {world.running()[name].number for name in ("chief.0", "worker.0", "worker.11")} == {1}
    assert (world.switch().generation, world.switch().ledger.program) == (1, 1)
    world.until(lambda: world.incidents()["g1-worker.1-a1"].outcome is Outcome.RECOVERED)


def test_a_chief_that_may_wait_for_one_that_hangs_does_not_restart_the_job_with_it() -> None:
    world = World(job_spec({"chief": 1, "ps": 1, "worker": 3})).start()
    hang(world, "worker.1", "worker.2")
    world.tick()
    hang(world, "chief.0")
    world.until(lambda: world.running()["worker.1"].number == 2, 40_000, 500)
    assert (world.switch().generation, world.running()["worker.2"].number) == (1, 2)
    world.until(lambda: world.switch().generation == 2, 80_000, 500)
    found = [(each.member, each.scope) for each in world.incidents().values() if each.cause is Cause.HANG]
    assert found == [("worker.1", Scope.TASK), ("chief.0", Scope.ALL)]


def test_more_tasks_than_one_transaction_restarts_restart_with_the_whole_job() -> None:
    world = World(job_spec({"chief": 1, "ps": 1, "worker": MOST + 3}), nodes=6)
    world.until(lambda: len(world.running()) == len(world.spec.tasks()))
    hang(world, *(f"worker.{index}" for index in range(1, MOST + 2)))
    world.until(lambda: world.switch().generation == 2, 60_000, 1_000)
    (found,) = (each for each in world.incidents().values() if each.cause is Cause.HANG)
    assert (found.scope, found.rule) == (Scope.ALL, "async.worker.in_place, but more than 40 tasks hang")
    assert world.switch().ledger.program == 1


def test_a_task_that_is_told_to_end_gets_no_other_attempt_beside_one_that_hangs() -> None:
    world = World(job_spec({"chief": 1, "ps": 1, "worker": 3})).start()
    hang(world, "worker.1", "worker.2")
    for _ in range(160):
        world.tick(250, leader=False)
    need = asked_by_beats(world)
    assert need is not None
    job = world.job()
    plan = job.plan_in_force
    assert plan is not None
    held = job.assigned(plan.value.plan_id, "worker.2")
    assert held is not None
    assert len(puts_of(world, need)) == 2
    world.write(put(held.key, replace(held.value, ends=True)))
    assert puts_of(world, need) == ["worker.1"]


def puts_of(world: World, need: Need) -> list[str]:
    """The tasks that get another attempt."""
    snap = world.snapshot()
    found = in_place(replace(snap, now_ms=need.due_ms), snap.jobs[world.spec.name], need)
    written = [op.key for each in found for op in each.ops if isinstance(op, Put)]
    return [str(keys.parse(key)[-1]) for key in written if key.startswith("assignments/")]


def test_a_task_whose_own_budget_is_spent_is_not_restarted_with_others() -> None:
    """They only print, so that none has made a step since its last failure."""
    spec = job_spec({"chief": 1, "ps": 1, "worker": 3}, restart=RestartPolicy(max_restarts=1))
    world = World(spec).start()
    world.end_task("worker.2", 1)
    world.until(lambda: "worker.2" in world.running())
    for name in ("worker.1", "worker.2"):
        say(world, name, never_steps(world))
    world.commit(1, 20)
    world.until(lambda: world.running()["worker.1"].number == 2, 40_000, 500)
    assert world.running()["worker.2"].number == 2


def test_one_that_is_left_running_keeps_no_other_from_its_restart() -> None:
    """The job saves, so that only the budget of the task itself is spent."""
    spec = job_spec({"chief": 1, "ps": 1, "worker": 3}, restart=RestartPolicy(max_restarts=1))
    world = World(spec).start()
    world.end_task("worker.2", 1)
    world.until(lambda: "worker.2" in world.running())
    world.commit(1, 20)
    say(world, "worker.2", never_steps(world))
    world.until(
        lambda: [each.fields["task"] for each in left_running(world)] == ["digits/worker:2"], 40_000, 500
    )
    say(world, "worker.1", never_steps(world))
    world.until(lambda: world.running()["worker.1"].number == 2, 40_000, 500)
    assert world.running()["worker.2"].number == 2
    assert [each.fields["task"] for each in left_running(world)] == ["digits/worker:2"]


def never_steps(world: World) -> Callable[[TaskBeat], TaskBeat]:
    """A task that only printed, and prints no more."""
    began_ms = world.now_ms
    return lambda beat: TaskBeat(beat.attempt, signs=(Sign("output", world.now_ms - began_ms, 100),))


def left_running(world: World) -> list[Action]:
    return [each for each in suspicions(world) if each.kind == "hang_left"]


def test_a_nan_loss_fails_the_job_if_it_asks_for_that() -> None:
    for asked in (True, False):
        world = World(watching_nan(asked=asked)).start()
        say(world, "worker.1", lambda beat: replace(beat, nan=True))
        for _ in range(5):
            world.tick()
        assert world.switch().phase is (JobPhase.FAILED if asked else JobPhase.RUNNING)
    incident = World(watching_nan(asked=True)).start()
    say(incident, "worker.1", lambda beat: replace(beat, nan=True))
    incident.until(lambda: incident.switch().phase is JobPhase.FAILED)
    assert "printed a loss that is not a number, at step 10" in incident.switch().reason
    assert incident.incidents()["g1-worker.1-a1"].cause is Cause.NAN_LOSS


def test_a_generation_without_a_step_is_late_only_where_steps_were_read_before() -> None:
    world = World(with_limits(Limits(startup_ms=20_000)))
    for agent in world.agents.values():
        agent.steps = False
    world.start()
    for _ in range(60):
        world.tick(500)
    assert world.switch().generation == 1
    for agent in world.agents.values():
        agent.steps = True
    world.tick()
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    for agent in world.agents.values():
        agent.steps = False
    world.until(lambda: world.switch().generation == 3, step_ms=500)
    late = world.incidents()["g2-never-ready"]
    assert late.detail == "no task of digits has made a step within 20 s (limits.startup)"


@pytest.mark.parametrize(
    ("limit_ms", "age_ms", "ends"), [(40_000, 50_000, True), (40_000, 0, False), (600_000, 50_000, False)]
)
def test_a_start_that_shows_nothing_is_ended_within_the_limit_that_its_job_sets(
    limit_ms: int, age_ms: int, ends: bool
) -> None:
    """Its stacks are taken before, the next start is cold, and the job fails by its budget."""
    world = World(with_limits(Limits(startup_ms=limit_ms)))
    for agent in world.agents.values():
        agent.steps = False
    world.start()
    shown = (Sign("cpu", age_ms, 0), Sign("output", age_ms, -1))
    for member in ("chief.0", "worker.0", "worker.1"):
        say(world, member, lambda beat: replace(beat, signs=shown))
    for _ in range(50):
        world.tick(500)
    attempt = str(world.running()["chief.0"].attempt)
    asked = dumped(world.snapshot(), world.running()["chief.0"].node)
    assert (attempt in asked) is ends
    for _ in range(60):
        world.tick(500)
    assert ("g1-never-ready" in world.incidents()) is ends
    if ends:
        assert world.switch().cold
        assert "none works or writes anything" in world.incidents()["g1-never-ready"].detail
        assert world.switch().ledger.program == 1


def waiting() -> tuple[World, Agent, str, Prepared]:
    """A task has waited for its secret for longer than `limits.startup`, with the record that says so."""
    world = World(with_limits(Limits(startup_ms=20_000))).start()
    plan_id, run = world.switch().plan_id, world.running()["worker.1"]
    agent, why = world.agents[run.node], "it waits for its secrets: jobs of user:bob may not use 'hf'"
    key = keys.prepared(run.attempt.task, plan_id)
    told = Prepared("digits", plan_id, run.role, run.index, run.node, run.incarnation, delay=why)
    agent.starts = False
    world.write(put(key, told))
    world.end_task("worker.1", signal=9)
    for _ in range(60):
        world.tick(500)
    assert "worker.1" not in world.running()
    assert (world.switch().generation, world.switch().ledger.program) == (1, 0)
    return world, agent, key, told


def test_a_task_whose_secret_was_taken_away_waits_and_says_why_until_it_is_back() -> None:
    world, agent, key, told = waiting()
    assert told.delay in waiting_for(world.snapshot(), world.job())
    assert "delayed" in world.done
    world.write(put(key, replace(told, delay="")))
    for _ in range(30):
        world.tick(500)
    assert world.switch().generation == 1, "it has the whole limit from when the secret is back"
    agent.starts = True
    world.until(lambda: "worker.1" in world.running())
    assert world.switch().ledger.program == 0


def test_a_task_that_does_not_start_after_its_delay_is_late() -> None:
    world, agent, key, told = waiting()
    world.write(put(key, replace(told, delay="")))
    world.until(lambda: "g1-never-ready" in world.incidents(), 25_000, step_ms=500)
    assert agent.node in world.incidents()["g1-never-ready"].detail


def test_a_delay_that_a_former_life_told_does_not_excuse_a_start_for_ever() -> None:
    world, agent, _, _ = waiting()
    world.register(agent.node, "next", succeeds=(agent.incarnation,))
    world.agents[agent.node].starts = False
    for _ in range(30):
        world.tick(500)
    assert world.switch().generation == 1, "the new life has time to tell its own"
    world.until(lambda: "g1-never-ready" in world.incidents(), 15_000, step_ms=500)


def test_a_worker_that_never_steps_while_its_peer_does_is_late() -> None:
    world = World(with_limits(Limits(startup_ms=20_000))).start()
    say(world, "worker.0", lambda beat: TaskBeat(beat.attempt))
    world.until(lambda: "g1-worker.0-a1" in world.incidents(), step_ms=500)
    found = world.incidents()["g1-worker.0-a1"]
    assert (found.cause, found.scope) == (Cause.NEVER_READY, Scope.TASK)


def test_a_start_that_goes_on_working_is_told_of_once_and_left_alone() -> None:
    """It may compile, or spin: by default nobody is ended for it."""
    world = World(with_limits(Limits(startup_ms=20_000))).start()
    attempt = say(world, "worker.0", lambda beat: TaskBeat(beat.attempt, signs=(Sign("cpu", 0, 0),)))
    for _ in range(120):
        world.tick(500)
    assert set(world.incidents()) == {"submit"}
    assert dumped(world.snapshot(), world.running()["worker.0"].node) == (attempt,)
    (action,) = suspicions(world)
    assert (action.kind, action.fields["attempt"]) == ("hang_suspected", attempt)
    assert "has made no step in the 60 s since its start (limits.startup is over)" in action.text
    world.write(put(keys.event(1), Event(0, action.kind, "digits", action.text, action.fields)))
    assert suspicions(world) == []


def test_a_task_that_writes_for_ever_what_is_new_and_makes_no_step_is_told_of() -> None:
    """Lines of a thread that watches the memory, say: nothing is restarted, but nothing is hidden."""
    world = World().start()
    signs = (Sign("step", 600_000, 100), Sign("output", 500, 2_000), Sign("cpu", 600_000, 0))
    say(world, "worker.0", lambda beat: replace(beat, step_age_ms=600_000, signs=signs))
    for _ in range(4):
        world.tick(500)
    assert set(world.incidents()) == {"submit"}
    (action,) = suspicions(world)
    assert action.kind == "hang_suspected"
    assert (
        "has made no step for 600.0 s, used hardly any processor time for 600.0 s, but still" in action.text
    )


def test_a_wait_in_vain_restarts_those_that_were_waited_for_too_as_one_incident() -> None:
    world = World().start()
    for member in ("worker.0", "chief.0"):
        world.end_task(member, NEVER_READY_CODE, reason=ExitReason.START_FAILED)
        world.tick()
    world.until(lambda: world.switch().generation == 2)
    found = [each for each in world.incidents().values() if each.cause is Cause.NEVER_READY]
    assert [(each.id, each.scope) for each in found] == [("g1-worker.0-a1", Scope.ALL)]


def test_a_job_ends_when_it_has_run_for_as_long_as_it_may() -> None:
    world = World(with_limits(Limits(wall_time_ms=60_000))).start()
    for _ in range(50):
        world.tick(500)
    world.new_leader()
    for _ in range(20):
        world.tick(500)
    assert world.switch().phase is JobPhase.RUNNING
    took = world.until(lambda: world.switch().phase is JobPhase.FAILED, step_ms=500)
    assert 25_000 - progress.CLOCK_MS <= took <= 26_500 + progress.CLOCK_MS
    assert "limits.wall_time allows 60 s" in world.switch().reason
    assert world.incidents()["wall-time-g1"].cause is Cause.WALL_TIME


def test_time_that_a_job_does_not_run_does_not_count() -> None:
    world = World(with_limits(Limits(wall_time_ms=60_000))).start()
    for _ in range(30):
        world.tick(500)
    world.write(put(keys.switch("digits"), replace(world.switch(), phase=JobPhase.STOPPED)))
    for _ in range(5):
        world.tick(500)
    before = progress.ran_ms(world.snapshot(), world.job())
    for _ in range(200):
        world.tick(500)
    assert progress.ran_ms(world.snapshot(), world.job()) == before


def test_one_that_hangs_is_no_straggler() -> None:
    world = World().start()
    say(world, "worker.0", lambda beat: replace(beat, pace=10.0))
    say(world, "worker.1", lambda beat: replace(beat, pace=2.0, step_age_ms=6_000))
    world.tick()
    assert slow_tasks(world) == {}


def test_a_straggler_is_reported_once() -> None:
    world = World().start()
    say(world, "worker.0", lambda beat: replace(beat, pace=10.0))
    attempt = say(world, "worker.1", lambda beat: replace(beat, pace=2.0))
    world.tick()
    (action,) = suspicions(world)
    assert (action.kind, action.fields["attempt"]) == ("straggler", attempt)
    assert "makes 5 times fewer steps than its peers" in action.text


def test_who_waits_for_a_task_that_is_gone_is_no_straggler() -> None:
    world = World().start()
    say(world, "worker.0", lambda beat: replace(beat, pace=10.0))
    say(world, "worker.1", lambda beat: replace(beat, pace=2.0))
    for agent in world.agents.values():
        agent.starts = False
    world.end_task("ps.0", signal=9)
    world.tick()
    assert slow_tasks(world) == {}


def test_a_task_that_beats_leave_out_does_not_keep_the_others_from_being_judged() -> None:
    world = World(job_spec(strategy=Strategy.SYNC)).start()
    server = world.running()["ps.0"]
    world.agents[server.node].omits.add(str(server.attempt))
    hang(world, "chief.0", "worker.0", "worker.1")
    world.until(lambda: world.switch().generation == 2, step_ms=500)
    assert world.incidents()["g1-hang"].cause is Cause.HANG


def test_nobody_is_judged_while_a_task_does_not_run_yet() -> None:
    world = World().start()
    hang(world, "worker.0")
    world.end_task("worker.1", signal=9)
    for agent in world.agents.values():
        agent.starts = False
    for _ in range(20):
        world.tick(500)
    node = world.running()["worker.0"].node
    assert dumped(world.snapshot(), node) == ()
    for agent in world.agents.values():
        agent.starts = True
    world.tick(500)
    world.tick(500)
    assert dumped(world.snapshot(), node) != ()


def test_a_task_that_was_never_in_a_beat_is_late_too() -> None:
    world = World(with_limits(Limits(startup_ms=20_000))).start()
    report = world.running()["worker.0"]
    world.agents[report.node].omits.add(str(report.attempt))
    world.until(lambda: "g1-worker.0-a1" in world.incidents(), step_ms=500)
    found = world.incidents()["g1-worker.0-a1"]
    assert (found.cause, found.scope) == (Cause.NEVER_READY, Scope.TASK)


def test_a_leader_that_has_not_heard_a_node_yet_finds_nobody_late() -> None:
    world = World(with_limits(Limits(startup_ms=20_000))).start()
    say(world, "worker.0", lambda beat: TaskBeat(beat.attempt))
    world.agents[world.running()["worker.0"].node].beating = False
    world.new_leader()
    world.snapshot()
    for _ in range(50):
        world.tick(500, leader=False)
    assert world.snapshot().nodes[world.running()["worker.0"].node].beat is None
    assert asked_by_beats(world) is None


def flat(*names: str, silent_ms: int = -1) -> Callable[[TaskBeat], TaskBeat]:
    """A task whose signs have long been flat."""

    def tell(beat: TaskBeat) -> TaskBeat:
        signs = tuple(Sign(name, 10_000_000, 100) for name in names)
        return replace(beat, step_age_ms=10_000_000, signs=signs, silent_ms=silent_ms)

    return tell


def hung_once(again: Callable[[TaskBeat], TaskBeat]) -> World:
    """A worker was restarted for a missing step; its next attempt tells `again` from its start on."""
    world = World().start()
    say(world, "worker.0", flat("step"))
    agent = world.agents[world.running()["worker.0"].node]
    agent.tells["digits/worker:0@1.2"] = again
    world.until(lambda: "g1-worker.0-a1" in world.incidents(), step_ms=500)
    assert world.incidents()["g1-worker.0-a1"].flat == ("step",)
    world.until(lambda: world.running()["worker.0"].number == 2, step_ms=500)
    for _ in range(20):
        world.tick(500)
    return world


@pytest.mark.parametrize(
    ("again", "why"),
    [
        (flat("output"), "for other missing signs before"),
        (flat("step", silent_ms=1_000), "goes on writing output"),
        (flat("step"), ""),
        (flat("step", "output", "cpu"), ""),
    ],
    ids=["no sign in common", "output goes on", "the same sign", "more signs"],
)
def test_a_second_hang_is_acted_upon_only_if_it_is_like_the_first(
    again: Callable[[TaskBeat], TaskBeat], why: str
) -> None:
    world = hung_once(again)
    left = [each for each in suspicions(world) if each.kind == "hang_left"]
    if why:
        assert list(world.incidents()) == ["submit", "g1-worker.0-a1"]
        assert [why in each.text for each in left] == [True]
    else:
        assert "g1-worker.0-a2" in world.incidents()


def hang_for_ever(spec: JobSpec) -> World:
    """Each attempt of a worker hangs from its first step on."""
    world = World(spec).start()
    for agent in world.agents.values():
        for number in range(1, 8):
            agent.tells[f"digits/worker:0@1.{number}"] = flat("step")
            agent.tells[f"digits/worker:0@2.{number}"] = flat("step")
    for _ in range(400):
        world.tick(500)
    return world


def test_a_hang_that_we_find_ourselves_never_fails_the_job() -> None:
    world = hang_for_ever(job_spec())
    assert world.switch().phase is JobPhase.RUNNING
    hangs = [each for each in world.incidents().values() if each.cause is Cause.HANG]
    assert len(hangs) == job_spec().restart.max_restarts
    (left,) = [each for each in suspicions(world) if each.kind == "hang_left"]
    assert "left running: 4 program faults in a row" in left.text


def test_a_job_that_sets_its_own_bound_fails_of_a_hang() -> None:
    world = hang_for_ever(replace(job_spec(), progress=ProgressSpec(act_after_ms=8_000)))
    assert world.switch().phase is JobPhase.FAILED


def test_a_task_that_works_is_suspected_and_not_restarted() -> None:
    world = World().start()

    def works(beat: TaskBeat) -> TaskBeat:
        return replace(beat, step_age_ms=10_000_000, signs=(Sign("step", 10_000_000, 100), Sign("cpu", 0, 0)))

    say(world, "worker.0", works)
    for _ in range(40):
        world.tick(500)
    assert set(world.incidents()) == {"submit"}
    (action,) = suspicions(world)
    assert "made no step for 10000.0 s" in action.text
    assert "but still works" in action.text


@pytest.mark.parametrize("everyone", [False, True])
@pytest.mark.parametrize("rule", [Rule.RESTART, Rule.FAIL])
def test_a_task_that_hangs_as_it_waits_for_its_data_is_no_fault_of_the_program(
    rule: Rule, everyone: bool
) -> None:
    world = World(job_spec(restart=RestartPolicy(rules={"hang": rule}))).start()
    began_ms = world.now_ms
    moved_ms = 0

    def waits(beat: TaskBeat) -> TaskBeat:
        age_ms = world.now_ms - began_ms
        signs = (Sign("step", age_ms, 100), Sign("files", min(moved_ms, age_ms)), Sign("data", 500))
        return replace(beat, step_age_ms=age_ms, signs=signs)

    names = ("worker.0", "worker.1", "chief.0") if everyone else ("worker.0",)
    for name in names:
        say(world, name, waits)
    for _ in range(80):
        world.tick(500)
    assert set(world.incidents()) == {"submit"}
    told = [each.text for each in suspicions(world)]
    assert len(told) == len(names)
    assert all(each.endswith("and waits for data whose store does not answer") for each in told)
    moved_ms = 1_000_000
    world.until(lambda: len(world.incidents()) > 1, step_ms=500)
    detail = next(each.detail for each in world.incidents().values() if each.cause is Cause.STORE_LOST)
    assert detail.endswith("waits for data whose store does not answer")
    world.until(lambda: world.switch().ledger.infrastructure)
    assert (world.switch().ledger.program, world.switch().ledger.infrastructure) == (0, 1)


def test_commits_are_signs_of_the_task_that_saves() -> None:
    world = World().start()
    hang(world, "chief.0")
    for step in range(10, 60, 10):
        world.commit(1, step)
        for _ in range(20):
            world.tick(500)
    assert set(world.incidents()) == {"submit"}


def test_a_program_without_a_global_step_still_makes_steps() -> None:
    """A program that prints an epoch and a step has stepped, though no number of it is shown."""
    world = World()
    for agent in world.agents.values():
        for attempt in ("chief:0@1.1", "worker:1@1.1", "worker:0@1.1", "worker:0@1.2"):
            agent.tells[f"digits/{attempt}"] = lambda beat: replace(beat, step=-1, first_step=-1)
    world.start()
    world.end_task("worker.0", signal=9)
    world.until(lambda: "g1-worker.0-a1" in world.incidents())
    world.until(lambda: world.incidents()["g1-worker.0-a1"].outcome is Outcome.RECOVERED)
    incident = world.incidents()["g1-worker.0-a1"]
    assert (incident.from_step, incident.to_step, incident.stepped) == (-1, -1, True)
    assert "first_step" in incident.phases_ms
