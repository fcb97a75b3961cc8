"""Where the tasks of a generation go. All of them find a place, or none is placed (gang start)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from supervisor.contract.ids import TaskId
from supervisor.contract.job import JobSpec, Resources
from supervisor.contract.observed import NodeResources

_CPU_SLACK = 1e-9
"""Sums of fractions of a CPU may miss their total by a rounding error."""


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """A node that may take tasks.

    `used_*` and `tasks` are what other jobs have there, and what attempts that are not confirmed dead still
    hold; this job's own tasks that the new generation replaces are not in them. `spares` counts this job's
    spare preloaded launchers there: so many tasks that are new to the node would start warm.
    """

    node: str
    incarnation: str
    resources: NodeResources
    used_cpus: float = 0.0
    used_memory_bytes: int = 0
    used_gpus: int = 0
    tasks: int = 0
    spares: int = 0


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """A node for every task by member (`ROLE.INDEX`), in the order of the job's tasks; or no placements, and
    `waiting_for`, a sentence about the first task that finds none, which is of `role`.
    """

    placements: dict[str, NodeOffer] = field(default_factory=dict)
    waiting_for: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class _Shortage:
    """What one node lacks for one task. `relative` is the lack as a share of the request."""

    text: str
    relative: float


class _Room:
    """What is left of one node while tasks are put on it."""

    def __init__(self, offer: NodeOffer) -> None:
        self.offer = offer
        self.cpus = offer.resources.cpus - offer.used_cpus
        self.memory_bytes = offer.resources.memory_bytes - offer.used_memory_bytes
        self.gpus = offer.resources.gpus - offer.used_gpus
        self.tasks = offer.tasks
        self.spares = offer.spares

    def take(self, need: Resources, *, home: bool) -> None:
        self.cpus -= need.cpus
        self.memory_bytes -= need.memory_bytes
        self.gpus -= need.gpus
        self.tasks += 1
        self.spares -= 0 if home else 1

    def carries(self, labels: Mapping[str, str]) -> bool:
        return all(self.offer.resources.labels.get(name) == value for name, value in labels.items())

    def fits(self, need: Resources) -> bool:
        return self.carries(need.labels) and not self.shortages(need)

    def shortages(self, need: Resources) -> tuple[_Shortage, ...]:
        """Labels aside. A request of 0 is never short, also not on a node that is overcommitted."""
        found = []
        if need.gpus > max(self.gpus, 0):
            found.append(_lack("GPUs", need.gpus, self.gpus, _number))
        if need.memory_bytes > max(self.memory_bytes, 0):
            found.append(_lack("memory", need.memory_bytes, self.memory_bytes, _bytes))
        if need.cpus > max(self.cpus, 0.0) + _CPU_SLACK:
            found.append(_lack("CPUs", need.cpus, self.cpus, _number))
        return tuple(found)


def has_room(offer: NodeOffer, need: Resources) -> bool:
    """Whether a task would find room on this node, were it to take no other of its job."""
    return _Room(offer).fits(need)


_Preference = Callable[[_Room, str], tuple[float | str, ...]]


def place(spec: JobSpec, nodes: tuple[NodeOffer, ...], keep: Mapping[str, str]) -> PlacementResult:
    """Place all tasks of a job; equal arguments give equal results, in whatever order the nodes come.

    `keep` says where a member was before: it stays there if that node is offered and has room, as it starts
    warm there. Others go where they would start warm, then where the fewest tasks are, then by name. If that
    leaves a task without room, tasks are placed afresh, the most demanding first, and at last packed as tight
    as they go. Packing is a heuristic: it may say no where an exhaustive search would find a way.
    """
    result = _arrange(spec, nodes, keep, _spread, homes_first=True)
    for prefer in (_spread, _pack):
        if result.waiting_for:
            result = _arrange(spec, nodes, keep, prefer, homes_first=False)
    return result


def _arrange(
    spec: JobSpec,
    nodes: tuple[NodeOffer, ...],
    keep: Mapping[str, str],
    prefer: _Preference,
    *,
    homes_first: bool,
) -> PlacementResult:
    rooms = {offer.node: _Room(offer) for offer in sorted(nodes, key=lambda offer: offer.node)}
    tasks = sorted(spec.tasks(), key=lambda task: _demand(spec.role(task.role).resources))
    chosen: dict[str, NodeOffer] = {}
    for task in tasks if homes_first else ():
        home, need = rooms.get(keep.get(task.member, "")), spec.role(task.role).resources
        if home is not None and home.fits(need):
            home.take(need, home=True)
            chosen[task.member] = home.offer
    for task in tasks:
        if task.member in chosen:
            continue
        best = _best(task.member, spec.role(task.role).resources, rooms, keep, prefer)
        if best is None:
            return PlacementResult(waiting_for=_waiting_for(task, spec, rooms), role=task.role)
        chosen[task.member] = best.offer
    return PlacementResult({task.member: chosen[task.member] for task in spec.tasks()})


def _best(
    member: str, need: Resources, rooms: Mapping[str, _Room], keep: Mapping[str, str], prefer: _Preference
) -> _Room | None:
    """Take room for a task on the node that is preferred among those where it fits."""
    fitting = [room for room in rooms.values() if room.fits(need)]
    if not fitting:
        return None
    home = keep.get(member, "")
    best = min(fitting, key=lambda room: prefer(room, home))
    best.take(need, home=best.offer.node == home)
    return best


def _demand(need: Resources) -> tuple[float, ...]:
    """Sorts the tasks that are hardest to place first; equal ones keep the job's order."""
    return -len(need.labels), -need.gpus, -need.memory_bytes, -need.cpus


def _spread(room: _Room, home: str) -> tuple[float | str, ...]:
    return room.offer.node != home, room.spares <= 0, room.tasks, room.offer.node


def _pack(room: _Room, home: str) -> tuple[float | str, ...]:
    """The tightest room first, so that large rooms stay for large tasks; labelled nodes after plain ones."""
    labels = len(room.offer.resources.labels)
    return room.gpus, labels, room.memory_bytes, room.cpus, *_spread(room, home)


def _waiting_for(task: TaskId, spec: JobSpec, rooms: Mapping[str, _Room]) -> str:
    need = spec.role(task.role).resources
    if not rooms:
        return f"{task} waits for a node: none is available"
    labelled = [room for room in rooms.values() if room.carries(need.labels)]
    if not labelled:
        labels = ", ".join(f"{name}={value}" for name, value in sorted(need.labels.items()))
        return f"{task} needs a node with label {labels}; none of {len(rooms)} nodes has it"
    shortages, node = min(
        ((room.shortages(need), room.offer.node) for room in labelled),
        key=lambda entry: (len(entry[0]), sum(lack.relative for lack in entry[0]), entry[1]),
    )
    return f"{task} {' and '.join(lack.text for lack in shortages)} on the best node, {node}"


def _lack(what: str, need: float, free: float, show: Callable[[float], str]) -> _Shortage:
    left = max(free, 0)
    text = f"needs {show(need)} {what}, {show(left)} free ({show(need - left)} short)"
    return _Shortage(text, (need - left) / need)


def _number(count: float) -> str:
    return f"{count:g}"


def _bytes(count: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:g} B"
