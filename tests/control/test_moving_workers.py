"""A worker of an asynchronous job that loses its node moves to another, and all others run on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from recovery.policy.history import STEADY_MS
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete, Put
from supervisor.contract.desired import Assignment, Cordon, JobPhase
from supervisor.contract.incident import Cause, Incident, Outcome
from supervisor.contract.job.spec import RestartPolicy, Scope, Strategy, Wanted
from supervisor.contract.observed import AttemptReport, Exit, ExitReason, Gpu, GpuAction, GpuHealth
from supervisor.contract.timing import FAST
from supervisor.control.decide.assess.moving import MOST_FORMER
from supervisor.control.decide.jobs.prepare import _ports_still_known
from supervisor.control.decide.plan import put
from tests.control.world import World, waiting_for
from tests.support.builders import job_spec, resources, role

ONE = resources(cpus=4)


def spread(strategy: Strategy = Strategy.ASYNC, nodes: int = 5, stays: str = "") -> World:
    """One task to a node, and one node spare."""
    roles = (role("chief", 1, ONE), role("ps", 1, ONE), role("worker", 2, ONE))
    return able(World(replace(job_spec(roles), strategy=strategy), nodes), stays).start()


def able(world: World, stays: str = "") -> World:
    """Its programs can take part in a move, unless something keeps them from it."""
    world.stays = stays
    return world


def others(world: World, moved: str = "worker.1") -> dict[str, AttemptReport]:
    return {member: report for member, report in world.running().items() if member != moved}


def assignment(world: World, member: str) -> Assignment:
    job = world.job()
    held = job.assigned(job.switch.value.plan_id, member)
    assert held is not None
    return held.value


def incident_of(world: World, member: str) -> Incident:
    (found,) = [each for each in world.incidents().values() if each.member == member]
    return found


def here(world: World, member: str) -> AttemptReport:
    """The attempt that is wanted of a task."""
    return world.job().attempts[assignment(world, member).attempt_id].value


def put_cordon(node: str) -> Put:
    return put(keys.cordon(node), Cordon(node, "new fans", drain=True))


def until_moved(world: World, member: str = "worker.1") -> None:
    world.until(
        lambda: any(
            each.member == member and each.outcome is Outcome.RECOVERED for each in world.incidents().values()
        )
    )


@pytest.mark.parametrize("strategy", [Strategy.ASYNC, Strategy.COORDINATOR])
def test_a_worker_that_is_lost_with_its_node_moves_alone_after_d(strategy: Strategy) -> None:
    world = spread(strategy)
    before = others(world)
    node = world.lose("worker.1")
    took = world.until(lambda: "moved" in world.done)
    assert FAST.suspect_ms + FAST.d_ms <= took <= FAST.suspect_ms + FAST.d_ms + 500
    assert "prepare" not in world.done[world.done.index("node_suspected") :]
    until_moved(world)
    assert world.switch().generation == 1
    assert others(world) == before, "nobody else notices"
    wanted = assignment(world, "worker.1")
    assert (wanted.attempt, wanted.joins) == (2, True)
    assert wanted.node not in {node, *(report.node for report in before.values())}
    incident = incident_of(world, "worker.1")
    assert (incident.cause, incident.scope, incident.rule) == (Cause.NODE_LOST, Scope.TASK, "node.worker")
    assert {"detected", "decided", "restored"} <= incident.phases_ms.keys()
    assert world.switch().ledger.infrastructure == 1
    assert [mark.value.final for mark in world.snapshot().nodes[node].marks.values()] == [True]


def test_a_leader_of_an_earlier_release_leaves_a_job_alone_whose_worker_has_moved() -> None:
    """It would take the report that the lost node has left for a second attempt that runs."""
    world = spread()
    world.lose("worker.1")
    world.until(lambda: "moved" in world.done)
    (entry,) = world.store.read(keys.plan("digits", world.switch().plan_id))
    assert json.loads(entry.value)["record"] == "Plan+moved"


@pytest.mark.parametrize("strategy", [Strategy.ASYNC, Strategy.COORDINATOR])
def test_the_clusterspec_has_the_new_address_and_keeps_the_former_one_from_others(strategy: Strategy) -> None:
    world = spread(strategy)
    former = world.running()["worker.1"].address
    world.lose("worker.1")
    world.until(lambda: "address_published" in world.done)
    (spec,) = [held.value for held in world.job().specs.values()]
    assert spec.address("worker", 1) == here(world, "worker.1").address != former
    assert (spec.edition, world.switch().edition, spec.former) == (1, 1, (former,))
    assert int(former.rpartition(":")[2]) in _ports_still_known(world.snapshot(), world.job(), "n0")
    for _ in range(20):
        world.tick()
    assert world.done.count("address_published") == 1


def test_its_next_attempt_in_place_joins_too_and_so_does_that_of_another_worker() -> None:
    world = spread()
    world.lose("worker.1")
    until_moved(world)
    world.end_task("worker.0", signal=9)
    world.until(lambda: "restart_in_place" in world.done)
    assert assignment(world, "worker.0").joins, "it would wait for a worker at the former address"
    assert world.switch().generation == 1


def test_a_generation_that_follows_begins_with_the_first_edition() -> None:
    world = spread()
    world.lose("worker.1")
    until_moved(world)
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().edition == 0
    assert not assignment(world, "worker.1").joins


@pytest.mark.parametrize("strategy", [Strategy.ASYNC, Strategy.COORDINATOR])
def test_without_a_tensorflow_that_can_join_all_restart_and_the_record_says_why(strategy: Strategy) -> None:
    world = spread(strategy, stays="that was not tried with TensorFlow 2.3.0")
    world.lose("worker.1")
    world.until(lambda: world.switch().generation == 2)
    assert "moved" not in world.done
    detail = next(each.detail for each in world.incidents().values() if each.cause is Cause.NODE_LOST)
    assert "worker:1 cannot move alone" in detail
    assert "TensorFlow 2.3.0" in detail


def test_after_many_moves_of_one_generation_the_next_loss_takes_a_new_one() -> None:
    world = spread()
    (held,) = world.job().specs.values()
    world.write(put(held.key, replace(held.value, former=("h:1",) * MOST_FORMER)))
    world.lose("worker.1")
    world.until(lambda: world.switch().generation == 2)
    assert "moved" not in world.done


@pytest.mark.parametrize("strategy", [Strategy.SYNC, Strategy.MULTIWORKER])
def test_where_workers_need_each_other_all_restart(strategy: Strategy) -> None:
    world = spread(strategy)
    world.lose("worker.1")
    world.until(lambda: world.switch().generation == 2)
    assert "moved" not in world.done


def test_a_job_that_wants_all_restarted_gets_that() -> None:
    roles = (role("chief", 1, ONE), role("ps", 1, ONE), role("worker", 2, ONE))
    spec = job_spec(roles)
    policy = replace(spec.restart, scope={"worker": Scope.ALL})
    assert isinstance(policy, RestartPolicy)
    world = able(World(replace(spec, restart=policy), nodes=5)).start()
    world.lose("worker.1")
    world.until(lambda: world.switch().generation == 2)


def test_the_worker_that_saves_takes_all_with_it() -> None:
    world = able(World(job_spec((role("ps", 1, ONE), role("worker", 2, ONE))), nodes=4)).start()
    world.lose("worker.0")
    world.until(lambda: world.switch().generation == 2)
    assert "moved" not in world.done


def test_a_node_with_a_parameter_server_beside_it_takes_all() -> None:
    world = able(World(job_spec({"chief": 1, "ps": 1, "worker": 2}), nodes=2)).start()
    node = world.running()["ps.0"].node
    assert sum(report.node == node for report in world.running().values()) > 1
    world.lose("ps.0")
    world.until(lambda: world.switch().generation == 2)
    assert "moved" not in world.done


def test_two_workers_of_one_node_both_move() -> None:
    half = resources(cpus=2)
    roles = (role("chief", 1, ONE), role("ps", 1, ONE), role("worker", 2, half))
    world = able(World(job_spec(roles), nodes=3)).start()
    world.register("n8", "i8")
    world.register("n9", "i9")
    world.tick()
    assert world.node_of("worker.0") == world.node_of("worker.1")
    world.lose("worker.0")
    before = {member: world.running()[member] for member in ("chief.0", "ps.0")}
    until_moved(world, "worker.1")
    world.until(lambda: incident_of(world, "worker.0").outcome is Outcome.RECOVERED)
    assert world.done.count("moved") == 2
    assert world.switch().generation == 1
    assert world.switch().ledger.infrastructure == 2
    assert {member: world.running()[member] for member in before} == before


def test_without_room_it_waits_and_the_others_run_on() -> None:
    world = spread(nodes=4)
    before = others(world)
    world.lose("worker.1")
    for _ in range(400):
        world.tick()
    assert others(world) == before
    assert world.switch().generation == 1
    assert "worker:1 waits for a place" in waiting_for(world.snapshot(), world.job())
    world.end_task("worker.0", signal=9)
    world.until(lambda: "restart_in_place" in world.done)
    assert assignment(world, "worker.0").joins, "it must not wait for the one that is away"
    world.register("n9", "i9")
    until_moved(world)
    assert here(world, "worker.1").node == "n9"


def test_it_is_lost_again_while_it_moves() -> None:
    world = spread(nodes=6)
    world.lose("worker.1")
    world.until(lambda: "moved" in world.done)
    second = assignment(world, "worker.1").node
    world.agents[second].acting = world.agents[second].beating = False
    world.until(lambda: world.done.count("moved") == 2)
    world.until(lambda: here_or_none(world) is not None)
    assert world.switch().generation == 1
    assert assignment(world, "worker.1").attempt == 3


def here_or_none(world: World) -> AttemptReport | None:
    held = world.job().attempts.get(assignment(world, "worker.1").attempt_id)
    return held.value if held is not None else None


def test_one_that_cannot_join_takes_a_new_generation() -> None:
    world = spread()
    world.lose("worker.1")
    world.until(lambda: here_or_none(world) is not None and assignment(world, "worker.1").joins)
    report = here(world, "worker.1")
    world.agents[report.node].steps = False
    world._exited(report, Exit(ExitReason.EXIT, 1, None, 0, confirmed_dead=True))
    world.until(lambda: world.switch().generation == 2)
    assert any("it has not joined the others" in each.rule for each in world.incidents().values())


def test_a_node_that_comes_back_in_time_keeps_its_worker() -> None:
    world = spread()
    node = world.lose("worker.1")
    before = world.running()
    world.come_back(node)
    assert "moved" not in world.done
    assert world.running() == before


def test_a_mark_that_is_withdrawn_in_between_makes_the_move_stale() -> None:
    world = spread()
    node = world.lose("worker.1")
    action = world.next_move()
    world.write(Delete(keys.lost(node, world.agents[node].incarnation)))
    assert not world.run(action)


def test_a_deposed_leader_moves_nothing_and_the_next_one_charges_it_once() -> None:
    world = spread()
    world.lose("worker.1")
    action = world.next_move()
    old = world.token
    world.new_leader()
    assert not world.run(action, old)
    world.until(lambda: "moved" in world.done)
    world.new_leader()
    until_moved(world)
    assert world.done.count("moved") == 1
    assert world.switch().ledger.infrastructure == 1


def test_a_worker_leaves_a_drained_node_once_it_is_dead_there_and_no_other_task_notices() -> None:
    world = spread()
    before, old = others(world), world.running()["worker.1"]
    world.write(put_cordon(old.node))
    world.until(lambda: assignment(world, "worker.1").node != old.node)
    report = world.job().attempts.get(old.attempt)
    assert report is None or report.value.confirmed_dead
    until_moved(world)
    assert others(world) == before
    assert world.switch().generation == 1
    assert incident_of(world, "worker.1").cause is Cause.DRAINED
    assert world.switch().ledger.infrastructure == 1


def test_it_runs_on_there_until_there_is_room() -> None:
    world = spread(nodes=4)
    before = world.running()
    world.write(put_cordon(before["worker.1"].node))
    for _ in range(200):
        world.tick()
    assert world.running() == before
    assert "worker:1 waits for a place" in waiting_for(world.snapshot(), world.job())


def test_a_drained_node_with_another_task_beside_it_takes_all() -> None:
    world = able(World(job_spec({"chief": 1, "ps": 1, "worker": 2}), nodes=3)).start()
    node = next(
        report.node
        for report in world.running().values()
        if report.role != "worker" and any(r.node == report.node for r in others(world, "ps.0").values())
    )
    world.write(put_cordon(node))
    world.until(lambda: world.switch().generation == 2)
    assert not {"leaves", "moved"} & set(world.done)


def test_an_agent_that_does_not_end_it_is_given_up() -> None:
    world = spread()
    old = world.running()["worker.1"]
    world.agents[old.node].obedient = False
    world.write(put_cordon(old.node))
    world.until(lambda: "node_cordoned" in world.done)


def test_a_worker_whose_gpu_is_lost_moves_to_another() -> None:
    bound = replace(ONE, gpus=1)
    world = able(
        World(job_spec((role("chief", 1, ONE), role("ps", 1, ONE), role("worker", 2, bound))), nodes=5)
    )
    for index in range(5):
        world.see_gpus(f"n{index}", Gpu(f"GPU-{index}", 0, "T4", 1 << 34))
    world.start()
    before, old = others(world), world.running()["worker.1"]
    sound = Gpu(old.gpus[0], 0, "T4", 1 << 34)
    broken = replace(sound, health=GpuHealth.FAULTY, reason="Xid 79", action=GpuAction.RESET_GPU, fault=1)
    world.see_gpus(old.node, broken)
    until_moved(world)
    assert others(world) == before
    assert here(world, "worker.1").gpus not in ((), old.gpus)
    assert incident_of(world, "worker.1").cause is Cause.GPU


def test_a_worker_whose_node_starts_nothing_moves() -> None:
    world = spread()
    before, node = others(world), world.running()["worker.1"].node
    world.agents[node].blocked = "its disk is full"
    world.tick()
    world.end_task("worker.1", signal=9)
    until_moved(world)
    assert others(world) == before
    assert here(world, "worker.1").node != node


def test_a_stop_ends_a_worker_that_has_moved() -> None:
    world = spread()
    world.lose("worker.1")
    until_moved(world)
    world.intend(Wanted.STOP)
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)


def test_a_worker_that_waits_for_a_place_hides_no_other_failure() -> None:
    world = spread(nodes=4)
    node = world.running()["worker.1"].node
    world.agents[node].blocked = "its disk is full"
    world.tick()
    world.end_task("worker.1", signal=9)
    for _ in range(20):
        world.tick()
    assert "worker:1 waits for a place" in waiting_for(world.snapshot(), world.job())
    world.end_task("worker.0", signal=9)
    world.until(lambda: world.running().get("worker.0") is not None, limit_ms=10_000)
    assert world.switch().generation == 1
    world.end_task("ps.0", signal=9)
    world.agents[node].blocked = ""
    world.until(lambda: world.switch().generation == 2)


def test_a_coordinators_worker_that_is_not_known_to_join_takes_all_with_it() -> None:
    world = spread(Strategy.COORDINATOR)
    report = world.running()["worker.1"]
    world.write(put(keys.attempt(report.attempt), replace(report, stays="it was started cold")))
    world.write(put_cordon(report.node))
    world.until(lambda: world.switch().generation == 2)
    assert not {"leaves", "moved", "node_cordoned"} & set(world.done)


def test_a_coordinators_worker_that_has_served_for_a_while_has_joined() -> None:
    world = spread(Strategy.COORDINATOR)
    world.lose("worker.1")
    world.until(lambda: here_or_none(world) is not None and assignment(world, "worker.1").joins)
    world.agents[here(world, "worker.1").node].steps = False
    for _ in range(2 * STEADY_MS // 50):
        world.tick()
    world.end_task("worker.1", code=1)
    world.until(lambda: "restart_in_place" in world.done)
    assert world.switch().generation == 1


def test_workers_leave_drained_nodes_one_after_the_other() -> None:
    """One place is free: the second one trains on until there is another."""
    world = spread()
    old = world.running()
    world.write(put_cordon(old["worker.0"].node), put_cordon(old["worker.1"].node))
    for _ in range(400):
        world.tick()
    assert world.done.count("leaves") == world.done.count("moved") == 1
    left = [member for member in ("worker.0", "worker.1") if world.running()[member].node != old[member].node]
    assert len(left) == 1
    assert len(world.running()) == 4
