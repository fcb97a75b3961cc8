"""The documents of the API about nodes: requests of operators, and answers that `supervisorctl` shows."""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.contract.observed import GpuBeat


@dataclass(frozen=True, slots=True)
class CordonRequest:
    """Place no new task on this node; with `drain`, move its tasks away.

    `since`: a revision of etcd that the caller knew before it asked first. A drain whose cordon was lifted
    after that is not repeated. 0: the leader takes its own.
    """

    node: str
    reason: str = ""
    drain: bool = False
    since: int = 0


@dataclass(frozen=True, slots=True)
class UncordonRequest:
    """Allow tasks on this node again; with a `gpu` (UUID or index), on that quarantined GPU of it."""

    node: str
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class DismissRequest:
    """End this life of a pool's node, with all of its tasks. Another agent that has its name by now stays."""

    node: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The action on a node, or the reason why none was needed."""

    node: str
    detail: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node.

    Attributes:
        state: ready, suspected, lost, cordoned, draining (it has tasks), drained (it has none) or gone.
        gpus: the number of GPUs in its agent's report.
        tasks: tasks that are assigned to it, and tasks that may still be alive there.
        pid: its agent's; 0 for none, and when that one is known to be dead.
        quarantined: its quarantined GPUs, with the reasons.
        runtime: process or docker.
    """

    node: str
    state: str
    incarnation: str
    host: str
    beat_age_ms: int
    cpus: float
    memory_bytes: int
    gpus: int
    labels: dict[str, str] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    pid: int = 0
    reason: str = ""
    gpus_used: int = 0
    quarantined: tuple[str, ...] = ()
    runtime: str = ""


@dataclass(frozen=True, slots=True)
class NodeList:
    """`supervisorctl nodes`, at a revision of etcd."""

    nodes: tuple[NodeView, ...]
    revision: int = 0


@dataclass(frozen=True, slots=True)
class GpusRequest:
    """Ask for the GPUs of a node; without one, of all nodes."""

    node: str = ""


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU as its node's agent sees it.

    Attributes:
        state: ok, unknown, faulty, or quarantined.
        reason: the reason of its state, or the newest fault that a task was restarted for.
        action: the remedy of the newest fault.
        tasks: tasks that have it, or may still have it.
        load: its load in the last beat of its node; None without one.
    """

    node: str
    index: int
    uuid: str
    name: str
    memory_bytes: int
    state: str
    reason: str = ""
    action: str = ""
    fault: int = 0
    numa: int = -1
    peers: tuple[str, ...] = ()
    mig: bool = False
    tasks: tuple[str, ...] = ()
    load: GpuBeat | None = None


@dataclass(frozen=True, slots=True)
class GpuNodeView:
    """NVML's report on a node as a whole. `problem`: the reason why there is none."""

    node: str
    driver: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class GpuList:
    """`supervisorctl gpus`."""

    nodes: tuple[GpuNodeView, ...]
    gpus: tuple[GpuView, ...]
