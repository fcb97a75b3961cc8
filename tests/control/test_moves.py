"""A follower that is lost with its node moves alone, and nothing else of the job notices."""

from __future__ import annotations

from dataclasses import replace

from supervisor.contract import keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.desired import Cordon, JobPhase, LostMark
from supervisor.contract.incident import Cause, Incident, Outcome
from supervisor.contract.job.spec import Scope
from supervisor.contract.observed import AttemptReport, AttemptState, Gpu, GpuAction, GpuHealth
from supervisor.contract.timing import FAST
from supervisor.control.decide.plan import put
from tests.control.world import World
from tests.support.builders import job_spec, resources, role


def spread() -> World:
    """One task to a node, one node spare; an evaluator is beside the training."""
    one = resources(cpus=4)
    roles = (role("chief", 1, one), role("ps", 1, one), role("worker", 1, one))
    followers = (role("evaluator", 1, one, follow=True),)
    return World(job_spec((*roles, *followers)), nodes=5).start()


def others(world: World) -> dict[str, AttemptReport]:
    return {member: report for member, report in world.running().items() if member != "evaluator.0"}


def test_an_evaluator_that_is_lost_with_its_node_moves_alone_after_d() -> None:
    world = spread()
    before = others(world)
    node = world.lose("evaluator.0")
    took = world.until(lambda: "moved" in world.done)
    assert FAST.suspect_ms + FAST.d_ms <= took <= FAST.suspect_ms + FAST.d_ms + 500
    world.until(lambda: any(each.outcome is Outcome.RECOVERED for each in moved(world)), limit_ms=40_000)
    assert world.switch().generation == 1
    assert others(world) == before
    running = [
        held.value
        for attempt, held in world.job().attempts.items()
        if attempt.task.role == "evaluator" and held.value.node != node
    ]
    assert [(each.number, each.state) for each in running] == [(2, AttemptState.RUNNING)]
    (incident,) = moved(world)
    assert (incident.cause, incident.scope, incident.rule) == (Cause.NODE_LOST, Scope.TASK, "node.follower")
    assert world.switch().ledger.infrastructure == 1
    picture = world.snapshot().nodes[node]
    assert [mark.value.final for mark in picture.marks.values()] == [True], "no appeal is heard any more"


def test_it_moves_while_a_drain_waits_for_room() -> None:
    world = spread()
    node = world.lose("evaluator.0")
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    drained = world.running()["ps.0"].node
    world.write(put(keys.cordon(drained), Cordon(drained, "new fans", drain=True)))
    before = others(world)
    world.until(lambda: any(each.outcome is Outcome.RECOVERED for each in moved(world)), limit_ms=40_000)
    assert world.running()["evaluator.0"].node not in {report.node for report in before.values()}
    assert others(world) == before, "the drained one runs on: there is no room for it"
    world.register("n5", "i5")
    world.until(lambda: world.switch().generation == 2)
    assert drained not in {each.node for each in world.running().values()}


def test_it_moves_while_the_replacement_of_a_gpu_waits_for_one() -> None:
    one, bound = resources(cpus=4), replace(resources(cpus=4), gpus=1)
    roles = (role("chief", 1, one), role("worker", 2, bound), role("evaluator", 1, one, follow=True))
    world = World(job_spec(roles), nodes=5)
    for index in range(2):
        world.see_gpus(f"n{index}", Gpu(f"GPU-{index}", 0, "T4", 1 << 34))
    world.start()
    node = world.lose("evaluator.0")
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    before = others(world)
    sound = Gpu("GPU-0", 0, "T4", 1 << 34)
    broken = replace(sound, health=GpuHealth.FAULTY, reason="Xid 79", action=GpuAction.RESET_GPU, fault=1)
    world.see_gpus("n0", broken)
    world.until(lambda: any(each.outcome is Outcome.RECOVERED for each in moved(world)), limit_ms=40_000)
    assert others(world) == before, "the worker runs on: there is no other GPU for it"


def moved(world: World) -> list[Incident]:
    return [each for each in world.incidents().values() if each.rule == "node.follower"]


def test_its_new_address_is_in_the_record_of_the_clusterspec() -> None:
    world = spread()
    world.lose("evaluator.0")
    world.until(lambda: "address_published" in world.done)
    (spec,) = [held.value for held in world.job().specs.values()]
    report = world.running()["evaluator.0"]
    assert spec.address("evaluator", 0) == report.address
    assert all(entry.role != "evaluator" for entry in spec.roles)
    for _ in range(20):
        world.tick()
    assert world.done.count("address_published") == 1


def test_a_mark_that_is_withdrawn_in_between_makes_the_move_stale() -> None:
    world = spread()
    node = world.lose("evaluator.0")
    action = world.next_move()
    world.write(Delete(keys.lost(node, world.agents[node].incarnation)))
    assert not world.run(action)


def test_an_appeal_that_nobody_has_heard_makes_the_move_stale() -> None:
    """The simulator's seed 202611220269: watches were late, and it had been appealing for five seconds."""
    world = spread()
    node = world.lose("evaluator.0")
    action = world.next_move()
    world.appeal(node, world.agents[node].incarnation)
    assert not world.run(action)


def test_a_flip_in_between_makes_the_move_stale() -> None:
    world = spread()
    world.lose("evaluator.0")
    action = world.next_move()
    world.write(put(keys.switch("digits"), world.switch()))
    assert not world.run(action)


def test_a_new_leader_waits_again_and_a_deposed_one_moves_nothing() -> None:
    world = spread()
    world.lose("evaluator.0")
    action = world.next_move()
    old = world.token
    world.new_leader()
    assert not world.run(action, old)
    assert world.until(lambda: "moved" in world.done) >= FAST.d_ms - 100
    assert world.switch().generation == 1


def test_a_new_leader_goes_on_from_a_move_that_was_made() -> None:
    world = spread()
    node = world.lose("evaluator.0")
    assert world.run(world.next_move())
    world.new_leader()
    world.until(lambda: any(each.outcome is Outcome.RECOVERED for each in moved(world)), limit_ms=60_000)
    assert world.done.count("moved") == 1
    plan = world.job().plan_in_force
    assert plan is not None
    assert all(placement.node != node for placement in plan.value.placements)


def test_the_old_node_finds_nothing_that_asks_for_the_old_attempt() -> None:
    world = spread()
    node = world.lose("evaluator.0")
    world.until(lambda: "moved" in world.done)
    assert not world.store.select(keys.assignments_of(node))


def test_a_node_that_comes_back_in_time_keeps_its_evaluator() -> None:
    world = spread()
    node = world.lose("evaluator.0")
    before = world.running()
    world.come_back(node)
    assert "moved" not in world.done
    assert world.running() == before


def test_a_task_that_clients_know_the_address_of_takes_a_new_generation() -> None:
    world = spread()
    spec = world.spec
    outside = replace(role("data_worker", 1, resources(cpus=4)), in_cluster=False)
    world = World(replace(spec, roles=(*spec.roles[:3], outside)), nodes=5).start()
    world.lose("data_worker.0")
    world.until(lambda: world.switch().generation == 2)
    assert "moved" not in world.done


def test_an_evaluator_on_the_node_of_a_lost_worker_goes_with_the_new_generation() -> None:
    world = World(job_spec({"chief": 1, "ps": 1, "worker": 1, "evaluator": 1}), nodes=2).start()
    world.lose("worker.0")
    world.until(lambda: world.switch().generation == 2 and world.switch().phase is JobPhase.RUNNING)
    assert "moved" not in world.done


def test_a_mark_alone_does_not_prepare_a_generation_for_an_evaluator() -> None:
    world = spread()
    report = world.running()["evaluator.0"]
    world.write(
        put(keys.lost(report.node, report.incarnation), LostMark(report.node, report.incarnation, "x"))
    )
    for _ in range(10):
        world.tick()
    assert world.job().next_plan is None


def test_a_move_grants_the_restart_that_an_operator_asked_for() -> None:
    world = spread()
    world.lose("evaluator.0")
    world.until(lambda: "node_suspected" in world.done)
    world.intend(serial=1, member="evaluator.0")
    world.until(lambda: "moved" in world.done)
    for _ in range(40):
        world.tick()
    assert world.switch().restart_serial == 1
    assert "restart_in_place" not in world.done
    assert world.running()["evaluator.0"].node != ""
