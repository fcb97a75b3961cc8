"""Derives a run from a seed: the cluster's shape, its jobs, its kinds of faults and how often each comes.

Swarm testing: each seed leaves most families of faults out. The remaining ones then meet more often than if
every run had a little of everything.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from chaos.sim.cluster.fencing import Keeper
from chaos.sim.cluster.loop import MOST_STEPS
from chaos.sim.cluster.power import Device
from chaos.sim.cluster.world import Layout
from chaos.sim.trouble.schedule import FAMILIES, KINDS
from supervisor.contract.timing import DEFAULT, FAST, Timing

ROOMY, ROOMY_NODES = 3, 5
PLENTY_CPUS, SCARCE_CPUS = 8.0, 2.0
BOOKED = 0.6
"""The share of seeds with two jobs that do not share GPUs in which they ask for CPUs and memory."""
CONTAINERS = 0.3
"""The share of seeds with tasks in containers."""
PROMISED, PROMISE_S = 0.15, (2.0, 6.0, 15.0)
"""The share of seeds with promises for an etcd that is gone (rule 11), and the times of a promise."""
SLOW_DISKS, DISK_S = 0.3, (0.002, 0.02, 0.15)
"""The share of seeds with slow disks, and the longest times of work that daemons give to threads."""
FENCED, DEVICES = 0.3, (Device.WORKS, Device.WORKS, Device.LATE, Device.BROKEN)
"""The share of seeds with fence devices, and how these behave."""
KEPT, KEEPERS = 0.6, (Keeper.WORKS, Keeper.WORKS, Keeper.LATE)
"""The share of seeds with nodes that fence what a stopped agent has left, and how they do it."""


SHARES = (0.0, 0.2, 0.5)
"""The share of the traits that a job may have, as the seed chooses."""


class Length(Enum):
    """The least and longest time of faults, in seconds of a fast cluster; the most faults; the shares of
    traits that jobs have.

    Rare traits find most where many of them meet: hence DENSE.
    """

    FULL = (6.0, 14.0), 11, SHARES
    DENSE = (6.0, 14.0), 11, (0.5,)
    SHORT = (1.5, 4.0), 4, SHARES
    BRIEF = (0.5, 1.5), 2, SHARES
    LONG = (217.0, 230.0), 11, SHARES
    """Longer than the ten minutes for which leaders keep things, in the default profile."""

    def __init__(self, span_s: tuple[float, float], most_faults: int, shares: tuple[float, ...]) -> None:
        self.span_s, self.most_faults, self.shares = span_s, most_faults, shares

    @property
    def most_steps(self) -> int:
        """Callbacks of a run; with more, something spins."""
        return 2 * MOST_STEPS if self is Length.LONG else MOST_STEPS

    @property
    def words(self) -> tuple[str, ...]:
        """Its words on a command line."""
        return () if self is Length.FULL else (f"--{self.name.lower()}",)


@dataclass(frozen=True, slots=True)
class Shape:
    """One seed's run.

    Attributes:
        table: how often each kind of fault comes.
        families: those that the seed has enabled; empty for a plain run.
        second: another job shares the nodes.
        watched: the jobs are watched closely, so that a hang is found within the run.
        crowded: the nodes have room for little more than the jobs need.
        booked: the tasks of the first two jobs ask for CPUs and memory, so that few fit on a node.
        docker: tasks are in containers.
        promise_s: for so long supervisors promise tasks to live on without etcd; 0: not at all.
        disk_s: so long at most takes what daemons give to threads; 0: no time.
        device: how the fence devices behave.
        keeper: what a node does where its agent is stopped.
        served: the first job has two parameter servers, and its sessions survive their loss.
        other_saver: the last of the first job's workers saves, of which there are two at least.
    """

    supervisors: int
    nodes: int
    timing: Timing = FAST
    gpus: int = 0
    length: Length = Length.FULL
    table: Mapping[str, int] = field(default_factory=lambda: KINDS)
    families: tuple[str, ...] = ()
    second: bool = False
    watched: bool = False
    crowded: bool = False
    booked: bool = False
    docker: bool = False
    promise_s: float = 0.0
    disk_s: float = 0.0
    device: Device = Device.NONE
    keeper: Keeper = Keeper.NONE
    served: bool = False
    other_saver: bool = False

    @property
    def layout(self) -> Layout:
        """The sizes of its cluster."""
        return Layout(
            self.supervisors,
            self.nodes,
            self.gpus,
            self.promise_s,
            self.timing,
            SCARCE_CPUS if self.crowded else PLENTY_CPUS,
            self.docker,
            self.disk_s,
            self.device,
            self.keeper,
        )

    @property
    def pace(self) -> float:
        """The factor by which this cluster is slower than a fast one."""
        return self.timing.d_ms / FAST.d_ms


def plain(seed: int) -> Shape:
    """One job on a fast cluster, for a script of faults."""
    return Shape(supervisors=3 if seed % 7 == 0 else 2, nodes=_nodes(seed))


def swarm(seed: int, length: Length = Length.FULL) -> Shape:
    """The shape of a run that has a seed and no script."""
    rng = random.Random(f"swarm {seed}")
    gpus = rng.choice((0, 0, 0, 0, 2))
    share = rng.choice((0.15, 0.3, 0.5))
    families = [name for name in FAMILIES if rng.random() < share and (gpus or name != "gpus")]
    families = families or [rng.choice([name for name in FAMILIES if name != "gpus"])]
    table = {
        kind: weight * rng.choice((1, 1, 3, 8))
        for name in families
        for kind, weight in FAMILIES[name].items()
        if rng.random() < 0.7
    }
    table = table or dict(FAMILIES[families[0]])
    timing = rng.choice((FAST, DEFAULT) if length is not Length.LONG else (DEFAULT,))
    crowded = not gpus and rng.random() < 0.2
    disks = random.Random(f"disks {seed}")
    shape = Shape(
        supervisors=rng.choice((1, 2, 2, 3)),
        nodes=4 if gpus else _nodes(seed),
        timing=timing,
        gpus=gpus,
        length=length,
        table=table,
        families=tuple(families),
        second=bool(gpus) or (not crowded and rng.random() < 0.25),
        watched="hangs" in families,
        crowded=crowded,
        docker=rng.random() < CONTAINERS,
        promise_s=rng.choice(PROMISE_S) * timing.d_ms / FAST.d_ms if rng.random() < PROMISED else 0.0,
        disk_s=disks.choice(DISK_S) if disks.random() < SLOW_DISKS else 0.0,
    )
    booked = shape.second and not gpus and random.Random(f"booked {seed}").random() < BOOKED
    power = random.Random(f"power {seed}")
    device = power.choice(DEVICES) if power.random() < FENCED else Device.NONE
    kept = random.Random(f"keeper {seed}")
    keeper = kept.choice(KEEPERS) if kept.random() < KEPT else Keeper.NONE
    return replace(shape, booked=booked, device=device, keeper=keeper)


def _nodes(seed: int) -> int:
    """On five nodes an evaluator has one to itself, which may be lost without anybody else."""
    if seed % 6 == ROOMY:
        return ROOMY_NODES
    return 4 if seed % 5 == 0 else 3
