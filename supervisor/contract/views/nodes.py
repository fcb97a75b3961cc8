"""The documents of the API about nodes: what operators ask of them, and what `supervisorctl` shows."""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.contract.observed import GpuBeat


@dataclass(frozen=True, slots=True)
class CordonRequest:
    """No new task goes to this node; with `drain`, those that it has move away."""

    node: str
    reason: str = ""
    drain: bool = False


@dataclass(frozen=True, slots=True)
class UncordonRequest:
    """Tasks may go to this node again; with a `gpu` (UUID or index), to that quarantined GPU of it."""

    node: str
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What was done about a node, or why nothing had to be."""

    node: str
    detail: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node.

    Attributes:
        state: ready, suspected, lost, cordoned, draining (it has tasks), drained (it has none) or gone.
        gpus: how many its agent has told of.
        tasks: those that are to run there, and those that may be alive there still.
        quarantined: its GPUs that get no task, and why.
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
    """`supervisorctl nodes`."""

    nodes: tuple[NodeView, ...]


@dataclass(frozen=True, slots=True)
class GpusRequest:
    """The GPUs of a node; of all without one."""

    node: str = ""


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU as its node's agent knows it.

    Attributes:
        state: ok, unknown, faulty, or quarantined.
        reason: of its state, or of the newest fault that a task was restarted for.
        action: what the newest fault asks for.
        tasks: those that have it, or may have it still.
        load: how hard it works, as the last beat of its node has it; None without one.
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
    """What NVML says of a node as a whole. `problem`: why it says nothing."""

    node: str
    driver: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class GpuList:
    """`supervisorctl gpus`."""

    nodes: tuple[GpuNodeView, ...]
    gpus: tuple[GpuView, ...]
