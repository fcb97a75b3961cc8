"""The type of faults: data, with one function that injects the fault, proves that it bit, and heals it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum

from chaos.cluster import Cluster, Shape
from chaos.faults.scene import Scene


class Family(Enum):
    """The part of the system that a fault hits."""

    TASK = "task"
    AGENT = "agent"
    SUPERVISOR = "supervisor"
    NODE = "node"
    ETCD = "etcd"
    STORE = "store"
    DOCKER = "docker"
    GPU = "gpu"
    ENVIRONMENT = "environment"


class Incidents(Enum):
    """The number of incidents that the product may make of it."""

    NONE = "none"
    ONE = "one"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Expects:
    """The product's expected reaction to a fault.

    Attributes:
        causes: each incident has one of these; empty: any cause will do.
        scopes: each incident has one of these; empty: either.
        ends: the job may end in one of these phases.
        program_faults: so many at most are the program's own, and burn its budget.
        hides_steps: while it is in force, the job makes steps that the product cannot see.
    """

    incidents: Incidents = Incidents.NONE
    causes: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset()
    program_faults: int = 0
    hides_steps: bool = False


NOTHING = Expects()


def expects(
    incidents: Incidents,
    *causes: str,
    scopes: Sequence[str] = (),
    ends: Sequence[str] = (),
    program_faults: int = 0,
    hides_steps: bool = False,
) -> Expects:
    """Shorthand of `Expects`."""
    sets = (frozenset(causes), frozenset(scopes), frozenset(ends))
    return Expects(incidents, *sets, program_faults, hides_steps)


def possible(_: Cluster) -> str | None:
    """Available everywhere."""
    return None


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: unique, and the name of the scenario that injects it alone.
        text: one line for people.
        targets: what it can be done to now: names that mean something to `inject`.
        inject: does it to a target when entered, and returns evidence of the kernel, of iptables' counters
            or the like that it is in force; raises DidNotBite when there is none. Heals it when left, also
            after an error.
        hold_s: how long it is kept in force, shortest and longest; the seed chooses.
        bound_s: how long after the heal the cluster may take to converge.
        needs: why this cluster cannot have it; None when it can.
        alone: not beside another one, because what it does would heal or hide that.
        shape: what the cluster must have for it beside the usual: fields of `Shape`, and their values.
    """

    name: str
    family: Family
    text: str
    targets: Callable[[Scene], Sequence[str]]
    inject: Callable[[Scene, str], AbstractContextManager[str]]
    expects: Expects = NOTHING
    hold_s: tuple[float, float] = (0.0, 0.0)
    bound_s: float = 30.0
    needs: Callable[[Cluster], str | None] = possible
    alone: bool = False
    shape: tuple[tuple[str, bool | int], ...] = ()

    def fits(self, shape: Shape) -> bool:
        """Whether a cluster of this shape is one for it."""
        return all(getattr(shape, name) == value for name, value in self.shape)
