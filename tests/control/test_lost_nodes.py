"""Nodes that fall silent: marks, appeals, and when their tasks are replaced (rules 3, 10 and 12)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.api.nodes import node_state
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.desired import Cordon, JobPhase, LostMark
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import RestartPolicy, Strategy
from supervisor.contract.pool.record import PoolRecord
from supervisor.contract.timing import FAST
from supervisor.control.decide.plan import Action, put
from supervisor.control.decide.reconcile import reconcile
from tests.control.world import World
from tests.support.builders import job_spec


def test_a_silent_node_is_marked_but_not_replaced_before_d() -> None:
    world = World().start()
    node = world.node_of("worker.0")
    world.switch_off(node)
    took = world.until(lambda: world.switch().generation == 2)
    assert FAST.suspect_ms + FAST.d_ms <= took <= FAST.suspect_ms + FAST.d_ms + 500
    assert node not in {report.node for report in world.running().values()}
    incident = next(i for i in world.incidents().values() if i.cause is Cause.NODE_LOST)
    assert incident.node == node


def test_the_flip_that_replaces_a_node_makes_its_mark_final_and_an_appeal_too_late() -> None:
    world = World().start()
    node = world.node_of("worker.0")
    world.switch_off(node)
    world.until(lambda: world.switch().generation == 2)
    incarnation = world.agents[node].incarnation
    world.appeal(node, incarnation)
    for _ in range(20):
        world.tick()
    mark = world.snapshot().nodes[node].marks[incarnation]
    assert mark.value.final


def test_an_appeal_withdraws_the_mark_and_nothing_is_restarted() -> None:
    world = World().start()
    node = world.node_of("worker.0")
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


@pytest.mark.parametrize("revoked", [True, False])
def test_a_node_whose_certificates_are_revoked_appeals_in_vain(revoked: bool) -> None:
    """It cannot beat, and etcd takes what it writes until its certificate ends."""
    world = World(nodes=0)
    for index in range(3):
        world.register(f"train.n{index}", f"i{index}")
    world.start()
    node = world.node_of("worker.0")
    record = PoolRecord(name="train", id="1", owner="", token="", token_ends_wall_ms=0)
    shut_out = (node,) if revoked else ()
    world.write(put(keys.pool_record("train"), replace(record, revoked=shut_out)))
    incarnation = world.agents[node].incarnation
    world.agents[node].beating = False
    for _ in range(150):
        if incarnation in world.snapshot().nodes[node].marks:
            world.appeal(node, incarnation)
        world.tick()
    assert (world.switch().generation == 2) == revoked
    if revoked:
        incident = next(each for each in world.incidents().values() if each.cause is Cause.NODE_LOST)
        assert "its certificates are revoked, and no beat for" in incident.detail
        # Its agent joins again, as etcd lets it. Nothing is placed there, and it is not marked again.
        world.register(node, "again")
        assert not world.snapshot().usable(world.snapshot().nodes[node])
        for _ in range(150):
            world.tick()
        picture = world.snapshot().nodes[node]
        assert "again" not in picture.marks
        assert node_state(world.snapshot(), picture, busy=False)[0] == "suspected"


@pytest.mark.parametrize("every", [0, 40])
def test_a_node_that_is_revoked_is_lost_however_often_its_agent_registers(every: int) -> None:
    """Its placements and reports name a life before, and a new life is no sign that it is well."""
    world = World(nodes=0)
    for index in range(3):
        world.register(f"train.n{index}", f"i{index}")
    world.start()
    node = world.node_of("worker.0")
    lives = [world.agents[node].incarnation]
    record = PoolRecord(name="train", id="1", owner="", token="", token_ends_wall_ms=0)
    world.write(put(keys.pool_record("train"), replace(record, revoked=(node,))))
    for count in range(300):
        if count == 0 or (every and count % every == 0):
            world.register(node, f"life{count}", succeeds=tuple(lives)).beating = False
            lives.append(f"life{count}")
        world.tick()
    assert world.switch().generation == 2
    assert world.node_of("worker.0") != node


def test_a_second_appeal_over_the_first_is_heard_too() -> None:
    world = World().start()
    node = world.node_of("worker.0")
    incarnation = world.agents[node].incarnation
    world.agents[node].beating = False
    for _ in range(2):
        world.until(lambda: incarnation in world.snapshot().nodes[node].marks)
        world.appeal(node, incarnation, "successor")
        world.decide()
        assert not world.snapshot().nodes[node].marks


def test_a_leader_whose_watch_is_late_hears_an_appeal_that_is_made_again_and_again() -> None:
    world = World().start()
    node = world.node_of("worker.0")
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
    node = world.node_of("worker.0")
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
    node = world.node_of("worker.0")
    world.switch_off(node)
    world.write(Delete(keys.node(node)))
    world.tick()
    assert world.snapshot().nodes[node].marks
    took = world.until(lambda: world.switch().generation == 2)
    assert took >= FAST.d_ms - 100


def test_a_process_failure_elsewhere_does_not_shorten_the_wait_for_a_silent_node() -> None:
    world = World().start()
    node = world.node_of("worker.1")
    other = "ps.0" if world.node_of("ps.0") != node else "chief.0"
    world.switch_off(node)
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    world.end_task(other, signal=9)
    took = world.until(lambda: world.switch().generation == 2)
    assert took >= FAST.d_ms - 100


def test_a_new_leader_waits_d_again() -> None:
    world = World().start()
    node = world.node_of("worker.0")
    world.switch_off(node)
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    for _ in range(FAST.d_ms // 50 - 10):
        world.tick()
    world.new_leader()
    took = world.until(lambda: world.switch().generation == 2)
    assert took >= FAST.d_ms


def test_a_second_mark_of_a_registered_node_is_not_written() -> None:
    world = World().start()
    node = world.node_of("worker.0")
    incarnation = world.agents[node].incarnation
    world.write(put(keys.lost(node, incarnation), LostMark(node, incarnation, "by hand")))
    world.agents[node].beating = False
    marked = world.done.count("node_suspected")
    for _ in range(20):
        world.tick()
    assert world.done.count("node_suspected") == marked


def test_a_disobedient_agent_is_given_up_and_its_node_cordoned_until_it_is_restarted() -> None:
    world = World().start()
    node = world.node_of("worker.0")
    world.agents[node].obedient = False
    world.end_task("ps.0" if world.node_of("ps.0") != node else "chief.0", signal=9)
    world.until(lambda: world.snapshot().nodes[node].cordon is not None)
    mark = world.snapshot().nodes[node].marks[world.agents[node].incarnation]
    assert mark.value.final
    world.register(node, "fresh")
    world.until(lambda: world.snapshot().nodes[node].cordon is None)
    assert world.snapshot().nodes[node].lifted > 0


@pytest.mark.parametrize("drain", [False, True])
def test_a_node_that_is_given_up_stays_cordoned_where_an_operator_had_done_so(drain: bool) -> None:
    world = World().start()
    node = world.node_of("worker.0")
    world.agents[node].obedient = False
    theirs = Cordon(node, "maintenance", drain=drain)
    world.write(put(keys.cordon(node), theirs))
    world.end_task("ps.0" if world.node_of("ps.0") != node else "chief.0", signal=9)
    world.until(lambda: any(mark.value.final for mark in world.snapshot().nodes[node].marks.values()))
    world.register(node, "fresh")
    for _ in range(20):
        world.tick()
    held = world.snapshot().nodes[node].cordon
    assert held is not None
    assert held.value == theirs


def test_a_cordon_that_is_set_meanwhile_is_not_written_over_by_who_gives_the_node_up() -> None:
    world = World().start()
    node = world.node_of("worker.0")
    world.agents[node].obedient = False
    world.end_task("ps.0" if world.node_of("ps.0") != node else "chief.0", signal=9)
    giving_up: list[Action] = []
    for _ in range(1_000):
        world.tick(leader=False)
        decided = [each for each in reconcile(world.snapshot()) if isinstance(each, Action)]
        giving_up = [each for each in decided if each.kind == "node_cordoned"]
        if giving_up:
            break
        world.decide()
    world.write(put(keys.cordon(node), Cordon(node, "maintenance")))
    assert not world.run(giving_up[0])


def test_a_node_on_which_a_task_cannot_be_killed_is_given_up_though_its_launcher_is_gone() -> None:
    """Its successor cannot start there while it may live, and nobody would start it anywhere else."""
    world = World().start()
    node = world.node_of("worker.0")
    world.end_task("worker.0", signal=9, confirmed=False)
    world.until(lambda: world.switch().generation == 2)
    assert world.snapshot().nodes[node].cordon is None
    took_ms = world.until(lambda: world.snapshot().nodes[node].cordon is not None)
    assert took_ms <= 3 * world.snapshot().timing.d_ms
    assert world.snapshot().nodes[node].marks[world.agents[node].incarnation].value.final


def test_peers_that_die_of_a_silent_node_are_not_the_programs_fault() -> None:
    world = World(job_spec({"worker": 3}, Strategy.MULTIWORKER)).start()
    node = world.node_of("worker.0")
    world.switch_off(node)
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    for member in ("worker.1", "worker.2"):
        if world.running()[member].node != node:
            world.end_task(member, code=1)
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().ledger.program == 0
    assert {i.cause for i in world.incidents().values()} == {Cause.SUBMITTED, Cause.NODE_LOST}


def test_a_killed_worker_is_restarted_at_once_although_another_node_is_silent() -> None:
    world = World().start()
    node = world.node_of("worker.1")
    member = next(m for m in ("worker.0", "chief.0", "ps.0") if world.node_of(m) != node)
    assert member == "worker.0"
    world.switch_off(node)
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    world.end_task("worker.0", signal=9)
    took = world.until(lambda: "restart_in_place" in world.done)
    assert took <= 100


def test_a_mark_that_raced_with_a_succession_is_stale() -> None:
    world = World().start()
    node = world.node_of("worker.0")
    old = world.agents[node]
    old.beating = False
    world.until(lambda: world.snapshot().silence_ms(world.snapshot().nodes[node]) > FAST.suspect_ms - 100)
    world.now_ms += 200
    (mark,) = [a for a in reconcile(world.snapshot()) if isinstance(a, Action) and a.kind == "node_suspected"]
    world.register(node, "successor", succeeds=(old.incarnation,))
    assert not world.run(mark)


def test_a_job_started_again_waits_d_for_what_its_last_life_left_on_a_silent_node() -> None:
    world = World(job_spec(restart=RestartPolicy(max_restarts=0))).start()
    node = world.node_of("worker.1")
    assert world.node_of("worker.0") != node
    world.switch_off(node)
    world.end_task("worker.0", code=1)
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    world.intend(serial=1)
    took = world.until(lambda: world.switch().phase is JobPhase.RUNNING)
    assert took >= FAST.d_ms - 100
