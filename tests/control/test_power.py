"""Machines of suspected nodes that a fence device switches off, so that D need not be waited for (rule 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Delete, Put
from supervisor.contract.desired import Cordon, LeaderToken, LostMark
from supervisor.contract.errors import Refused
from supervisor.contract.incident import Event
from supervisor.contract.observed import Appeal
from supervisor.contract.timing import FAST
from supervisor.control.decide.nodes.power import DISPROVED
from supervisor.control.decide.plan import Action, PowerOff, put
from supervisor.control.decide.reconcile import reconcile
from supervisor.control.loop.apply import Applier
from supervisor.control.loop.power_off import MOST_AT_ONCE, PowerOffs
from tests.control.world import World
from tests.support.sinks import ListSink


class Plug:
    """A device that confirms, or refuses. `meanwhile` happens while it works."""

    def __init__(self, world: World, refuses: str = "", after_ms: int = 0, takes_s: float = 0.0) -> None:
        self.after_ms = after_ms
        self.switched_off: list[str] = []
        self.meanwhile: list[Put | Delete] = []
        self._world = world
        self._refuses = refuses
        self._takes_s = takes_s
        self.asked = asyncio.Event()

    def device(self, node: str, labels: Mapping[str, str]) -> str:
        return "" if node == "unknown" else "plug"

    async def switch_off(self, node: str, labels: Mapping[str, str]) -> None:
        self.asked.set()
        await asyncio.sleep(self._takes_s)
        self.switched_off.append(node)
        self._world.write(*self.meanwhile)
        if self._refuses:
            raise Refused(self._refuses)


def suspected() -> tuple[World, str]:
    """A world in which a node with tasks is marked, and its name."""
    world = World().start()
    node = world.node_of("worker.0")
    world.switch_off(node)
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    return world, node


def mark_of(world: World, node: str) -> LostMark:
    (mark,) = world.snapshot().nodes[node].marks.values()
    return mark.value


def wanted(world: World) -> list[PowerOff]:
    return [each for each in reconcile(world.snapshot()) if isinstance(each, PowerOff)]


def applier_of(world: World, token: LeaderToken | None = None) -> Applier:
    coordination = MemoryCoordination(world.store)
    return Applier(
        token or world.token, coordination, lambda _: MemoryCheckpointStore(), BootClock(), ListSink(), 100
    )


def run(world: World, plug: Plug, *offs: PowerOff, token: LeaderToken | None = None) -> None:
    """Let the leader look once, and carry out the power-offs."""
    applier = applier_of(world, token)

    async def looks() -> None:
        power_offs = PowerOffs(plug, ListSink())
        power_offs.look(applier, offs)
        await asyncio.gather(*power_offs._running.values())

    asyncio.run(looks())


def events(world: World) -> list[str]:
    return [codec.decode(Event, each.value).kind for each in world.store.select("events/")]


def test_a_machine_that_is_off_is_replaced_at_once() -> None:
    world, node = suspected()
    began_ms = world.now_ms
    (off,) = wanted(world)
    plug = Plug(world)
    run(world, plug, off)
    assert plug.switched_off == [node]
    assert mark_of(world, node).off
    world.until(lambda: world.switch().generation == 2)
    assert world.now_ms - began_ms < FAST.d_ms // 4
    assert mark_of(world, node).final
    assert events(world) == ["power_off_begun", "power_off_confirmed"]


def test_a_new_leader_need_not_wait_for_a_machine_that_is_off() -> None:
    world, _node = suspected()
    run(world, Plug(world), wanted(world)[0])
    world.new_leader()
    took_ms = world.until(lambda: world.switch().generation == 2)
    assert took_ms < FAST.d_ms // 4


def test_when_the_device_fails_d_is_waited_for() -> None:
    world, node = suspected()
    run(world, Plug(world, refuses="it is away"), wanted(world)[0])
    assert not mark_of(world, node).off
    assert events(world) == ["power_off_begun", "power_off_failed"]
    took_ms = world.until(lambda: world.switch().generation == 2)
    assert took_ms >= FAST.d_ms - 100


def test_a_deposed_leader_switches_nothing_off() -> None:
    world, _node = suspected()
    plug, (off,) = Plug(world), wanted(world)
    earlier = world.token
    world.new_leader()
    run(world, plug, off, token=earlier)
    assert not plug.switched_off


def test_a_leader_that_is_deposed_meanwhile_writes_nothing() -> None:
    world, node = suspected()
    plug, (off,) = Plug(world), wanted(world)
    plug.meanwhile = [Delete(keys.LEADER)]
    run(world, plug, off)
    assert plug.switched_off
    assert not mark_of(world, node).off


def test_a_mark_that_is_withdrawn_meanwhile_is_not_written_again() -> None:
    world, node = suspected()
    plug, (off,) = Plug(world), wanted(world)
    plug.meanwhile = [Delete(off.mark.key)]
    run(world, plug, off)
    assert not world.snapshot().nodes[node].marks


def test_an_appeal_that_has_come_unheard_keeps_the_machine_on() -> None:
    world, node = suspected()
    plug, (off,) = Plug(world), wanted(world)
    world.appeal(node, off.mark.value.incarnation)
    run(world, plug, off)
    assert not plug.switched_off


def test_a_new_agent_that_has_come_unseen_keeps_the_machine_on() -> None:
    world, node = suspected()
    plug, (off,) = Plug(world), wanted(world)
    world.register(node, "new")
    run(world, plug, off)
    assert not plug.switched_off


def test_an_appeal_that_comes_meanwhile_is_heard() -> None:
    """It was made before the machine lost its power: the device has not lied."""
    world, node = suspected()
    plug, (off,) = Plug(world), wanted(world)
    life = off.mark.value.incarnation
    plug.meanwhile = [put(keys.appeal(node, life), Appeal(node, life))]
    run(world, plug, off)
    assert not mark_of(world, node).off
    assert events(world) == ["power_off_begun", "power_off_late"]
    world.tick()
    assert not world.snapshot().nodes[node].marks
    assert "node_cleared" in world.done


def test_an_agent_that_appeals_after_it_was_switched_off_disproves_its_device() -> None:
    world, node = suspected()
    run(world, Plug(world), wanted(world)[0])
    world.appeal(node, mark_of(world, node).incarnation)
    world.decide()
    assert DISPROVED in world.done
    cordon = world.snapshot().nodes[node].cordon
    assert cordon is not None
    assert cordon.value.by_operator, "until an operator has corrected the device"
    assert not world.snapshot().nodes[node].marks


def test_the_appeal_of_a_successor_disproves_nothing() -> None:
    """It may be of another boot."""
    world, node = suspected()
    run(world, Plug(world), wanted(world)[0])
    world.appeal(node, mark_of(world, node).incarnation, successor="next")
    world.decide()
    assert "node_cleared" in world.done
    assert world.snapshot().nodes[node].cordon is None


@pytest.mark.parametrize(("boot", "kind"), [("boot", DISPROVED), ("another", "node_back")])
def test_a_node_that_comes_back_under_the_same_boot_disproves_its_device(boot: str, kind: str) -> None:
    world, node = suspected()
    run(world, Plug(world), wanted(world)[0])
    world.until(lambda: world.switch().generation == 2)
    world.write(Delete(keys.node(node)))
    world.register(node, "new", boot_id=boot)
    world.tick(leader=False)
    told = [each.kind for each in reconcile(world.snapshot()) if isinstance(each, Action) and each.text]
    assert kind in told


def test_a_node_that_has_a_cordon_is_not_switched_off() -> None:
    world, node = suspected()
    world.write(put(keys.cordon(node), Cordon(node, "its fence device was wrong")))
    assert not wanted(world)


def test_a_device_is_asked_when_the_mark_is_old_enough_and_while_d_is_not_over() -> None:
    world, _node = suspected()
    plug = Plug(world, after_ms=400)
    run(world, plug, *wanted(world))
    assert not plug.switched_off
    world.now_ms += 400
    (off,) = wanted(world)
    assert off.left_ms <= FAST.d_ms - 400
    run(world, plug, replace(off, left_ms=0))
    assert not plug.switched_off
    run(world, plug, off)
    assert plug.switched_off


def test_a_device_that_has_not_ended_when_d_is_over_has_failed() -> None:
    world, _node = suspected()
    (off,) = wanted(world)
    run(world, Plug(world, takes_s=5.0), replace(off, left_ms=20))
    assert events(world) == ["power_off_begun", "power_off_failed"]


def test_a_device_is_broken_off_when_its_node_is_suspected_no_more() -> None:
    world, _node = suspected()
    plug = Plug(world, takes_s=5.0)
    applier = applier_of(world)

    async def looks() -> None:
        power_offs = PowerOffs(plug, ListSink())
        power_offs.look(applier, wanted(world))
        (task,) = power_offs._running.values()
        await plug.asked.wait()
        power_offs.look(applier, ())
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(looks())
    assert not plug.switched_off


def test_only_so_many_devices_are_asked_at_once() -> None:
    world, _node = suspected()
    (off,) = wanted(world)
    many = [
        replace(off, mark=replace(off.mark, key=f"{off.mark.key}{number}"), begins=(), counts=())
        for number in range(MOST_AT_ONCE + 3)
    ]
    plug = Plug(world, refuses="it is away")
    run_once = PowerOffs(plug, ListSink())

    async def look() -> None:
        applier = applier_of(world)
        run_once.look(applier, many)
        assert len(run_once._running) == MOST_AT_ONCE
        await asyncio.wait(run_once._running.values())
        run_once.look(applier, many)
        await asyncio.wait(run_once._running.values())

    asyncio.run(look())
    assert len(plug.switched_off) == len(many)


def test_a_node_whose_tasks_were_adopted_by_a_successor_is_switched_off_too() -> None:
    world = World().start()
    node = world.node_of("worker.0")
    world.register(node, "next", succeeds=(world.agents[node].incarnation,))
    world.tick(leader=False)
    world.switch_off(node)
    world.until(lambda: bool(world.snapshot().nodes[node].marks))
    assert [each.node for each in wanted(world)] == [node]


def test_nothing_is_switched_off_on_which_no_task_can_run() -> None:
    world, node = suspected()
    assert [each.node for each in wanted(world)] == [node]
    world.until(lambda: world.switch().generation == 2)
    assert not wanted(world)


def test_a_machine_that_a_new_agent_has_taken_over_is_not_switched_off() -> None:
    world, node = suspected()
    world.register(node, "new")
    assert not wanted(world)
