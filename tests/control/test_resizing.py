"""Another size of a running job: an operator's wish, or room for more tasks of an elastic role."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.contract import keys
from supervisor.contract.checkpoint import CheckpointRef, CommitState
from supervisor.contract.desired import ClusterSpec, JobPhase, JobSwitch
from supervisor.contract.errors import NotFound, UserError
from supervisor.contract.incident import Cause, Outcome
from supervisor.contract.job.spec import JobIntent, JobRecord, JobSpec, Resources, Strategy
from supervisor.control.decide.assess.assess import Assessments
from supervisor.control.decide.jobs import prepare
from supervisor.control.decide.jobs.resizing import check_asked
from supervisor.control.decide.nodes import placement
from supervisor.control.decide.nodes.offers import Offers
from supervisor.control.decide.nodes.placement import Before, PlacementResult
from supervisor.control.decide.plan import put
from supervisor.control.decide.reconcile import waiting_for
from tests.control.bank import Bank
from tests.control.failing import BUG, end, kill, spec_with
from tests.control.world import World
from tests.support.builders import job_spec, role

WHOLE_NODE = Resources(cpus=3.0)


@pytest.fixture
def bank() -> Bank:
    return Bank()


def wish(world: World, **sizes: int) -> None:
    intent = world.job().intent.value
    world.write(put(keys.intent(world.spec.name), replace(intent, sizes=sizes)))


def counts(world: World) -> dict[str, int]:
    return {each.name: each.count for each in world.job().record.value.spec.roles}


def elastic(nodes: int) -> World:
    """A job of one to three workers, each of which takes a node, on so many nodes."""
    worker = replace(role("worker", 3, WHOLE_NODE), least=1, most=3)
    world = World(job_spec((worker,)), nodes=nodes)
    world.form_cluster()
    world.until(lambda: world.switch().phase is JobPhase.RUNNING and world.running())
    return world


def test_a_wish_for_more_workers_is_a_generation_with_them_after_the_next_commit() -> None:
    world = World().start()
    wish(world, worker=4)
    for _ in range(50):
        world.tick()
    assert world.switch().generation == 1, "what runs trains on until it has saved"
    assert "the next commit" in waits(world)
    base = world.commit(1, 100)
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 6)
    assert world.switch().base == base
    assert counts(world)["worker"] == 4
    workers = {each.role: len(each.addresses) for each in spec_in_force(world).roles}
    assert workers["worker"] == 4, "every task is told the same cluster"
    (told,) = [each for each in world.incidents().values() if each.cause is Cause.RESIZED]
    assert told.rule == "operator.scale"
    assert told.detail.startswith("an operator asked for worker=4; all restart: ")
    world.until(lambda: world.incidents()[told.id].outcome is Outcome.RECOVERED)
    for _ in range(20):
        world.tick()
    assert world.switch().generation == 2, "it has its size"


def test_without_a_commit_it_comes_when_the_time_to_save_is_over() -> None:
    world = World().start()
    wish(world, worker=1)
    grace_ms = world.spec.limits.save_grace_ms
    took_ms = world.until(lambda: world.switch().generation == 2, limit_ms=3 * grace_ms)
    assert took_ms >= grace_ms
    world.until(lambda: len(world.running()) == 3)
    assert counts(world)["worker"] == 1
    assert not [each for each in world.running() if each == "worker.1"]


def test_a_failure_meanwhile_restarts_with_the_size_that_is_wanted() -> None:
    world = World().start()
    wish(world, worker=3)
    world.until(lambda: world.job().next_plan is not None)
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2, limit_ms=10_000)
    assert counts(world)["worker"] == 3
    (told,) = [each for each in world.incidents().values() if each.cause is not Cause.SUBMITTED]
    assert told.cause is Cause.KILLED, "the failure has its own incident"


def test_a_worker_that_fails_meanwhile_restarts_in_place() -> None:
    world = World().start()
    wish(world, worker=3)
    world.until(lambda: world.job().next_plan is not None)
    world.end_task("worker.1", signal=9)
    world.until(lambda: "worker.1" in world.running() and world.running()["worker.1"].number == 2)
    assert world.switch().generation == 1


def test_a_wish_that_is_taken_back_changes_nothing() -> None:
    world = World().start()
    wish(world, worker=5)
    world.until(lambda: world.job().next_plan is not None)
    wish(world, worker=2)
    world.until(lambda: world.job().next_plan is None)
    world.commit(1, 100)
    for _ in range(20):
        world.tick()
    assert world.switch().generation == 1
    assert counts(world)["worker"] == 2


def test_a_wish_in_the_middle_of_a_recovery_does_not_make_it_longer() -> None:
    world = World().start()
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.job().next_plan is not None)
    plan = world.job().next_plan
    assert plan is not None
    wish(world, worker=3)
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().plan_id == plan.value.plan_id
    world.until(lambda: len(world.running()) == 4)
    world.commit(2, 100)
    world.until(lambda: len(world.running()) == 5, limit_ms=120_000)


def test_another_wish_makes_another_plan() -> None:
    world = World().start()
    wish(world, worker=5)
    world.until(lambda: world.job().next_plan is not None)
    wish(world, worker=3)
    world.until(lambda: (plan := world.job().next_plan) is not None and len(plan.value.placements) == 5)
    world.commit(1, 100)
    world.until(lambda: world.switch().generation == 2)
    assert counts(world)["worker"] == 3


def test_any_leader_finishes_it() -> None:
    world = World().start()
    wish(world, worker=3)
    world.until(lambda: world.job().next_plan is not None)
    world.new_leader()
    world.commit(1, 100)
    world.until(lambda: world.switch().generation == 2)
    assert counts(world)["worker"] == 3


def test_an_elastic_role_runs_with_what_there_is_and_grows_with_the_room() -> None:
    world = elastic(2)
    assert set(world.running()) == {"worker.0", "worker.1"}
    world.commit(1, 100)
    world.register("n9", "i9")
    for _ in range(1000):
        world.tick()
    assert world.switch().generation == 1, "room alone costs no step: it waits for a commit, for ever"
    world.commit(1, 200)
    world.until(lambda: len(world.running()) == 3)
    assert world.switch().generation == 2
    (told,) = [each for each in world.incidents().values() if each.cause is Cause.RESIZED]
    assert told.rule == "elastic.grow"
    assert told.detail.startswith("there is room for worker=3; all restart: ")


def test_an_elastic_role_loses_a_node_and_goes_on_with_fewer() -> None:
    world = elastic(3)
    assert len(world.running()) == 3
    world.commit(1, 100)
    world.switch_off(world.node_of("worker.2"))
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 2)
    assert counts(world)["worker"] == 2


def quiet_at(world: World, *, steps: bool = False) -> None:
    for agent in world.agents.values():
        agent.steps = steps


def failing_resize(world: World, size: int) -> CheckpointRef:
    """Scale the workers; a worker fails before its first step with the new count. Returns the base."""
    wish(world, worker=size)
    world.until(lambda: world.job().next_plan is not None)
    base = world.commit(1, 100)
    quiet_at(world)
    world.until(lambda: world.switch().generation == 2 and "worker.0" in world.running())
    assert counts(world)["worker"] == size
    end(world, "worker.0", BUG)
    return base


@pytest.mark.parametrize("size", [4, 1])
def test_a_size_that_the_program_cannot_take_is_taken_back_and_costs_nothing(size: int) -> None:
    world = World(spec_with(max_restarts=0)).start()
    base = failing_resize(world, size)
    world.until(lambda: world.switch().generation == 3 and len(world.running()) == 4)
    assert counts(world)["worker"] == 2
    assert (world.switch().base, world.switch().ledger.program) == (base, 0)
    assert world.job().commits[base].value.state is CommitState.COMMITTED
    told = world.incidents()[world.switch().incident]
    assert (told.cause, told.rule, told.sizes) == (Cause.RESIZED, "resize.undone", {})
    assert f"it failed before its first step with worker={size}, and is not charged" in told.detail
    assert "ValueError: wrong" in told.tail
    assert world.done.count("resize_undone") == 1
    quiet_at(world, steps=True)
    for _ in range(20):
        world.tick()
    world.commit(3, 200)
    for _ in range(20):
        world.tick()
    assert world.switch().generation == 3, "it trains on, and tries no other size by itself"
    wish(world, worker=size)
    world.until(lambda: world.job().next_plan is not None)
    world.commit(3, 300)
    world.until(lambda: world.switch().generation == 4 and counts(world)["worker"] == size)


def test_what_fails_after_a_resize_was_taken_back_is_the_programs() -> None:
    world = World(spec_with(max_restarts=0)).start()
    failing_resize(world, 4)
    world.until(lambda: world.switch().generation == 3 and "worker.0" in world.running())
    end(world, "chief.0", BUG)
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    assert world.done.count("resize_undone") == 1


def test_what_fails_after_a_step_does_not_take_the_resize_back() -> None:
    world = World().start()
    wish(world, worker=4)
    world.until(lambda: world.job().next_plan is not None)
    world.commit(1, 100)
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 6)
    for _ in range(10):
        world.tick()
    end(world, "chief.0", BUG)
    world.until(lambda: world.switch().generation == 3)
    assert counts(world)["worker"] == 4
    assert world.switch().ledger.program == 1


def test_a_node_that_is_lost_before_the_first_step_leaves_the_size_untried() -> None:
    world = World(spec_with(max_restarts=0)).start()
    wish(world, worker=4)
    world.until(lambda: world.job().next_plan is not None)
    world.commit(1, 100)
    quiet_at(world)
    world.until(lambda: world.switch().generation == 2 and "ps.0" in world.running())
    kill(world, "ps.0")
    world.until(lambda: world.switch().generation == 3 and "worker.0" in world.running())
    end(world, "worker.0", BUG)
    world.until(lambda: world.switch().generation == 4)
    assert counts(world)["worker"] == 2


def test_growth_that_the_program_cannot_take_is_not_tried_again_by_itself() -> None:
    world = elastic(nodes=2)
    world.tick()
    world.commit(1, 100)
    world.register("n9", "i9")
    world.until(lambda: "the next commit" in waits(world))
    world.tick()
    world.commit(1, 200)
    quiet_at(world)
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 3)
    end(world, "worker.2", BUG)
    world.until(lambda: world.switch().generation == 3 and len(world.running()) == 2)
    quiet_at(world, steps=True)
    for _ in range(20):
        world.tick()
    world.commit(3, 300)
    for _ in range(20):
        world.tick()
    assert (world.switch().generation, counts(world)) == (3, {"worker": 2})
    assert world.switch().ledger.program == 0


def full() -> World:
    """A job of two workers, which fill two nodes."""
    world = World(job_spec((role("worker", 2, WHOLE_NODE),)), nodes=2)
    world.form_cluster()
    world.until(lambda: world.switch().phase is JobPhase.RUNNING and len(world.running()) == 2)
    return world


def test_a_wish_without_room_is_told_and_keeps_no_recovery_up() -> None:
    world = full()
    wish(world, worker=3)
    for _ in range(20):
        world.tick()
    assert "room for worker=3, which an operator asked for" in waits(world)
    assert world.job().next_plan is None
    world.end_task("worker.0", signal=9)
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 2, limit_ms=10_000)
    assert counts(world)["worker"] == 2


def test_growth_that_a_node_refuses_costs_nothing() -> None:
    world = elastic(2)
    world.commit(1, 100)
    world.register("n9", "i9").refuses = "it has no such mount"
    pause_ms = world.spec.restart.backoff_max_ms
    world.until(lambda: "plan_abandoned" in world.done, limit_ms=3 * pause_ms)
    for _ in range(20):
        world.tick()
    switch = world.switch()
    assert (switch.phase, switch.generation, switch.ledger.streak) == (JobPhase.RUNNING, 1, 0)


def test_growth_takes_no_room_before_a_checkpoint_nor_from_who_waits_for_it() -> None:
    world = elastic(2)
    world.register("n9", "i9")
    for _ in range(20):
        world.tick()
    assert world.job().next_plan is None, "it would be held until the first commit"
    other = job_spec((role("worker", 2, WHOLE_NODE),), name="other")
    behind = replace(other, priority=-1)
    world.write(
        put(keys.job_record("other"), JobRecord(other, "other", 0)),
        put(keys.switch("other"), JobSwitch("other", "other", JobPhase.WAITING, 0)),
        put(keys.intent("other"), JobIntent()),
    )
    world.commit(1, 100)
    for _ in range(20):
        world.tick()
    assert world.job().next_plan is None
    world.write(put(keys.job_record("other"), JobRecord(behind, "other", 0)))
    world.commit(1, 200)
    world.until(lambda: world.job().next_plan is not None)


def test_a_large_elastic_role_is_placed_in_few_tries() -> None:
    worker = replace(role("worker", 400, WHOLE_NODE), least=1, most=400)
    world = World(job_spec((worker,)), nodes=3)
    world.form_cluster()
    world.tick(leader=False)
    tried: list[JobSpec] = []

    def counted(spec: JobSpec, offers: Offers, before: Before) -> PlacementResult:
        tried.append(spec)
        return placement.place(spec, offers, before)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(prepare, "place", counted)
        result = prepare.find_places(world.snapshot(), world.job())
    assert len(result.placements) == 3
    assert len(tried) <= 12


def test_a_task_that_is_scaled_away_saves_no_more() -> None:
    world = World().start()
    switch = world.job().switch
    world.write(put(switch.key, replace(switch.value, saver="worker.1")))
    assert world.job().saver.member == "worker.1"
    wish(world, worker=1)
    world.commit(1, 100)
    world.until(lambda: world.switch().generation == 2, limit_ms=120_000)
    assert world.job().saver.member == "chief.0"


def test_an_elastic_role_waits_for_room_for_its_least() -> None:
    worker = replace(role("worker", 3, WHOLE_NODE), least=2, most=3)
    world = World(job_spec((worker,)), nodes=1)
    world.form_cluster()
    for _ in range(20):
        world.tick()
    assert world.switch().phase is JobPhase.WAITING
    assert waits(world)


@pytest.mark.parametrize(
    ("sizes", "error", "text"),
    [
        ({"wroker": 3}, NotFound, "no role 'wroker'; it has chief, ps, worker"),
        ({"ps": 2}, UserError, "the number of parameter servers cannot change"),
        ({"chief": 2}, UserError, "a job has one chief"),
        ({"worker": 0}, UserError, "worker=0: at least 1"),
    ],
)
def test_sizes_that_a_job_cannot_have(sizes: dict[str, int], error: type[Exception], text: str) -> None:
    spec = World().spec
    with pytest.raises(error, match=text.replace("(", r"\(")):
        check_asked(spec, sizes)


def test_an_elastic_role_keeps_its_bounds() -> None:
    spec = job_spec((replace(role("worker", 3), least=2, most=4),), strategy=Strategy.MULTIWORKER)
    with pytest.raises(UserError, match="worker=5: the job file allows 4 at most"):
        check_asked(spec, {"worker": 5})
    with pytest.raises(UserError, match="worker=1: at least 2 must run"):
        check_asked(spec, {"worker": 1})


def waits(world: World) -> str:
    snap = world.snapshot()
    job = snap.jobs[world.spec.name]
    return waiting_for(snap, job, Assessments(snap).of(job))


def spec_in_force(world: World) -> ClusterSpec:
    job = world.job()
    return job.specs[job.switch.value.plan_id].value


async def test_an_operator_scales_a_job(bank: Bank) -> None:
    world = bank.world.start()
    answer = await bank.job_service.scale("digits", {"worker": 3})
    assert "it restarts with worker=3 right after a checkpoint" in answer.detail
    assert world.job().wanted.role("worker").count == 3
    assert "already" in (await bank.job_service.scale("digits", {"worker": 3})).detail
    await bank.job_service.restart("digits")
    world.until(lambda: world.switch().generation == 2)
    assert counts(world)["worker"] == 3, "a restart that is asked for brings the size that is wanted"


async def test_a_job_that_has_ended_has_its_size_from_the_next_start_on(bank: Bank) -> None:
    world = bank.world.start()
    await bank.job_service.stop("digits")
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    assert "when it is started again" in (await bank.job_service.scale("digits", {"worker": 1})).detail
    await bank.job_service.start("digits")
    world.until(lambda: world.switch().phase is JobPhase.RUNNING and len(world.running()) == 3)
    assert counts(world)["worker"] == 1


async def test_what_could_never_run_here_is_refused(bank: Bank) -> None:
    bank.world.start()
    with pytest.raises(UserError, match="at most"):
        await bank.job_service.scale("digits", {"worker": 10**6})
    with pytest.raises(NotFound, match="no role 'wroker'"):
        await bank.job_service.scale("digits", {"wroker": 2})
