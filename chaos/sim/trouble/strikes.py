"""Faults of processes and machines: programs, launchers, daemons, nodes, GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from signal import SIGSEGV

from agent.core.gpus.health import Sight, Xid
from chaos.sim.cluster.loop import SimProcess
from chaos.sim.cluster.machine import PLENTY, Machine, MachineProcess, Trouble
from chaos.sim.cluster.programs import CRASHES, ENDINGS, Program
from chaos.sim.cluster.seat import Seat
from chaos.sim.cluster.world import World
from chaos.sim.trouble.fault import SCRIPTED, Fault, every, later

LOOK_S = 0.05
LOOP_S = 0.45
LATER_S = 0.2
ROLL_S = 0.6
SLOW = 5.0
EFFECTS = 40
RESTS_AFTER = 3
LAST_STEPS = 10
XIDS = {"gpu_restart": 94, "gpu_reset": 48, "gpu_gone": 79}


def task(world: World, fault: Fault) -> None:
    """One program, wherever it runs."""
    alive = [each for each in world.training.alive() if not each.row.doomed and not each.row.frozen]
    if fault.kind == "task_early":
        alive = [each for each in alive if each.attempt.task.role == "ps"]
    if fault.kind in (*SCRIPTED, "task_slow"):
        # Before its first step a program may take as long as it likes, unless the job says otherwise.
        alive = [each for each in alive if each.trains and each.steps]
    if not alive:
        return
    program = alive[fault.pick % len(alive)]
    machine, row = program.machine, program.row
    world.say(f"   {program.attempt} on {machine.name}")
    match fault.kind:
        case "task_exit" | "task_early" | "task_words" | "task_signal":
            program.crash(*_last_words(fault, program))
        case "task_rest" | "task_spin":
            _rest(world, fault)
        case "task_loop":
            _crash_for_a_while(world, fault, program)
        case "task_late":
            world.training.late_s[program.attempt.task] = world.loop.time() + fault.for_s
            machine.kill(row)
        case "task_slow":
            program.slow = SLOW
            later(world, fault, lambda: setattr(program, "slow", 1.0))
        case "task_kill":
            machine.kill(row)
        case "task_oom":
            machine.starved.add((row.pid, row.start_ticks))
            machine.kill(row)
            world.observed("starved", program)
        case "task_freeze" | "task_stuck":
            machine.freeze(row, stuck=fault.kind == "task_stuck")
            _seems_hung(world, row)
            later(world, fault, lambda: machine.thaw(row))
        case _:
            program.hung = True
            world.observed("hung", program)


def _last_words(fault: Fault, program: Program) -> tuple[int, str]:
    """The code that a program ends with by itself, and what it has to say."""
    match fault.kind:
        case "task_exit":
            return 1, CRASHES[program.row.pid % len(CRASHES)]
        case "task_words":
            return 1, list(ENDINGS.values())[fault.pick // 7 % len(ENDINGS)]
        case "task_signal":
            return -SIGSEGV, ""
        case _:
            return 0, ""


def _seems_hung(world: World, row: MachineProcess) -> None:
    """Let the checkers expect a hang of a frozen process, if its job is watched for steps."""
    for program in world.training.alive():
        if world.watched and program.row is row:
            world.observed("hung", program)


def _rest(world: World, fault: Fault) -> None:
    """Every program that trains pauses, also each that starts meanwhile, once it has made a few steps."""
    end_s = world.loop.time() + fault.for_s

    def look() -> None:
        for program in world.training.alive():
            if program.trains and len(program.steps) >= RESTS_AFTER:
                program.rests_until_s, program.spins = end_s, fault.kind == "task_spin"

    every(world, fault, LOOK_S, look)


def _crash_for_a_while(world: World, fault: Fault, first: Program) -> None:
    """Each attempt of this task ends with an error as soon as it is there."""
    last_words = CRASHES[first.row.pid % len(CRASHES)]

    def look() -> None:
        for program in world.training.alive():
            if program.attempt.task == first.attempt.task and not program.row.doomed:
                program.crash(1, last_words)

    every(world, fault, LOOK_S, look)


def job(world: World, fault: Fault) -> None:
    """A job's training has a few steps left."""
    names = world.training.jobs()
    name = names[fault.pick % len(names)]
    newest = max((each.last_step for each in world.training.alive(name)), default=0)
    last_step = min(world.tempers[name].last_step, max(newest, 0) + LAST_STEPS)
    world.say(f"   {name} ends at step {last_step}")
    world.tempers[name] = replace(world.tempers[name], last_step=last_step)


def launcher(world: World, fault: Fault) -> None:
    """One launcher, whatever it does."""
    found = [
        (seat, launcher)
        for seat in world.nodes.values()
        for launcher in seat.table.by_id.values()
        if not launcher.row.doomed and not launcher.row.frozen
    ]
    if not found:
        return
    seat, chosen = found[fault.pick % len(found)]
    machine = seat.machine
    assert machine is not None
    world.say(f"   {chosen.row.process.name}")
    if fault.kind == "launcher_kill":
        machine.kill(chosen.row)
    else:
        machine.freeze(chosen.row, stuck=False)
        later(world, fault, lambda: machine.thaw(chosen.row))


def agent(world: World, fault: Fault) -> None:
    """One agent, or all of them."""
    seats = list(world.nodes.values())
    seat = seats[fault.pick % len(seats)]
    match fault.kind:
        case "agent_freeze":
            _freeze(world, fault, seat)
        case "agent_down":
            world.stop(seat)
            later(world, fault, lambda: _bring_back(world, seat))
        case "agent_loop":
            every(world, fault, LOOP_S, lambda: world.kill(seat))
        case "agent_deaf":
            _deafen(world, fault, seat)
        case "agent_twin":
            twin = world.add_twin(seat)
            later(world, fault, lambda: world.retire(twin))
        case "agents_all":
            for each in seats:
                world.kill(each)
        case _:
            world.kill(seat)


def _bring_back(world: World, seat: Seat) -> None:
    seat.kept = True
    world.restart_soon(seat)


def _deafen(world: World, fault: Fault, seat: Seat) -> None:
    """Alive and disobedient: it hears of nothing that the leader writes, and all else goes on."""
    client = seat.etcd
    if client is not None:
        client.deaf = True
        later(world, fault, lambda: setattr(client, "deaf", False))


def _freeze(world: World, fault: Fault, seat: Seat) -> None:
    process = seat.process
    if process is not None and process.alive:
        world.freeze(seat)
        later(world, fault, lambda: world.thaw(seat) if seat.process is process else None)


def node(world: World, fault: Fault) -> None:
    """One machine, or half of them; or one that was not there before."""
    if fault.kind == "node_new":
        world.start(world.add_node())
        return
    seats = list(world.nodes.values())
    first = fault.pick % len(seats)
    count = len(seats) // 2 if fault.kind == "nodes_half" else 1
    for offset in range(count):
        _one_node(world, fault, seats[(first + offset) % len(seats)])


def _one_node(world: World, fault: Fault, seat: Seat) -> None:
    machine = seat.machine
    assert machine is not None
    if not machine.up:
        return
    if fault.kind == "node_bad":
        _fail_there(world, fault, machine)
        return
    if fault.kind != "node_freeze":
        world.power_off(seat)
        later(world, fault, lambda: world.power_on(seat))
        return
    rows = [row for row in machine.table.values() if not row.frozen]
    for row in rows:
        machine.freeze(row, stuck=True)
        _seems_hung(world, row)
    _freeze(world, fault, seat)

    def thaw() -> None:
        for row in rows:
            machine.thaw(row)

    later(world, fault, thaw)


def _fail_there(world: World, fault: Fault, machine: Machine) -> None:
    """A program that works elsewhere ends on this machine before its first step, now and for a while."""
    world.say(f"   programs fail on {machine.name}")
    last_words = CRASHES[fault.pick % len(CRASHES)]
    here = [each for each in world.training.alive() if each.machine is machine]
    for program in here[:1]:
        machine.kill(program.row)

    def look() -> None:
        for program in world.training.alive():
            # In one generation its servers fail first, in the next those that train.
            late = (program.attempt.generation + program.trains) % 2
            if world.loop.time() - program.started_s < late * LATER_S:
                continue
            if program.machine is machine and not program.steps and not program.row.doomed:
                program.crash(1, last_words)

    every(world, fault, LOOK_S, look)


def supervisor(world: World, fault: Fault) -> None:
    """Mostly the leader, or all of them."""
    seat = leading(world, fault)
    match fault.kind:
        case "supervisor_freeze":
            _freeze(world, fault, seat)
        case "supervisor_loop":
            every(world, fault, LOOP_S, lambda: world.kill(leading(world, fault)))
        case "supervisors_all":
            for each in world.supervisors:
                world.kill(each)
        case _:
            world.kill(seat)


def leading(world: World, fault: Fault) -> Seat:
    """Mostly the leader: the others do nothing that could go wrong."""
    leader = world.leader()
    if leader is not None and fault.pick % 4:
        return leader
    return world.supervisors[fault.pick % len(world.supervisors)]


def hand_over(world: World, fault: Fault) -> None:
    """A supervisor is stopped in good order."""
    seat = leading(world, fault)
    if seat.control is not None and seat.process is not None:
        done = world.loop.spawn(seat.process, seat.control.hand_over())
        done.add_done_callback(lambda each: None if each.cancelled() else each.exception())


def upgrade(world: World, fault: Fault) -> None:
    """Every daemon is restarted, one after another, as an upgrade does; launchers and tasks go on."""
    seats = [*world.supervisors, *world.nodes.values()]
    first = fault.pick % len(seats)
    for number, seat in enumerate((*seats[first:], *seats[:first])):
        world.loop.post(None, number * ROLL_S * world.pace, partial(world.kill, seat))


def at_effect(world: World, fault: Fault) -> None:
    """An agent or a supervisor is killed, or frozen, right before or after one of its next effects."""
    left = [1 + fault.pick % EFFECTS]
    agents = fault.pick % 2 == 0

    def strike(process: SimProcess, point: str) -> None:
        seat = world.seat_of(process)
        if seat is None or (seat.machine is not None) is not agents:
            return
        left[0] -= 1
        if left[0]:
            return
        world.at_effect = None
        world.say(f"** {process.name} at {point}")
        if fault.kind == "effect_crash":
            world.kill(seat)
        else:
            _freeze(world, fault, seat)

    world.at_effect = strike
    later(world, fault, lambda: setattr(world, "at_effect", None) if world.at_effect is strike else None)


def gpu(world: World, fault: Fault) -> None:
    """One GPU, or the driver of a node."""
    seats = list(world.nodes.values())
    machine = seats[fault.pick % len(seats)].machine
    assert machine is not None
    board = machine.gpus
    if not board.count:
        return
    if fault.kind == "gpu_unknown":
        board.hung = True
        board.tell()
        later(world, fault, lambda: answer(machine))
        return
    uuid = board.uuids[fault.pick % board.count]
    world.say(f"   {uuid}")
    board.tell(Sight(xids=(Xid(XIDS[fault.kind], uuid),)))


def answer(machine: Machine) -> None:
    """The driver of a machine answers again."""
    machine.gpus.hung = False
    machine.gpus.tell()


def runtime(world: World, fault: Fault) -> None:
    """A machine has little memory; or it makes no launchers, or none that live, while one is needed."""
    seats = list(world.nodes.values())
    machine = seats[fault.pick % len(seats)].machine
    assert machine is not None
    world.say(f"   {machine.name}")
    if fault.kind == "runtime_scarce":
        machine.free_bytes = 0
        later(world, fault, lambda: setattr(machine, "free_bytes", PLENTY))
        return
    machine.trouble = Trouble(fault.kind.removeprefix("runtime_"))
    later(world, fault, lambda: setattr(machine, "trouble", None))
    rows = [each.launcher.row for each in world.training.alive() if each.machine is machine]
    for row in rows[:1]:
        machine.kill(row)


Strike = Callable[[World, Fault], None]
