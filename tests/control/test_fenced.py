"""Nodes that have fenced what their dead agents had started: D need not be waited for (rule 3)."""

from __future__ import annotations

from dataclasses import replace

from supervisor.api.nodes import node_list
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.observed import Incarnation
from supervisor.contract.timing import FAST
from supervisor.control.decide.facts.standing import Standing, standing
from supervisor.control.decide.nodes.node_loss import FENCED
from supervisor.control.decide.plan import Action, PowerOff, put
from supervisor.control.decide.reconcile import reconcile
from tests.control.world import World


def key_of(world: World, node: str) -> Incarnation:
    return codec.decode(Incarnation, world.store.read(keys.node(node))[0].value)


def fence(world: World, node: str) -> None:
    """Its agent is dead, and its node says that nothing is left."""
    world.switch_off(node)
    world.write(put(keys.node(node), replace(key_of(world, node), fenced=True)))


def stopped() -> tuple[World, str]:
    """A world in which the agent of a node with tasks is gone, and the node's name."""
    world = World().start()
    node = world.node_of("worker.0")
    fence(world, node)
    return world, node


def next_flip(world: World) -> Action:
    """The flip that the leader would make next; it is not made."""
    for _ in range(200):
        world.tick(leader=False)
        decided = [each for each in reconcile(world.snapshot()) if isinstance(each, Action)]
        found = next((each for each in decided if each.kind == "flip"), None)
        if found is not None:
            return found
        world.decide()
    raise AssertionError(world.done[-20:])


def test_the_tasks_of_a_node_that_is_fenced_are_replaced_at_once() -> None:
    world, node = stopped()
    took_ms = world.until(lambda: world.switch().generation == 2)
    assert took_ms < FAST.suspect_ms
    assert node not in {report.node for report in world.running().values()}
    (mark,) = world.snapshot().nodes[node].marks.values()
    assert mark.value.final


def test_a_node_that_was_suspected_before_it_was_fenced_is_lost_from_then_on() -> None:
    world = World().start()
    node = world.node_of("worker.0")
    world.switch_off(node)
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    fence(world, node)
    assert world.until(lambda: world.switch().generation == 2) < FAST.d_ms // 4


def test_a_node_that_is_fenced_is_shown_as_lost_at_once() -> None:
    world, node = stopped()
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    (view,) = [each for each in node_list(world.snapshot()).nodes if each.node == node]
    assert (view.state, view.reason) == ("lost", FENCED)


def test_a_new_leader_need_not_wait_for_a_node_that_is_fenced() -> None:
    world, node = stopped()
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    world.new_leader()
    assert world.until(lambda: world.switch().generation == 2) < FAST.d_ms // 4


def test_what_a_successor_of_a_fenced_agent_runs_is_not_lost() -> None:
    """It may have taken the node over before the leader had marked it."""
    world, node = stopped()
    life = key_of(world, node).incarnation
    world.tick(leader=False)
    world.snapshot()
    world.register(node, "next", succeeds=(life,))
    world.tick()
    assert not world.snapshot().nodes[node].marks
    assert world.switch().generation == 1


def test_an_agent_that_is_started_again_is_not_marked_while_it_joins() -> None:
    world = World(nodes=5).start()
    (node,) = set(world.agents) - {report.node for report in world.running().values()}
    fence(world, node)
    life = key_of(world, node).incarnation
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    world.appeal(node, life, successor="next")
    world.until(lambda: not world.snapshot().nodes[node].marks)
    for _ in range(FAST.d_ms // 2 // 50):
        world.tick()
        assert not world.snapshot().nodes[node].marks
    world.register(node, "next", succeeds=(life,))
    for _ in range(10):
        world.tick()
    assert not world.snapshot().nodes[node].marks


def test_a_flip_compares_the_key_that_says_so() -> None:
    world, node = stopped()
    flip = next_flip(world)
    life = key_of(world, node)
    world.write(put(keys.node(node), replace(life, incarnation="next", succeeds=(life.incarnation,))))
    assert not world.run(flip)


def test_without_its_key_a_node_is_lost_after_d_as_ever() -> None:
    world, node = stopped()
    plan = world.job().plan_in_force
    assert plan is not None
    placement = next(each for each in plan.value.placements if each.node == node)
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    assert standing(world.snapshot(), placement) is Standing.LOST
    world.write(Delete(keys.node(node)))
    assert standing(world.snapshot(), placement) is Standing.SUSPECTED


def test_nothing_is_placed_on_a_node_that_is_fenced() -> None:
    world, node = stopped()
    snap = world.snapshot()
    assert not snap.usable(snap.nodes[node])


def test_a_node_that_is_fenced_is_not_switched_off() -> None:
    world = World().start()
    node = world.node_of("worker.0")
    world.switch_off(node)
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    assert [each.node for each in reconcile(world.snapshot()) if isinstance(each, PowerOff)] == [node]
    fence(world, node)
    assert not [each for each in reconcile(world.snapshot()) if isinstance(each, PowerOff)]
