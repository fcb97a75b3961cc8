"""The documents of the API about nodes: what operators ask of them, and what `supervisorctl` shows."""

from __future__ import annotations

from dataclasses import dataclass, field


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
        gpus: so many are reported, or configured.
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
