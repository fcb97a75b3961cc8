"""The kinds of faults, by family, and a seeded schedule of them.

Each fault ends, by itself or with all others.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

from chaos.sim.cluster.machine import PLENTY
from chaos.sim.cluster.world import World
from chaos.sim.trouble import strikes, surroundings
from chaos.sim.trouble.fault import FATAL, SCRIPTED, Fault

__all__ = [
    "FAMILIES",
    "FATAL",
    "GPU_KINDS",
    "KINDS",
    "SCRIPTED",
    "Fault",
    "apply",
    "heal_all",
    "schedule",
]

GPU_KINDS: dict[str, int] = {"gpu_restart": 12, "gpu_reset": 16, "gpu_gone": 6, "gpu_unknown": 10}
"""Kind of GPU fault -> its weight, for clusters with GPUs."""

FAMILIES: dict[str, dict[str, int]] = {
    "tasks": {"task_exit": 6, "task_kill": 6, "task_freeze": 3, "task_stuck": 3, "task_early": 1},
    "words": {"task_words": 6, "task_signal": 2, "task_oom": 2},
    "runtime": {"runtime_away": 4, "runtime_refuses": 3, "runtime_stillborn": 2, "runtime_scarce": 2},
    "loops": {"task_loop": 3, "agent_loop": 3, "supervisor_loop": 2, "task_slow": 2, "task_late": 2},
    "launchers": {"launcher_kill": 3, "launcher_freeze": 3},
    "agents": {"agent_kill": 5, "agent_freeze": 5, "agent_down": 3, "agents_all": 1},
    "disobedience": {"agent_deaf": 4},
    "twins": {"agent_twin": 4},
    "nodes": {"node_kill": 4, "node_freeze": 4, "nodes_half": 1},
    "supervisors": {"supervisor_kill": 5, "supervisor_freeze": 4, "hand_over": 2, "supervisors_all": 1},
    "upgrades": {"upgrade": 2},
    "effects": {"effect_crash": 8, "effect_freeze": 3},
    "partitions": {
        "cut_node_etcd": 4,
        "cut_node_supervisors": 4,
        "cut_node_off": 5,
        "cut_supervisor_etcd": 3,
        "cut_flapping": 2,
        "cut_one_way": 2,
    },
    "etcd": {
        "etcd_freeze": 3,
        "etcd_down": 2,
        "etcd_leader": 2,
        "etcd_slow": 1,
        "etcd_full": 2,
        "etcd_minority": 4,
    },
    "watches": {"watches_break": 2, "watches_lag": 2, "compaction": 2, "compaction_behind": 2},
    "leases": {"stale_lessor": 2, "lease_expires": 3},
    "network": {"bad_network": 6},
    "store": {"bad_store": 4, "store_slow": 2, "store_down": 2, "store_rot": 3},
    "disks": {"disk_full": 3, "disk_lost": 2, "disk_old": 3, "disk_cramped": 4},
    "clocks": {"clock_jump": 3},
    "operator": {
        "operator_restart": 2,
        "operator_restart_task": 2,
        "operator_from": 2,
        "operator_stop": 2,
        "operator_save": 2,
        "operator_start": 2,
        "operator_resume": 2,
        "operator_fresh": 1,
        "operator_pin": 2,
        "operator_drain": 2,
        "operator_cordon": 1,
        "operator_uncordon": 3,
    },
    "arrivals": {"operator_submit": 3, "node_new": 3},
    "inspection": {"operator_verify": 4, "operator_collect": 4, "operator_reshape": 2, "operator_import": 4},
    "hangs": {"task_hang": 2},
    "ends": {"job_ends": 1},
    "suspects": {"node_bad": 4, "checkpoint_bad": 3, "checkpoints_bad": 2},
    "gpus": GPU_KINDS,
    "disasters": {"etcd_lost": 2, "etcd_restored": 2},
}
"""Family -> kind of fault -> how often it comes. `hangs` need jobs that are watched closely; `suspects`
come back until the leader blames the right node or checkpoint."""

_PLAIN = ("tasks", "launchers", "agents", "nodes", "supervisors", "partitions", "etcd", "watches", "leases")
KINDS: dict[str, int] = {
    kind: weight
    for family in (*_PLAIN, "network", "store", "operator")
    for kind, weight in FAMILIES[family].items()
}
"""Kind of fault -> its weight, for a cluster of any shape."""

ACTIONS: dict[str, strikes.Strike] = {
    "task": strikes.task,
    "job": strikes.job,
    "launcher": strikes.launcher,
    "agent": strikes.agent,
    "agents": strikes.agent,
    "node": strikes.node,
    "nodes": strikes.node,
    "supervisor": strikes.supervisor,
    "supervisors": strikes.supervisor,
    "hand": strikes.hand_over,
    "upgrade": strikes.upgrade,
    "effect": strikes.at_effect,
    "gpu": strikes.gpu,
    "runtime": strikes.runtime,
    "cut": surroundings.cut,
    "etcd": surroundings.etcd,
    "watches": surroundings.watches,
    "compaction": surroundings.watches,
    "stale": surroundings.etcd,
    "lease": surroundings.etcd,
    "bad": surroundings.bad,
    "store": surroundings.store,
    "checkpoint": surroundings.checkpoint,
    "checkpoints": surroundings.checkpoint,
    "disk": surroundings.disk,
    "clock": surroundings.clock,
}
"""First word of a kind -> the function that carries it out."""

COUNTS = (1, 2, 3, 4, 5, 6, 8, 11)


def schedule(
    rng: random.Random,
    length_s: float,
    table: Mapping[str, int] = MappingProxyType(KINDS),
    *,
    pace: float = 1.0,
    most: int = max(COUNTS),
) -> tuple[Fault, ...]:
    """At most `most` faults in `length_s`, some of them close together. `pace`: how slow the cluster is."""
    count = rng.choice([each for each in COUNTS if each <= most])
    kinds, weights = list(table), list(table.values())
    faults = []
    at_s, pick = 0.0, 0
    for _ in range(count):
        # Trouble comes twice to the same place more often than chance would have it.
        pick = pick if rng.random() < 0.5 else rng.randrange(1000)
        at_s = rng.uniform(0, length_s) if rng.random() < 0.6 else at_s + pace * rng.uniform(0.0, 0.6)
        kind = rng.choices(kinds, weights)[0]
        for_s = pace * rng.choice((rng.uniform(0.05, 1.0), rng.uniform(0.5, 4.5), rng.uniform(3.5, 9.0)))
        faults.append(Fault(min(at_s, length_s), kind, pick, for_s))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def apply(world: World, fault: Fault) -> None:
    """Make it happen now, and end later."""
    world.say(f"** {fault.kind} for {fault.for_s:.2f} s")
    ACTIONS[fault.kind.split("_")[0]](world, fault)


def heal_all(world: World) -> None:
    """The end of every fault."""
    world.healed = True
    world.at_effect = None
    world.weather.clear()
    world.etcd.stale_lessor = world.etcd.full = False
    world.training.spoilt.clear()
    for twin in world.twins:
        world.retire(twin)
    if not world.etcd.answering:
        world.etcd.up()
    for seat in (*world.supervisors, *world.nodes.values()):
        if seat.etcd is not None:
            seat.etcd.deaf = seat.etcd.stale = seat.etcd.unanswered = False
        world.heal(seat)
        seat.kept = True
        machine = seat.machine
        if machine is not None:
            machine.disk_full = machine.disk_cramped = False
            machine.trouble, machine.free_bytes = None, PLENTY
            if machine.gpus.hung:
                strikes.answer(machine)
            for row in list(machine.table.values()):
                if row.frozen:
                    machine.thaw(row)
        world.thaw_quietly(seat)
        if machine is not None and not machine.up:
            world.power_on(seat)
        elif not seat.running:
            world.restart_soon(seat)
    for program in world.training.alive():
        program.slow = 1.0
