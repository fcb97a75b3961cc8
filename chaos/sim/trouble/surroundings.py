"""Faults of the daemons' surroundings: the network, etcd, the store, disks, clocks."""

from __future__ import annotations

from dataclasses import replace

from chaos.sim.cluster.etcd import SimEtcd
from chaos.sim.cluster.programs import UNRESTORABLE
from chaos.sim.cluster.saves import files_below
from chaos.sim.cluster.seat import Seat
from chaos.sim.cluster.world import World
from chaos.sim.trouble.fault import Fault, every, later
from chaos.sim.trouble.strikes import leading
from supervisor.adapters.etcd.memory_store import Backup
from supervisor.contract import codec
from supervisor.contract.checkpoint import CommitRecord, CommitState
from supervisor.control.decide.checkpoints.collecting import ADOPTED

FLAP_S = 0.7
SLOW_S = 0.23
HOUR_MS = 3_600_000
RESTORED_S, NOTICED_S = 0.2, (2.5, 2.5, 7.0)
SPARED = 2


def cut(world: World, fault: Fault) -> None:
    """A host is cut off from etcd, from the supervisors, or from both."""
    seats = list(world.nodes.values())
    seat = seats[fault.pick % len(seats)]
    if fault.kind == "cut_supervisor_etcd":
        seat = leading(world, fault)
    world.say(f"   {seat.name}")
    if fault.kind == "cut_flapping":
        every(world, fault, 2 * FLAP_S, lambda: _flap(world, seat))
        return
    if fault.kind == "cut_one_way":
        _one_way(world, fault, seat)
        return
    if fault.kind != "cut_node_supervisors":
        world.cut(seat, etcd=True)
    if fault.kind in ("cut_node_supervisors", "cut_node_off"):
        world.cut(seat, etcd=False)
    later(world, fault, lambda: world.heal(seat))


def _flap(world: World, seat: Seat) -> None:
    world.cut(seat, etcd=True)
    world.cut(seat, etcd=False)
    world.loop.post(None, FLAP_S, lambda: world.heal(seat))


def _one_way(world: World, fault: Fault, seat: Seat) -> None:
    """Let a seat's requests to etcd take effect, without an answer."""
    client = seat.etcd
    if client is not None:
        client.unanswered = True
        later(world, fault, lambda: setattr(client, "unanswered", False))


def etcd(world: World, fault: Fault) -> None:
    """The whole of etcd, or some of its members."""
    store = world.etcd
    match fault.kind:
        case "etcd_freeze" if store.answering:
            store.freeze()
            later(world, fault, lambda: None if store.answering else store.thaw())
        case "etcd_down" if store.answering:
            store.down()
            later(world, fault, lambda: None if store.answering else store.up())
        case "etcd_lost" if store.answering:
            _lose_etcd(world, fault)
        case "etcd_restored":
            _restore_etcd(world, fault)
        case "etcd_full":
            store.full = True
            later(world, fault, lambda: setattr(store, "full", False))
        case "etcd_leader":
            store.elect_new_leader()
        case "etcd_minority":
            _strand(world, fault)
        case "etcd_slow":
            # Each answer comes, and within its deadline.
            world.weather.slow, world.weather.slow_s = 1.0, SLOW_S * world.pace
            later(world, fault, lambda: setattr(world.weather, "slow", 0.0))
        case "stale_lessor":
            store.stale_lessor = True
            later(world, fault, lambda: setattr(store, "stale_lessor", False))
        case "lease_expires":
            # In the order of the nodes, so that the same pick means the same node as elsewhere.
            leased = [entry.lease_id for entry in store.select("nodes/") if entry.lease_id]
            if leased:
                store.expire_lease(leased[fault.pick % len(leased)])
        case _:
            pass


def _lose_etcd(world: World, fault: Fault) -> None:
    """Etcd loses its data and comes back empty. No supervisor runs meanwhile, as operators are told."""
    _stop_supervisors(world)
    for seat in world.nodes.values() if fault.pick % 2 else ():
        world.kill(seat)
    world.lose_etcd()
    later(world, fault, lambda: _bring_back(world))


def _restore_etcd(world: World, fault: Fault) -> None:
    """Restore a snapshot of etcd.

    Supervisors refuse to work on it; then etcd is started empty, as the docs say.
    """
    backup = world.etcd.backup()

    def restore() -> None:
        if world.healed or not world.etcd.answering or not _is_noticed(world, backup):
            world.say("   nobody restores it")
            return
        _stop_supervisors(world)
        world.say(f"   etcd goes back to revision {backup.revision}")
        world.restore_etcd(backup)
        world.loop.post(None, RESTORED_S, lambda: _bring_back(world))
        world.loop.post(None, world.pace * NOTICED_S[fault.pick % len(NOTICED_S)], do_it_right)

    def do_it_right() -> None:
        if world.rolled_back:
            _lose_etcd(world, replace(fault, for_s=RESTORED_S))

    later(world, fault, restore)


def _is_noticed(world: World, backup: Backup) -> bool:
    """Whether every supervisor has seen, and has on its disk, how much further it had come."""
    marks = [each.mark for each in world.vows.disks.values()]
    return all(mark is not None and mark.revision > backup.revision for mark in marks)


def _stop_supervisors(world: World) -> None:
    for seat in world.supervisors:
        seat.kept = False
        world.kill(seat)


def _bring_back(world: World) -> None:
    if not world.etcd.answering:
        world.etcd.up()
    for seat in world.supervisors:
        seat.kept = True
        if not seat.running:
            world.restart_soon(seat)


def watches(world: World, fault: Fault) -> None:
    """The streams from etcd break, are late, or have lost their history."""
    store = world.etcd
    match fault.kind:
        case "watches_break":
            store.break_watches()
        case "watches_lag":
            world.weather.watch_lag_s = min(fault.for_s, 2.0)
            later(world, fault, lambda: setattr(world.weather, "watch_lag_s", 0.0))
        case "compaction":
            store.compact(store.revision)
            store.break_watches()
        case _:
            _compact_behind(world, fault)


def _strand(world: World, fault: Fault) -> None:
    """An old leader of etcd, cut off from the other members, goes on answering those who talk to it."""
    seats = [*world.nodes.values(), *world.supervisors]
    first = fault.pick % len(seats)
    stranded = [seats[(first + offset) % len(seats)].etcd for offset in range(1 + fault.pick % 3)]
    clients: list[SimEtcd] = [client for client in stranded if client is not None]

    def back() -> None:
        for client in clients:
            client.stale = False

    for client in clients:
        client.stale = True
    later(world, fault, back)


def _compact_behind(world: World, fault: Fault) -> None:
    """The history that a watcher has not seen yet is gone when it comes back."""
    seats = [*world.nodes.values(), *world.supervisors]
    seat = seats[fault.pick % len(seats)]
    world.say(f"   {seat.name}")
    world.cut(seat, etcd=True)

    def back() -> None:
        world.etcd.compact(world.etcd.revision)
        world.etcd.break_watches()
        world.heal(seat)

    later(world, fault, back)


def bad(world: World, fault: Fault) -> None:
    """The network, or the store."""
    if fault.kind == "bad_store":
        store(world, fault)
    else:
        _network(world, fault)


def _network(world: World, fault: Fault) -> None:
    """Messages are lost, late, or come twice."""
    sky = world.weather
    level = (fault.pick % 10 + 1) / 100
    sky.slow_s = 3.0 if fault.pick % 3 == 0 else 0.7
    sky.lost, sky.twice, sky.slow, sky.etcd_fault = 2 * level, level, level, level

    def clear() -> None:
        sky.lost = sky.twice = sky.slow = sky.etcd_fault = 0.0

    later(world, fault, clear)


def store(world: World, fault: Fault) -> None:
    """The checkpoint store fails, is slow, or gives back other bytes than it was given."""
    sky = world.weather
    match fault.kind:
        case "store_slow":
            sky.store_lag_s = 1.5
            later(world, fault, lambda: setattr(sky, "store_lag_s", 0.0))
        case "store_rot":
            _rot(world, fault)
        case _:
            sky.store_fault = 3.0 if fault.kind == "store_down" else 0.3
            later(world, fault, lambda: setattr(sky, "store_fault", 0.0))


def _rot(world: World, fault: Fault) -> None:
    """A committed checkpoint goes bad on the disk; some that it descends from are whole."""
    records = [codec.decode(CommitRecord, entry.value) for entry in world.etcd.select("commits/")]
    whole = [
        each for each in records if each.state is CommitState.COMMITTED and each.path not in world.rotten
    ]
    mine = [each for each in whole if each.job_uuid == whole[-1].job_uuid]
    of_job = sorted(mine, key=lambda each: each.ref)
    # What was imported descends from nothing.
    first = max((at for at, each in enumerate(of_job) if each.incarnation == ADOPTED), default=0)
    if len(of_job) - first <= SPARED:
        return
    victim = of_job[-1 - fault.pick % 2]
    kept = files_below(world.stored(), victim.path)
    names = [f"{victim.path}/{name}" for name in kept if ".data" in name or name.endswith(".bin")]
    if names:
        world.say(f"   {names[0]} rots")
        world.rotten.add(victim.path)
        world.damage(names[0])


def checkpoint(world: World, fault: Fault) -> None:
    """No program can restore a job's newest checkpoint, nor what it saves for a while; but all is whole."""
    jobs = world.training.jobs()
    job = jobs[fault.pick % len(jobs)]
    training, last_words = world.training, UNRESTORABLE[fault.pick % len(UNRESTORABLE)]
    records = [codec.decode(CommitRecord, entry.value) for entry in world.etcd.select(f"commits/{job}/")]
    for ref in sorted(each.ref for each in records if each.state is CommitState.COMMITTED)[-1:]:
        world.say(f"   {job} cannot be restored from {ref}")
        training.unrestorable[job, ref.generation, ref.step] = last_words
    if fault.kind == "checkpoints_bad":
        world.say(f"   nor from what it saves for {fault.for_s:.2f} s")
        training.spoilt[job] = last_words
        later(world, fault, lambda: training.heal(job))
    for program in [each for each in training.alive(job) if each.address in each.servers][:1]:
        program.machine.kill(program.row)


def disk(world: World, fault: Fault) -> None:
    """A node's disk is full, or too full for a checkpoint; has lost the agent's state, or shows an older."""
    seats = list(world.nodes.values())
    seat = seats[fault.pick % len(seats)]
    machine = seat.machine
    assert machine is not None
    world.say(f"   {seat.name}")
    if fault.kind in ("disk_full", "disk_cramped"):
        setattr(machine, fault.kind, True)
        later(world, fault, lambda: setattr(machine, fault.kind, False))
        return
    world.kill(seat)
    if fault.kind == "disk_lost":
        machine.state_file = None
    elif len(machine.records) > 1 and machine.saved is not None:
        # While the machine is off nothing but the disk could tell: see decision 0026.
        older = list(machine.records)[:-1]
        machine.state_file = older[-1 - (fault.pick // len(seats)) % len(older)]


def clock(world: World, fault: Fault) -> None:
    """Set a wall clock wrong by an hour, and right again."""
    seats = [*world.nodes.values(), *world.supervisors]
    seat = seats[fault.pick % len(seats)]
    by_ms = HOUR_MS if fault.pick % 2 else -HOUR_MS
    seat.clock.set_wall(by_ms)
    later(world, fault, lambda: seat.clock.set_wall(-by_ms))
