"""What can go wrong, and a seeded schedule of it. Each fault ends by itself, or when all is healed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from agent.core.gpu_health import Sight, Xid
from chaos.sim.machine import Machine
from chaos.sim.programs import CRASHES, TRAINING
from chaos.sim.world import Seat, World


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a schedule. `pick` chooses its victim among those that there are when it strikes."""

    at_s: float
    kind: str
    pick: int
    for_s: float


KINDS: dict[str, int] = {
    "task_exit": 6,
    "task_kill": 6,
    "task_freeze": 3,
    "task_stuck": 3,
    "launcher_kill": 3,
    "launcher_freeze": 3,
    "agent_kill": 5,
    "agent_freeze": 5,
    "agent_down": 3,
    "node_kill": 4,
    "node_freeze": 4,
    "supervisor_kill": 5,
    "supervisor_freeze": 4,
    "hand_over": 2,
    "cut_node_etcd": 4,
    "cut_node_supervisors": 4,
    "cut_node_off": 5,
    "cut_supervisor_etcd": 3,
    "etcd_freeze": 3,
    "etcd_down": 2,
    "etcd_leader": 2,
    "watches_break": 2,
    "compaction": 2,
    "stale_lessor": 2,
    "lease_expires": 3,
    "bad_network": 6,
    "bad_store": 4,
    "operator_restart": 2,
    "operator_restart_task": 2,
    "operator_from": 2,
    "operator_stop": 2,
    "operator_save": 2,
    "operator_start": 2,
    "operator_resume": 2,
    "operator_fresh": 1,
}


GPU_KINDS: dict[str, int] = {"gpu_restart": 12, "gpu_reset": 16, "gpu_gone": 6, "gpu_unknown": 10}
"""For clusters that have GPUs."""

_XIDS = {"gpu_restart": 94, "gpu_reset": 48, "gpu_gone": 79}

FATAL = "task_hang_for_good"
SLOW_S = 0.23
SCRIPTED = ("task_hang", FATAL)
"""Kinds that only a script has: they need a job that is watched closely enough to end within the run. A job
that meets a FATAL one fails of it, and keeps what hangs for inspection."""


def schedule(
    rng: random.Random, length_s: float, table: Mapping[str, int] = MappingProxyType(KINDS)
) -> tuple[Fault, ...]:
    """Between one and seven faults in `length_s`, some of them close together."""
    count = rng.choice((1, 2, 3, 4, 5, 6, 8, 11))
    kinds, weights = list(table), list(table.values())
    faults = []
    at_s, pick = 0.0, 0
    for _ in range(count):
        # Trouble comes twice to the same place more often than chance would have it.
        pick = pick if rng.random() < 0.5 else rng.randrange(1000)
        at_s = rng.uniform(0, length_s) if rng.random() < 0.6 else at_s + rng.uniform(0.0, 0.6)
        kind = rng.choices(kinds, weights)[0]
        for_s = rng.choice((rng.uniform(0.05, 1.0), rng.uniform(0.5, 4.5), rng.uniform(3.5, 9.0)))
        faults.append(Fault(min(at_s, length_s), kind, pick, for_s))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def apply(world: World, fault: Fault) -> None:
    """Make it happen now, and end later."""
    world.say(f"** {fault.kind} for {fault.for_s:.2f} s")
    group = fault.kind.split("_")[0]
    actions: dict[str, Callable[[World, Fault], None]] = {
        "task": _task,
        "launcher": _launcher,
        "agent": _agent,
        "node": _node,
        "supervisor": _supervisor,
        "hand": _hand_over,
        "cut": _cut,
        "etcd": _etcd,
        "watches": _etcd,
        "compaction": _etcd,
        "stale": _etcd,
        "lease": _etcd,
        "bad": _weather,
        "gpu": _gpu,
    }
    actions[group](world, fault)


def heal_all(world: World) -> None:
    """The end of every fault."""
    weather = world.weather
    weather.lost = weather.twice = weather.slow = weather.etcd_fault = weather.store_fault = 0.0
    world.etcd.stale_lessor = False
    if not world.etcd.answering:
        world.etcd.up()
    for seat in world.nodes.values():
        if seat.machine is not None and seat.machine.gpus.hung:
            _answer(seat.machine)
    for seat in (*world.supervisors, *world.nodes.values()):
        world.heal(seat)
        seat.kept = True
        if seat.machine is not None:
            for row in list(seat.machine.table.values()):
                if row.frozen:
                    seat.machine.thaw(row)
        world.thaw_quietly(seat)
        if seat.machine is not None and not seat.machine.up:
            world.power_on(seat)
        elif not seat.running:
            world.restart_soon(seat)


def _later(world: World, fault: Fault, undo: Callable[[], None]) -> None:
    world.loop.post(None, fault.for_s, undo)


def _task(world: World, fault: Fault) -> None:
    alive = [each for each in world.training.alive() if not each.row.doomed and not each.row.frozen]
    if fault.kind in SCRIPTED:
        alive = [each for each in alive if each.attempt.task.role in TRAINING]
    if not alive:
        return
    program = alive[fault.pick % len(alive)]
    machine, row = program.machine, program.row
    world.say(f"   {program.attempt} on {machine.name}")
    if fault.kind == "task_exit":
        program.crash(1, CRASHES[row.pid % len(CRASHES)])
    elif fault.kind in SCRIPTED:
        program.hung = True
        world.observed("hung", program)
    elif fault.kind == "task_kill":
        machine.kill(row)
    else:
        machine.freeze(row, stuck=fault.kind == "task_stuck")
        _later(world, fault, lambda: machine.thaw(row))


def _launcher(world: World, fault: Fault) -> None:
    found = [
        (seat, launcher)
        for seat in world.nodes.values()
        for launcher in seat.table.by_id.values()
        if not launcher.row.doomed and not launcher.row.frozen
    ]
    if not found:
        return
    seat, launcher = found[fault.pick % len(found)]
    machine = seat.machine
    assert machine is not None
    world.say(f"   {launcher.row.process.name}")
    if fault.kind == "launcher_kill":
        machine.kill(launcher.row)
    else:
        machine.freeze(launcher.row, stuck=False)
        _later(world, fault, lambda: machine.thaw(launcher.row))


def _agent(world: World, fault: Fault) -> None:
    seats = list(world.nodes.values())
    seat = seats[fault.pick % len(seats)]
    if fault.kind == "agent_freeze":
        _freeze(world, fault, seat)
        return
    seat.kept = fault.kind == "agent_kill"
    world.kill(seat)
    if not seat.kept:

        def back() -> None:
            seat.kept = True
            world.restart_soon(seat)

        _later(world, fault, back)


def _freeze(world: World, fault: Fault, seat: Seat) -> None:
    process = seat.process
    if process is not None and process.alive:
        world.freeze(seat)
        _later(world, fault, lambda: world.thaw(seat) if seat.process is process else None)


def _node(world: World, fault: Fault) -> None:
    seats = list(world.nodes.values())
    seat = seats[fault.pick % len(seats)]
    machine = seat.machine
    assert machine is not None
    if not machine.up:
        return
    if fault.kind == "node_kill":
        world.power_off(seat)
        _later(world, fault, lambda: world.power_on(seat))
        return
    rows = [row for row in machine.table.values() if not row.frozen]
    for row in rows:
        machine.freeze(row, stuck=True)
    _freeze(world, fault, seat)

    def thaw() -> None:
        for row in rows:
            machine.thaw(row)

    _later(world, fault, thaw)


def _supervisor(world: World, fault: Fault) -> None:
    seat = _leading(world, fault)
    if fault.kind == "supervisor_freeze":
        _freeze(world, fault, seat)
    else:
        world.kill(seat)


def _leading(world: World, fault: Fault) -> Seat:
    """Mostly the leader: the others do nothing that could go wrong."""
    leader = world.leader()
    if leader is not None and fault.pick % 4:
        return leader
    return world.supervisors[fault.pick % len(world.supervisors)]


def _hand_over(world: World, fault: Fault) -> None:
    seat = _leading(world, fault)
    if seat.control is not None and seat.process is not None:
        task = world.loop.spawn(seat.process, seat.control.hand_over())
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())


def _cut(world: World, fault: Fault) -> None:
    seats = list(world.nodes.values())
    seat = seats[fault.pick % len(seats)]
    if fault.kind == "cut_supervisor_etcd":
        seat = _leading(world, fault)
    world.say(f"   {seat.name}")
    if fault.kind != "cut_node_supervisors":
        world.cut(seat, etcd=True)
    if fault.kind in ("cut_node_supervisors", "cut_node_off"):
        world.cut(seat, etcd=False)
    _later(world, fault, lambda: world.heal(seat))


def _etcd(world: World, fault: Fault) -> None:
    etcd = world.etcd
    match fault.kind:
        case "etcd_freeze" if etcd.answering:
            etcd.freeze()
            _later(world, fault, lambda: None if etcd.answering else etcd.thaw())
        case "etcd_down" if etcd.answering:
            etcd.down()
            _later(world, fault, lambda: None if etcd.answering else etcd.up())
        case "etcd_leader":
            etcd.elect_new_leader()
        case "watches_break":
            etcd.break_watches()
        case "compaction":
            etcd.compact(etcd.revision)
            etcd.break_watches()
        case "stale_lessor":
            etcd.stale_lessor = True
            _later(world, fault, lambda: setattr(etcd, "stale_lessor", False))
        case "lease_expires":
            # In the order of the nodes, so that the same pick means the same node as elsewhere.
            leased = [entry.lease_id for entry in etcd.select("nodes/") if entry.lease_id]
            if leased:
                etcd.expire_lease(leased[fault.pick % len(leased)])
        case "etcd_slow":
            # Each answer comes, and within its deadline.
            world.weather.slow, world.weather.slow_s = 1.0, SLOW_S
            _later(world, fault, lambda: setattr(world.weather, "slow", 0.0))
        case _:
            pass


def _gpu(world: World, fault: Fault) -> None:
    seats = list(world.nodes.values())
    machine = seats[fault.pick % len(seats)].machine
    assert machine is not None
    board = machine.gpus
    if not board.count:
        return
    if fault.kind == "gpu_unknown":
        board.hung = True
        board.tell()
        _later(world, fault, lambda: _answer(machine))
        return
    uuid = board.uuids[fault.pick % board.count]
    world.say(f"   {uuid}")
    board.tell(Sight(xids=(Xid(_XIDS[fault.kind], uuid),)))


def _answer(machine: Machine) -> None:
    machine.gpus.hung = False
    machine.gpus.tell()


def _weather(world: World, fault: Fault) -> None:
    weather = world.weather
    if fault.kind == "bad_store":
        weather.store_fault = 0.3
        _later(world, fault, lambda: setattr(weather, "store_fault", 0.0))
        return
    level = (fault.pick % 10 + 1) / 100
    weather.slow_s = 3.0 if fault.pick % 3 == 0 else 0.7
    weather.lost, weather.twice, weather.slow, weather.etcd_fault = 2 * level, level, level, level

    def clear() -> None:
        weather.lost = weather.twice = weather.slow = weather.etcd_fault = 0.0

    _later(world, fault, clear)
