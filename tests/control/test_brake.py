"""The brake: when many nodes are lost at once, nothing is restarted or moved (rule 6.15)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.api.views import cluster_status
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.desired import Cordon, LostMark
from supervisor.contract.timing import FAST
from supervisor.control.decide.facts.cluster_time import MARKED_TICK_MS
from supervisor.control.decide.facts.hold import losses
from supervisor.control.decide.plan import put
from supervisor.control.decide.snapshot import BrakeSettings
from supervisor.control.decide.view import View
from tests.control.leader import Leader
from tests.control.world import Telling, World


def running(nodes: int = 6) -> World:
    """A job that runs on nodes of a larger cluster."""
    return Telling(nodes=nodes).start()


def lose(world: World, *nodes: str) -> None:
    """Power off, at once."""
    for node in nodes:
        world.agents[node].acting = world.agents[node].beating = False


def come_back(world: World, *nodes: str) -> None:
    """Their agents appeal, and go on."""
    for node in nodes:
        world.agents[node].acting = world.agents[node].beating = True
        world.appeal(node, world.agents[node].incarnation)


def set_brake(world: World, brake: BrakeSettings) -> None:
    """A leader with these settings takes over."""
    world.new_leader()
    world.view = View(FAST, brake)


def in_force(world: World) -> bool:
    held = world.snapshot().pause
    return held is not None and held.value.in_force


def paused(world: World) -> str:
    """What `status` says of it."""
    return cluster_status(world.snapshot(), "c", None, ()).paused


def wait(world: World, ms: int) -> None:
    """Let time pass in few looks."""
    for _ in range(ms // 250):
        world.tick(250)


def told(world: World, kind: str) -> list[str]:
    return [held.value.text for held in world.snapshot().events if held.value.kind == kind]


def test_more_than_half_of_the_nodes_are_waited_for_and_go_on_when_they_return() -> None:
    world = running()
    before = world.running()
    world.done.clear()
    lose(world, "n0", "n1", "n2", "n3")
    wait(world, 20 * FAST.d_ms)
    assert in_force(world)
    assert world.has_started_nothing()
    assert not world.to_switch_off
    (text,) = told(world, "brake")
    assert "4 of 6 nodes are lost: n0, n1, n2, n3" in text
    come_back(world, "n0", "n1", "n2", "n3")
    world.until(lambda: not in_force(world))
    assert told(world, "brake_released") == ["the brake is released: the lost nodes are back"]
    wait(world, 3 * FAST.d_ms)
    assert world.running() == before, "nobody was restarted"


def test_half_of_the_nodes_are_replaced_as_ever() -> None:
    world = running()
    world.commit(1, 100)
    lose(world, "n0", "n1", "n2")
    world.until(lambda: world.switch().generation == 2)
    assert not told(world, "brake")


def test_two_of_three_nodes_are_replaced_as_ever() -> None:
    """On a cluster of three the brake holds only when nothing is left to move to."""
    world = World(nodes=3).start()
    world.commit(1, 100)
    lose(world, "n0", "n1")
    world.until(lambda: world.switch().generation == 2)


def test_a_new_leader_holds_too_also_one_that_knows_no_mark_as_old() -> None:
    world = running()
    lose(world, "n0", "n1", "n2", "n3")
    world.until(lambda: in_force(world))
    world.done.clear()
    for _ in range(3):
        world.new_leader()
        wait(world, 3 * FAST.d_ms)
    assert in_force(world)
    assert world.has_started_nothing()


def test_the_brake_holds_although_the_window_is_over_and_marks_stay() -> None:
    world = running(nodes=7)
    lose(world, "n3", "n4", "n5", "n6")
    world.until(lambda: in_force(world))
    for node in ("n3", "n4", "n5", "n6"):
        world.write(Delete(keys.node(node)))
    world.tick(2 * 3_600_000)
    world.let_pass(2_000)
    assert in_force(world)


async def test_an_operator_ends_the_brake_and_the_same_losses_do_not_begin_it_again() -> None:
    leader = Leader()
    for node in (3, 4, 5):
        leader.world.register(f"n{node}", f"i{node}")
    world = leader.world.start()
    world.commit(1, 100)
    lose(world, "n0", "n1", "n2", "n3")
    world.until(lambda: in_force(world))
    answer = await leader.job_service.pauses.resume()
    assert answer.detail.startswith("the brake is released by an operator")
    world.until(lambda: world.switch().generation == 2)
    world.let_pass(1_000)
    assert world.done.count("brake") == 1


def test_losses_that_are_further_apart_than_the_window_do_not_begin_it() -> None:
    world = running()
    set_brake(world, BrakeSettings(window_ms=10_000))
    lose(world, "n4", "n5")
    wait(world, 15_000)
    assert len(losses(world.snapshot()).nodes) == 0
    lose(world, "n3")
    wait(world, 2_000)
    assert not told(world, "brake")
    assert len(losses(world.snapshot()).nodes) == 1


def test_a_new_leader_knows_which_losses_are_older_than_the_window() -> None:
    world = running()
    lose(world, "n4", "n5")
    for _ in range(40):
        world.tick(MARKED_TICK_MS // 4)
    noted = world.done.count("time")
    for _ in range(12):
        world.tick(MARKED_TICK_MS // 4)
    assert world.done.count("time") == noted, "the time is noted more often only while a mark is new"
    world.new_leader()
    lose(world, "n3")
    world.until(lambda: bool(world.snapshot().nodes["n3"].marks), step_ms=250)
    wait(world, 1_000)
    assert losses(world.snapshot()).nodes == ("n3",)


def test_nodes_that_have_a_cordon_do_not_count() -> None:
    world = running()
    for node in ("n2", "n3", "n4", "n5"):
        world.write(put(keys.cordon(node), Cordon(node, "new fans")))
        lose(world, node)
    wait(world, 3 * FAST.d_ms)
    assert not told(world, "brake")


def test_cordoning_what_is_lost_releases_the_brake() -> None:
    world = running()
    lose(world, "n2", "n3", "n4", "n5")
    world.until(lambda: in_force(world))
    for node in ("n2", "n3", "n4"):
        world.write(put(keys.cordon(node), Cordon(node, "it burns")))
    world.until(lambda: not in_force(world), step_ms=250)


@pytest.mark.parametrize("fraction", [0.5, 0.9, 1.0])
def test_the_fraction_is_the_one_that_is_configured(fraction: float) -> None:
    world = running()
    set_brake(world, BrakeSettings(lost_fraction=fraction))
    lose(world, "n0", "n1", "n2", "n3")
    world.let_pass(2 * FAST.d_ms)
    assert in_force(world) is (fraction == 0.5)


def test_a_fraction_that_is_read_again_counts_from_the_next_look_on() -> None:
    world = running()
    set_brake(world, BrakeSettings(lost_fraction=1.0))
    lose(world, "n0", "n1", "n2", "n3")
    world.let_pass(2 * FAST.d_ms)
    assert not in_force(world)
    world.view.brake = BrakeSettings(lost_fraction=0.5)
    world.tick(250)
    assert in_force(world)


def test_marks_of_former_agents_of_nodes_that_are_back_do_not_count() -> None:
    world = running()
    for node in ("n2", "n3", "n4", "n5"):
        world.write(put(keys.lost(node, "former"), LostMark(node, "former", "no beat", final=True)))
    world.let_pass(200)
    assert not in_force(world)


def test_nodes_that_have_ended_their_tasks_themselves_do_not_count() -> None:
    world = running()
    gone = ("n0", "n1", "n2", "n3")
    lose(world, *gone)
    for node in gone:
        holder = world.snapshot().nodes[node].incarnation
        assert holder is not None
        world.write(put(holder.key, replace(holder.value, fenced=True)))
    wait(world, FAST.d_ms)
    assert set(gone) <= {node for node, state in world.snapshot().nodes.items() if state.marks}
    assert not in_force(world)
    world.write(*(Delete(keys.node(node)) for node in gone))
    wait(world, 2 * FAST.d_ms)
    assert not in_force(world)


def test_nodes_that_come_back_one_after_another_are_all_waited_for() -> None:
    world = running()
    world.commit(1, 100)
    before = world.running()
    lose(world, "n0", "n1", "n2", "n3")
    wait(world, 2 * FAST.d_ms)
    world.done.clear()
    for node in ("n3", "n2", "n1"):
        come_back(world, node)
        wait(world, 1_000)
        assert in_force(world)
    assert "1 of 6 nodes are lost: n0; they are waited for" in paused(world)
    come_back(world, "n0")
    world.until(lambda: not in_force(world))
    wait(world, 2 * FAST.d_ms)
    assert world.has_started_nothing()
    assert world.running() == before, "nobody was moved away from a node that came back last"


def test_those_that_stay_away_are_replaced_once_no_other_comes_back() -> None:
    world = running()
    world.commit(1, 100)
    lose(world, "n0", "n1", "n2", "n3")
    world.until(lambda: in_force(world))
    come_back(world, "n3")
    world.until(lambda: world.switch().generation == 2, step_ms=250)
    assert told(world, "brake_released") == ["the brake is released: 3 of 6 nodes are still lost"]


def test_the_reason_names_the_nodes_that_are_lost_now() -> None:
    world = running(nodes=9)
    lose(world, "n0", "n1", "n2", "n3", "n4")
    world.until(lambda: in_force(world))
    lose(world, "n5")
    world.let_pass(2 * FAST.suspect_ms)
    assert "6 of 9 nodes are lost: n0, n1, n2, n3, n4, n5" in paused(world)
