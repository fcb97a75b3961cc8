"""Workers of an asynchronous job join and leave it while all other tasks run on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from supervisor.contract import codec, keys
from supervisor.contract.desired import ClusterSpec, Cordon, JobPhase, JobSwitch
from supervisor.contract.incident import Cause, Incident, NotJoined, Outcome
from supervisor.contract.job.spec import (
    JobIntent,
    JobRecord,
    JobSpec,
    PsRecovery,
    RestartPolicy,
    Scope,
    Strategy,
)
from supervisor.contract.observed import AttemptReport, AttemptState, Exit, ExitReason
from supervisor.control.decide.assess import sizing
from supervisor.control.decide.facts.standing import ENDED_AFTER
from supervisor.control.decide.jobs.prepare import _ports_still_known
from supervisor.control.decide.nodes import node_loss
from supervisor.control.decide.plan import Action, put
from supervisor.control.decide.reconcile import reconcile
from tests.control.bank import Bank
from tests.control.world import World, waiting_for
from tests.support.builders import job_spec, resources, role

ONE = resources(cpus=4)


def training(nodes: int = 8, workers: int = 2, spec: JobSpec | None = None) -> World:
    """One task to a node, nodes to spare, and a first save."""
    roles = (role("chief", 1, ONE), role("ps", 1, ONE), role("worker", workers, ONE))
    world = World(spec or job_spec(roles), nodes)
    world.stays = ""
    world.start()
    world.commit(1, 100)
    world.tick()
    return world


def wish(world: World, **sizes: int) -> None:
    intent = world.job().intent.value
    world.write(put(keys.intent(world.spec.name), replace(intent, sizes=sizes)))


def workers(world: World) -> dict[str, AttemptReport]:
    return {member: report for member, report in world.running().items() if report.role == "worker"}


def count(world: World) -> int:
    return world.job().record.value.spec.role("worker").count


def described(world: World) -> ClusterSpec:
    job = world.job()
    return job.specs[job.switch.value.plan_id].value


def addresses(world: World) -> tuple[str, ...]:
    return next(each.addresses for each in described(world).roles if each.role == "worker")


def until_of(world: World, size: int) -> None:
    """Until so many workers train, and each is known where it is."""

    def done() -> bool:
        there = workers(world)
        known = tuple(there[f"worker.{index}"].address for index in range(size) if f"worker.{index}" in there)
        return len(there) == size == count(world) and addresses(world) == known

    world.until(done)


def joins(world: World) -> list[Incident]:
    return [each for each in world.incidents().values() if ".live" in each.rule]


def next_of(world: World, kind: str) -> Action:
    """The next action of a kind; what comes before it is done, and it is not."""
    for _ in range(400):
        found = [each for each in reconcile(world.snapshot()) if isinstance(each, Action)]
        wanted = [each for each in found if each.kind == kind]
        if wanted:
            return wanted[0]
        for action in found:
            world.run(action)
        world.tick(leader=False)
    raise AssertionError(f"no {kind}; done: {world.done[-20:]}")


def test_workers_join_at_once_and_nobody_else_notices() -> None:
    world = training()
    before = world.running()
    wish(world, worker=4)
    until_of(world, 4)
    assert world.switch().generation == 1
    assert {member: world.running()[member] for member in before} == before
    world.until(lambda: [each.outcome for each in joins(world)] == [Outcome.RECOVERED] * 2)
    assert {each.member: each.rule for each in joins(world)} == {
        "worker.2": "operator.scale.live",
        "worker.3": "operator.scale.live",
    }
    assert world.switch().ledger.infrastructure == 0
    assert described(world).edition == world.switch().edition
    assert described(world).former == (), "nobody was told of another address"
    done = list(world.done)
    for _ in range(20):
        world.tick()
    assert not {"joined", "left", "prepare"} & set(world.done[len(done) :]), "it has its size"


def test_each_worker_that_joins_gets_a_spare_launcher_where_there_is_one() -> None:
    world = training(nodes=3, spec=job_spec())
    ((busiest, tasks),) = Counter(each.node for each in world.running().values()).most_common(1)
    assert tasks == 2
    world.register("n9", "i9").spares = world.agents[busiest].spares = ("digits",)
    for agent in world.agents.values():
        agent.starts = False
    world.tick()
    wish(world, worker=4)
    world.until(lambda: world.done.count("joined") == 2)
    joined = [held.value for held in world.job().assignments.values() if held.value.joins]
    assert sorted(each.node for each in joined) == sorted((busiest, "n9"))


def test_the_last_workers_leave_once_they_are_dead_and_nobody_else_notices() -> None:
    world = training(workers=4)
    before = world.running()
    wish(world, worker=2)
    until_of(world, 2)
    assert world.switch().generation == 1
    assert {
        member: report for member, report in before.items() if member in world.running()
    } == world.running()
    gone = [before[member] for member in ("worker.3", "worker.2")]
    reports = world.job().attempts
    assert all(reports[each.attempt].value.confirmed_dead for each in gone)
    assert described(world).former == tuple(each.address for each in gone)
    known = _ports_still_known(world.snapshot(), world.job(), "n0")
    assert {int(each.address.rpartition(":")[2]) for each in gone} <= set(known)
    assert not [held for held in world.job().assignments.values() if held.value.index > 1]


def test_one_that_its_agent_does_not_end_stays() -> None:
    world = training(workers=3)
    world.agents[world.node_of("worker.2")].obedient = False
    wish(world, worker=2)
    for _ in range(20):
        world.tick()
    assert "leaves" in world.done
    assert count(world) == len(workers(world)) == 3
    world.until(lambda: "node_cordoned" in world.done)


def test_a_size_that_changes_again_and_again_never_gives_an_attempt_its_number_twice() -> None:
    world = training()
    seen: set[str] = set()
    for size in (4, 1, 3, 2, 4):
        held = {str(each.attempt) for each in workers(world).values()}
        wish(world, worker=size)
        until_of(world, size)
        fresh = {str(each.attempt) for each in workers(world).values()} - held
        assert not fresh & seen
        seen |= held | fresh
    assert world.switch().generation == 1
    assert "prepare" not in world.done[world.done.index("joined") :]


def test_a_wish_that_is_taken_back_halfway_gives_the_worker_another_attempt() -> None:
    world = training()
    wish(world, worker=1)
    world.until(lambda: "leaves" in world.done)
    wish(world, worker=2)
    world.until(lambda: (found := workers(world).get("worker.1")) is not None and found.number > 1)
    until_of(world, 2)
    assert world.switch().generation == 1


def test_nothing_saved_yet_any_worker_may_be_the_one_that_saves() -> None:
    roles = (role("chief", 1, ONE), role("ps", 1, ONE), role("worker", 2, ONE))
    world = World(job_spec(roles), 5)
    world.stays = ""
    world.start()
    wish(world, worker=1)
    for _ in range(20):
        world.tick()
    assert len(workers(world)) == 2
    world.commit(1, 100)
    until_of(world, 1)
    assert world.switch().generation == 1


def test_a_wish_without_room_for_all_of_it_is_not_begun() -> None:
    world = training(nodes=5)
    wish(world, worker=4)
    for _ in range(20):
        world.tick()
    assert count(world) == 2
    assert "room for worker=4" in waiting_for(world.snapshot(), world.job())
    world.register("n9", "i9")
    until_of(world, 4)


def test_an_elastic_role_grows_at_once_with_the_room() -> None:
    elastic = replace(role("worker", 4, ONE), least=1, most=4)
    world = World(job_spec((role("chief", 1, ONE), role("ps", 1, ONE), elastic)), 4)
    world.stays = ""
    world.until(lambda: len(world.running()) == 4)
    world.tick()
    world.register("n9", "i9")
    until_of(world, 3)
    assert world.switch().generation == 1
    (told,) = joins(world)
    assert (told.rule, told.detail) == ("elastic.grow.live", "there is room for digits/worker:2")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda world: setattr(world, "stays", "that was not tried with TensorFlow 2.3.0"), "2.3.0"),
        (
            lambda world: world.write(put(world.job().switch.key, replace(world.switch(), saver="worker.1"))),
            "worker:1 saves",
        ),
    ],
    ids=["an old TensorFlow", "another task saves"],
)
def test_what_cannot_join_restarts_all_and_the_record_says_why(
    change: Callable[[World], None], why: str
) -> None:
    roles = (role("chief", 1, ONE), role("ps", 1, ONE), role("worker", 2, ONE))
    world = World(job_spec(roles), 8)
    world.stays = ""
    change(world) if "2.3.0" in why else None
    world.start()
    change(world)
    wish(world, worker=3)
    world.until(lambda: world.job().next_plan is not None)
    world.commit(1, 100)
    world.until(lambda: world.switch().generation == 2 and len(workers(world)) == 3)
    assert "joined" not in world.done
    (told,) = [each for each in world.incidents().values() if each.cause is Cause.RESIZED]
    assert why in told.detail


def test_where_a_parameter_server_may_come_back_alone_no_worker_leaves() -> None:
    """A session of TensorFlow 1 that is made again waits for each worker that there was at the start."""
    roles = (role("chief", 1, ONE), role("ps", 1, ONE), role("worker", 2, ONE))
    world = training(spec=job_spec(roles, restart=RestartPolicy(ps_recovery=PsRecovery.PARTIAL)))
    wish(world, worker=3)
    until_of(world, 3)
    wish(world, worker=2)
    world.until(lambda: world.job().next_plan is not None)
    world.commit(1, 200)
    world.until(lambda: world.switch().generation == 2 and len(workers(world)) == 2)
    assert "left" not in world.done


def test_a_job_that_wants_all_restarted_gets_that() -> None:
    roles = (role("chief", 1, ONE), role("ps", 1, ONE), role("worker", 2, ONE))
    world = training(spec=job_spec(roles, restart=RestartPolicy(scope={"worker": Scope.ALL})))
    wish(world, worker=3)
    world.until(lambda: world.job().next_plan is not None)
    world.commit(1, 200)
    world.until(lambda: world.switch().generation == 2)
    assert "joined" not in world.done


def coordinated(*, adds: bool = True, drops: bool = True) -> World:
    """A coordinator that has saved, and its workers; it takes more of them, or fewer, or it cannot."""
    roles = (role("chief", 1, ONE), role("ps", 1, ONE), role("worker", 3, ONE))
    world = World(job_spec(roles, Strategy.COORDINATOR), 8)
    world.stays, world.adds_workers, world.drops_workers = "", adds, drops
    world.start()
    world.commit(1, 100)
    return world


@pytest.mark.parametrize("size", [1, 5])
def test_a_coordinator_gets_another_number_of_workers_and_nobody_else_notices(size: int) -> None:
    world = coordinated()
    before = world.running()
    wish(world, worker=size)
    until_of(world, size)
    assert world.switch().generation == 1
    kept = {member: report for member, report in before.items() if member not in ("worker.1", "worker.2")}
    assert {member: world.running()[member] for member in kept} == kept
    assert world.switch().edition == described(world).edition


@pytest.mark.parametrize(("size", "other"), [(2, "fewer"), (4, "more")])
def test_a_coordinator_that_takes_no_other_number_of_workers_restarts_with_it(size: int, other: str) -> None:
    world = coordinated(adds=other != "more", drops=other != "fewer")
    wish(world, worker=size)
    world.until(lambda: world.job().next_plan is not None)
    world.commit(1, 200)
    world.until(lambda: world.switch().generation == 2 and len(workers(world)) == size)
    assert not {"joined", "leaves", "left"} & set(world.done)
    assert any(f"takes no {other} workers" in each.detail for each in world.incidents().values())


def test_a_coordinator_that_keeps_its_workers_restarts_with_one_that_fails_to_join() -> None:
    world = coordinated(drops=False)
    wish(world, worker=4)
    fail_to_join(world, "worker.3")
    world.until(lambda: world.switch().generation == 2 and len(workers(world)) == 4)
    assert "left" not in world.done
    assert any("has not joined the others" in each.rule for each in world.incidents().values())


def fail_to_join(world: World, member: str = "worker.2") -> None:
    """A worker that joins fails before its first step."""
    for agent in world.agents.values():
        agent.steps = False
    world.until(lambda: member in world.running())
    tail = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
    world.end_task(member, code=1, tail=f"{tail}ValueError: this graph has 3 workers")
    for agent in world.agents.values():
        agent.steps = True


@pytest.mark.parametrize("begun", [lambda: training(workers=3), coordinated], ids=["async", "coordinator"])
def test_a_worker_that_fails_before_its_first_step_leaves_again_and_costs_nothing(
    begun: Callable[[], World],
) -> None:
    world = begun()
    before = world.running()
    wish(world, worker=4)
    fail_to_join(world, "worker.3")
    undone = next_of(world, "resize_undone")
    assert "the job goes back to worker=3 and stays there until" in undone.text
    assert "`supervisorctl scale digits worker=4` asks again" in undone.text
    assert "exited with code 1: ValueError: this graph has 3 workers; the job" in undone.text
    world.run(undone)
    assert world.running() == before
    (told,) = joins(world)
    assert told.outcome is Outcome.SUPERSEDED
    assert "left before it did any work" in told.detail
    assert "ValueError: this graph has 3 workers" in told.detail
    assert world.switch().ledger.streak == 0
    for _ in range(20):
        world.tick()
    assert world.job().next_plan is None, "the job trains on as it is"
    wish(world, worker=4)
    world.until(lambda: world.job().next_plan is not None)
    world.commit(1, 200)
    world.until(lambda: world.switch().generation == 2 and len(workers(world)) == 4)
    assert any("did not join" in each.detail for each in world.incidents().values())


def test_what_fails_meanwhile_goes_first() -> None:
    world = training()
    world.end_task("ps.0", signal=9)
    wish(world, worker=3)
    world.until(lambda: world.switch().generation == 2 and len(workers(world)) == 3)
    assert "joined" not in world.done


def test_a_worker_that_is_to_leave_is_not_restarted() -> None:
    world = training(workers=3)
    wish(world, worker=2)
    world.end_task("worker.2", signal=9)
    until_of(world, 2)
    assert not {"restart_in_place", "moved", "leaves"} & set(world.done)
    assert not [each for each in world.incidents().values() if each.member == "worker.2"]


def test_one_on_a_silent_node_leaves_after_d_and_its_mark_is_final() -> None:
    world = training(workers=3)
    node = world.lose("worker.2")
    wish(world, worker=2)
    world.until(lambda: count(world) == 2)
    assert [mark.value.final for mark in world.snapshot().nodes[node].marks.values()] == [True]
    assert "moved" not in world.done
    assert len(addresses(world)) == 2


def test_a_mark_that_is_withdrawn_in_between_makes_the_leave_stale() -> None:
    world = training(workers=3)
    node = world.lose("worker.2")
    wish(world, worker=2)
    action = next_of(world, "left")
    world.agents[node].acting = True
    world.appeal(node, world.agents[node].incarnation)
    assert not world.run(action)


def test_one_that_never_began_leaves_after_twice_d() -> None:
    world = training()
    for agent in world.agents.values():
        agent.starts = False
    wish(world, worker=3)
    world.until(lambda: "joined" in world.done)
    wish(world, worker=2)
    took_ms = world.until(lambda: count(world) == 2)
    assert took_ms >= ENDED_AFTER * world.snapshot().timing.d_ms
    until_of(world, 2)


@pytest.mark.parametrize("kind", ["joined", "left"])
def test_a_step_is_made_once_whoever_leads_and_whatever_was_heard_of_it(kind: str) -> None:
    world = training(workers=3)
    size = 4 if kind == "joined" else 2
    wish(world, worker=size)
    action, old = next_of(world, kind), world.token
    world.new_leader()
    assert not world.run(action, old), "a deposed leader has no effect"
    assert world.run(action), "the new one decides the same"
    assert not world.run(action), "it took effect, and its answer was lost"
    until_of(world, size)
    assert world.done.count(kind) == 1


@pytest.mark.parametrize("kind", ["joined", "left"])
def test_another_wish_in_between_makes_a_step_stale(kind: str) -> None:
    world = training(workers=3)
    wish(world, worker=4 if kind == "joined" else 2)
    action = next_of(world, kind)
    wish(world, worker=3)
    assert not world.run(action)


def test_a_flip_in_between_makes_a_step_stale() -> None:
    world = training()
    wish(world, worker=3)
    action = next_of(world, "joined")
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    assert not world.run(action)


def test_training_that_is_over_gets_no_worker_any_more() -> None:
    world = training()
    world.end_task("chief.0", code=0)
    wish(world, worker=3)
    for _ in range(3):
        world.tick()
    assert "joined" not in world.done


def test_completion_waits_for_the_workers_that_there_are() -> None:
    world = training()
    wish(world, worker=3)
    until_of(world, 3)
    wish(world, worker=1)
    until_of(world, 1)
    for member in ("worker.0", "chief.0"):
        world.end_task(member, code=0)
    world.until(lambda: world.switch().phase.value in ("finishing", "succeeded"), limit_ms=2_000)


def test_the_generation_that_follows_has_the_size_in_force() -> None:
    world = training()
    wish(world, worker=4)
    until_of(world, 4)
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2 and len(workers(world)) == 4)
    held = [each.value for each in world.job().assignments.values() if each.value.generation == 2]
    assert not any(each.joins for each in held)


def test_a_start_that_is_not_over_yet_is_over_though_a_worker_joined_meanwhile() -> None:
    world = training()
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    for agent in world.agents.values():
        agent.steps = False
    world.until(lambda: len(world.running()) == 4)
    wish(world, worker=3)
    until_of(world, 3)
    world.until(lambda: not any(each.outcome is Outcome.OPEN for each in world.incidents().values()))


def test_an_operators_restart_of_a_worker_that_leaves_is_over_with_it() -> None:
    world = training(workers=3)
    world.agents[world.node_of("worker.2")].blocked = "its disk is full"
    intent = world.job().intent.value
    asked = replace(intent, sizes={"worker": 2}, restart_serial=1, restart_member="worker.2")
    world.write(put(keys.intent(world.spec.name), asked))
    world.until(lambda: count(world) == 2)
    assert world.switch().restart_serial == 1
    wish(world, worker=3)
    until_of(world, 3)


def test_what_its_agent_ended_is_no_failed_join() -> None:
    world = training()
    wish(world, worker=3)
    until_of(world, 3)
    report = workers(world)["worker.2"]
    wish(world, worker=2)
    until_of(world, 2)
    end = world.job().attempts[report.attempt].value.exit
    assert isinstance(end, Exit)
    assert end.reason is ExitReason.KILLED
    wish(world, worker=3)
    until_of(world, 3)
    assert world.switch().generation == 1


def test_a_job_that_is_resized_has_run_for_as_long() -> None:
    roles = (role("chief", 1, ONE), role("ps", 1, ONE), role("worker", 2, ONE))
    spec = job_spec(roles)
    world = training(spec=replace(spec, limits=replace(spec.limits, wall_time_ms=10**8)))
    world.until(lambda: world.job().record.value.counting)
    began_ms = world.job().record.seen_ms
    for _ in range(100):
        world.tick()
    for size in (3, 2):
        wish(world, worker=size)
        until_of(world, size)
    record = world.job().record
    assert record.value.ran_ms == record.seen_ms - began_ms > 5_000
    wish(world, worker=3, ps=1)
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    record = world.job().record
    assert record.value.spec.role("worker").count == 3
    assert record.value.ran_ms == record.seen_ms - began_ms


def test_a_worker_that_joins_overtakes_no_recovery() -> None:
    world = training()
    for agent in world.agents.values():
        agent.steps = False
    world.end_task("worker.0", signal=9)
    world.until(lambda: "restart_in_place" in world.done and "worker.0" in world.running())
    wish(world, worker=3)
    world.until(lambda: "joined" in world.done)
    for agent in world.agents.values():
        agent.steps = True
    world.until(lambda: not any(each.outcome is Outcome.OPEN for each in world.incidents().values()))
    (killed,) = [each for each in world.incidents().values() if each.member == "worker.0"]
    assert killed.outcome is Outcome.RECOVERED


async def test_an_operator_is_told_that_nobody_restarts() -> None:
    bank = Bank()
    bank.world.stays = ""
    bank.world.start()
    answer = await bank.job_service.scale("digits", {"worker": 3})
    assert "join" in answer.detail
    assert "restart" not in answer.detail


def test_the_place_of_one_that_leaves_is_nobody_elses_before_it_has_left() -> None:
    world = training(nodes=5, workers=3)
    other = job_spec((role("chief", 1, ONE),), name="other")
    world.write(
        put(keys.job_record("other"), JobRecord(other, "u2", 0)),
        put(keys.intent("other"), JobIntent()),
        put(keys.switch("other"), JobSwitch("other", "u2", JobPhase.WAITING, 0)),
    )
    wish(world, worker=2)
    next_of(world, "left")
    looked = [each for each in reconcile(world.snapshot()) if isinstance(each, Action)]
    assert [each.kind for each in looked if each.kind != "goodput"] == ["left"]
    wish(world, worker=3)
    assert not world.run(looked[0]), "the place stays the worker's"
    wish(world, worker=2)
    world.until(lambda: world.snapshot().jobs["other"].next_plan is not None)


def test_one_whose_earlier_attempt_may_live_does_not_leave() -> None:
    world = training(workers=3)
    world.agents[world.node_of("worker.2")].starts = False
    world.agents[world.node_of("worker.2")].obedient = False
    intent = world.job().intent.value
    asked = replace(intent, restart_serial=intent.restart_serial + 1, restart_member="worker.2")
    world.write(put(keys.intent(world.spec.name), asked))
    world.until(lambda: "restart_in_place" in world.done)
    wish(world, worker=2)
    world.until(lambda: "node_cordoned" in world.done)
    assert "left" not in world.done
    assert count(world) == len(workers(world)) == 3
    world.until(lambda: count(world) == 2)
    wish(world, worker=3)
    world.until(lambda: count(world) == 3)


def test_a_number_that_was_given_and_never_reported_is_not_given_again() -> None:
    world = training()
    given = []
    for agent in world.agents.values():
        agent.starts = False
    for _ in range(2):
        wish(world, worker=3)
        world.until(lambda: count(world) == 3)
        held = world.job().assigned(world.switch().plan_id, "worker.2")
        assert held is not None
        given.append(held.value.attempt)
        wish(world, worker=2)
        world.until(lambda: count(world) == 2)
    assert given == [1, 2]


def test_what_another_node_reports_of_a_worker_is_no_news_of_it() -> None:
    world = training()
    report = world.running()["worker.1"]
    end = Exit(ExitReason.DEADLINE, None, 9, 0, confirmed_dead=True)
    late = replace(report, node="n7", incarnation="i7", state=AttemptState.EXITED, exit=end)
    assert report.node != "n7"
    world.write(put(keys.attempt(report.attempt), late))
    world.decide()
    world.decide()
    assert not {"restart_in_place", "prepare"} & set(world.done[world.done.index("flip") + 1 :])


def test_one_that_is_dead_leaves_a_node_that_is_suspected_and_may_still_appeal() -> None:
    world = training(workers=3)
    node = world.node_of("worker.2")
    world.end_task("worker.2", code=1)
    world.agents[node].acting = world.agents[node].beating = False
    while not world.snapshot().nodes[node].marks:
        world.tick(leader=False)
        snap = world.snapshot()
        for action in [each for state in snap.nodes.values() for each in node_loss.decide(snap, state)]:
            world.run(action)
    wish(world, worker=2)
    world.until(lambda: count(world) == 2)
    assert [mark.value.final for mark in world.snapshot().nodes[node].marks.values()] == [False]


def test_a_flip_leaves_its_appeal_to_a_node_whose_only_task_is_dead() -> None:
    world = training(workers=3)
    node = world.node_of("worker.2")
    world.end_task("worker.2", code=1)
    world.end_task("ps.0", signal=9)
    world.agents[node].acting = world.agents[node].beating = False
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    world.until(lambda: world.switch().generation == 2)
    assert [mark.value.final for mark in world.snapshot().nodes[node].marks.values()] == [False]


def all_start(world: World, *, starts: bool) -> None:
    for agent in world.agents.values():
        agent.starts = starts


def bounded(startup_ms: int = 5_000) -> World:
    """Its tasks are to start, and to make a step, within so long."""
    spec = job_spec((role("chief", 1, ONE), role("ps", 1, ONE), role("worker", 2, ONE)))
    return training(spec=replace(spec, limits=replace(spec.limits, startup_ms=startup_ms)))


def test_a_wish_that_is_taken_back_before_the_worker_began_lets_it_begin() -> None:
    world = training()
    all_start(world, starts=False)
    wish(world, worker=3)
    world.until(lambda: "joined" in world.done)
    wish(world, worker=2)
    world.until(lambda: "leaves" in world.done)
    wish(world, worker=3)
    all_start(world, starts=True)
    until_of(world, 3)
    assert workers(world)["worker.2"].number == 1
    assert "left" not in world.done


@pytest.mark.parametrize("starts", [False, True], ids=["never starts", "makes no step"])
def test_a_worker_that_joins_too_late_leaves_again_and_costs_nothing(*, starts: bool) -> None:
    world = bounded()
    before, ledger = world.running(), world.switch().ledger
    for agent in world.agents.values():
        idle = agent.node not in {each.node for each in before.values()}
        agent.starts, agent.steps = starts or not idle, not idle
    wish(world, worker=3)
    world.until(lambda: "resize_undone" in world.done)
    assert (world.running(), world.switch().ledger) == (before, ledger)
    (told,) = joins(world)
    assert told.outcome is Outcome.SUPERSEDED
    assert told.not_joined is NotJoined.PROGRAM
    for _ in range(20):
        world.tick()
    assert world.job().next_plan is None
    assert world.done.count("joined") == 1


def test_a_join_is_not_over_before_its_first_step_where_others_tell_of_theirs() -> None:
    world = training()
    for agent in world.agents.values():
        agent.steps = agent.node in {each.node for each in world.running().values()}
    wish(world, worker=3)
    world.until(lambda: "worker.2" in world.running())
    for _ in range(40):
        world.tick(1_000)
    assert [each.outcome for each in joins(world)] == [Outcome.OPEN]
    world.end_task("worker.2", code=1)
    world.until(lambda: "resize_undone" in world.done)
    assert world.switch().generation == 1


def test_an_elastic_role_does_not_restart_all_for_a_worker_that_failed_to_join() -> None:
    elastic = replace(role("worker", 4, ONE), least=1, most=4)
    world = World(job_spec((role("chief", 1, ONE), role("ps", 1, ONE), elastic)), 4)
    world.stays = ""
    world.until(lambda: len(world.running()) == 4)
    world.tick()
    world.commit(1, 100)
    world.register("n9", "i9")
    fail_to_join(world)
    world.until(lambda: "resize_undone" in world.done)
    for _ in range(20):
        world.tick()
    assert world.job().next_plan is None
    assert world.done.count("joined") == 1
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2 and "worker.1" in world.running())
    assert count(world) == 2, "a restart does not grow it either"
    wish(world, worker=3)
    until_of(world, 3)


def test_an_elastic_role_takes_no_room_while_a_worker_of_it_is_away() -> None:
    elastic = replace(role("worker", 4, ONE), least=1, most=4)
    world = World(job_spec((role("chief", 1, ONE), role("ps", 1, ONE), elastic)), 4)
    world.stays = ""
    world.until(lambda: len(world.running()) == 4)
    world.commit(1, 100)
    node = world.lose("worker.1")
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    world.register("n9", "i9")
    world.until(lambda: "moved" in world.done)
    assert "joined" not in world.done
    assert world.switch().generation == 1


def test_a_worker_leaves_to_make_room_for_one_whose_node_is_drained() -> None:
    world = training(nodes=6, workers=4)
    node = world.node_of("worker.1")
    world.write(put(keys.cordon(node), Cordon(node, "drain", drain=True)))
    for _ in range(10):
        world.tick()
    wish(world, worker=3)
    world.until(lambda: count(world) == 3 and "moved" in world.done)
    assert world.switch().generation == 1


def test_a_worker_that_fails_after_its_work_and_leaves_is_no_failed_join() -> None:
    world = training(workers=3)
    wish(world, worker=2)
    world.end_task("worker.2", code=1)
    until_of(world, 2)
    wish(world, worker=3)
    assert sizing.why_all_restart(world.job()) == ""
    until_of(world, 3)
    assert world.switch().generation == 1


def test_what_was_open_about_a_worker_is_closed_when_it_leaves() -> None:
    world = training(workers=3)
    for agent in world.agents.values():
        agent.steps = False
    world.end_task("worker.2", code=1)
    world.until(lambda: "restart_in_place" in world.done)
    wish(world, worker=2)
    until_of(world, 2)
    (told,) = [each for each in world.incidents().values() if each.member == "worker.2"]
    assert told.outcome is Outcome.SUPERSEDED


def test_a_worker_that_is_killed_whenever_it_joins_is_not_tried_for_ever() -> None:
    world = training()
    for agent in world.agents.values():
        agent.steps = agent.node in {each.node for each in world.running().values()}
    wish(world, worker=3)
    while world.job().next_plan is None:
        if "worker.2" in workers(world):
            world.end_task("worker.2", signal=9)
        world.tick()
        assert world.done.count("joined") <= sizing.MOST_TAKEN
    assert world.done.count("left") == sizing.MOST_TAKEN
    assert world.switch().ledger.infrastructure == 0


def test_nobody_joins_a_plan_whose_record_is_full() -> None:
    world = training()
    plan = world.job().plan_in_force
    assert plan is not None
    room = keys.family(plan.key).max_bytes - len(codec.encode(plan.value))
    world.write(put(plan.key, replace(plan.value, code="c" * (room - 1_000))))
    wish(world, worker=3)
    assert sizing.why_all_restart(world.job()) == "the record of its plan is full"
    world.decide()
    assert "joined" not in world.done


def test_one_that_saves_does_not_leave_for_failing_before_its_first_step() -> None:
    world = training()
    for agent in world.agents.values():
        agent.steps = agent.node in {each.node for each in world.running().values()}
    wish(world, worker=3)
    world.until(lambda: "worker.2" in world.running())
    world.write(put(world.job().switch.key, replace(world.switch(), saver="worker.2")))
    world.end_task("worker.2", code=1)
    world.until(lambda: world.job().next_plan is not None)
    assert not {"leaves", "left"} & set(world.done)


def test_a_worker_that_leaves_for_good_holds_up_no_move() -> None:
    world = training(workers=3)
    world.agents[world.node_of("worker.2")].obedient = False
    wish(world, worker=2)
    world.until(lambda: "leaves" in world.done)
    node = world.node_of("worker.1")
    world.write(put(keys.cordon(node), Cordon(node, "drain", drain=True)))
    world.until(lambda: "moved" in world.done)
    assert not {"left", "node_cordoned"} & set(world.done)
