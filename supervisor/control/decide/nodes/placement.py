"""Placement of the tasks of a generation: all of them find a place, or none is placed (gang start)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from supervisor.contract.ids import TaskId
from supervisor.contract.job.spec import JobSpec, Packing, Resources
from supervisor.contract.observed import NodeResources
from supervisor.contract.secret import uses
from supervisor.control.decide.facts.gpus import Devices, GpuSlot, asked_for

DOCKER = "docker"
"""The runtime of nodes that run containers, in `NodeResources.runtime`."""

REMARKS = 3
"""The most nodes that a message names whose GPUs cannot be given."""

_CPU_SLACK = 1e-9
"""Sums of fractions of a CPU may miss their total by a rounding error."""


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """A node that may take tasks.

    `used_*` and `tasks` are what other jobs have there, and what attempts that are not confirmed dead still
    hold; this job's own tasks that the new generation replaces are not in them, nor among the users of
    `gpus`. `spares` counts this job's spare preloaded launchers there: so many tasks that are new to the node
    would start warm. `remark` tells of the node's GPUs that are not offered.
    """

    node: str
    incarnation: str
    resources: NodeResources
    used_cpus: float = 0.0
    used_memory_bytes: int = 0
    gpus: tuple[GpuSlot, ...] = ()
    tasks: int = 0
    spares: int = 0
    remark: str = ""


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """A node for every task by member (`ROLE.INDEX`), in the order of the job's tasks, and the UUIDs of its
    GPUs; or no placements, and `waiting_for`, a sentence about the first task that finds none. `asks` is the
    field of the job that asks for too much.
    """

    placements: dict[str, NodeOffer] = field(default_factory=dict)
    gpus: dict[str, tuple[str, ...]] = field(default_factory=dict)
    waiting_for: str = ""
    asks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Before:
    """The nodes and GPUs that the members of a job had, by `ROLE.INDEX`."""

    nodes: Mapping[str, str] = field(default_factory=dict)
    gpus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def had(self, member: str) -> frozenset[str]:
        """Its GPUs."""
        return frozenset(self.gpus.get(member, ()))

    def others(self, member: str) -> frozenset[str]:
        """The GPUs of all other members."""
        return frozenset(uuid for each, uuids in self.gpus.items() if each != member for uuid in uuids)


@dataclass(frozen=True, slots=True)
class _Shortage:
    """The resource that one node lacks for one task. `relative` is the lack as a share of the request."""

    text: str
    relative: float


class _Room:
    """The free resources of one node while tasks are placed on it."""

    def __init__(self, offer: NodeOffer, devices: Devices) -> None:
        self.offer = offer
        self.devices = devices
        self.cpus = offer.resources.cpus - offer.used_cpus
        self.memory_bytes = offer.resources.memory_bytes - offer.used_memory_bytes
        self.gpus = sum(not slot.users for slot in offer.gpus)
        self.tasks = offer.tasks
        self.spares = offer.spares

    def take(self, member: str, need: Resources, before: Before, *, home: bool) -> tuple[str, ...]:
        """Make room for a task that fits; returns its GPUs."""
        self.cpus -= need.cpus
        self.memory_bytes -= need.memory_bytes
        self.gpus -= need.gpus
        self.tasks += 1
        self.spares -= 0 if home else 1
        return self.devices.choose(
            self.offer.gpus, need, had=before.had(member), others=before.others(member)
        )

    def carries(self, labels: Mapping[str, str]) -> bool:
        return all(self.offer.resources.labels.get(name) == value for name, value in labels.items())

    def fits(self, need: Resources) -> bool:
        return self.carries(need.labels) and not self.shortages(need)

    def shortages(self, need: Resources) -> tuple[_Shortage, ...]:
        """Labels aside. A request of 0 is never short, also not on a node that is overcommitted."""
        found = []
        usable = len(self.devices.usable(self.offer.gpus, need)) if need.gpus else 0
        if need.gpus > usable:
            found.append(_lack(asked_for(need), need.gpus, usable, _number))
        if need.memory_bytes > max(self.memory_bytes, 0):
            found.append(_lack("memory", need.memory_bytes, self.memory_bytes, _bytes))
        if need.cpus > max(self.cpus, 0.0) + _CPU_SLACK:
            found.append(_lack("CPUs", need.cpus, self.cpus, _number))
        return tuple(found)


def has_room(offer: NodeOffer, need: Resources) -> bool:
    """Whether a task would find room on this node, were it to take no other of its job."""
    return _Room(offer, Devices()).fits(need)


_Preference = Callable[[_Room, str], tuple[float | str, ...]]


def place(spec: JobSpec, nodes: tuple[NodeOffer, ...], before: Before) -> PlacementResult:
    """Place all tasks of a job; equal arguments give equal results, in whatever order the nodes come.

    A member that was somewhere before stays there if that node is offered and has room, as it starts warm
    there. Others go where they would start warm, then where the fewest tasks are, then by name; those of a
    job that is to be packed go where the least room is left. If that leaves a task without room, tasks are
    placed afresh, the most demanding first, and at last packed as tight as they go. Packing is a heuristic:
    it may say no where an exhaustive search would find a way.
    """
    if spec.container is not None and nodes:
        total = len(nodes)
        nodes = tuple(offer for offer in nodes if offer.resources.runtime == DOCKER)
        if not nodes:
            waiting_for = f"{spec.name} needs a node whose runtime is {DOCKER}; none of {total} nodes has it"
            return PlacementResult(waiting_for=waiting_for, asks=("container",))
        network, total = spec.container.network, len(nodes)
        if spec.container.networked:
            nodes = tuple(offer for offer in nodes if network in offer.resources.networks)
        if not nodes:
            waiting_for = (
                f"{spec.name} needs a node where jobs may join docker network {network} (docker.networks); "
                f"none of {total} nodes has it"
            )
            return PlacementResult(waiting_for=waiting_for, asks=("container", "network"))
    if nodes and (used := next(uses(spec), None)) is not None:
        total = len(nodes)
        nodes = tuple(offer for offer in nodes if offer.resources.secrets)
        if not nodes:
            waiting_for = (
                f"{spec.name} needs a node whose agent knows secrets; the agents of all {total} nodes are of "
                "an earlier release"
            )
            return PlacementResult(waiting_for=waiting_for, asks=used[0])
    preferred = _pack if spec.packing is Packing.PACK else _spread
    result = _arrange(spec, nodes, before, preferred, homes_first=True)
    for prefer in (preferred, _pack):
        if result.waiting_for:
            result = _arrange(spec, nodes, before, prefer, homes_first=False)
    return result


def _arrange(
    spec: JobSpec,
    nodes: tuple[NodeOffer, ...],
    before: Before,
    prefer: _Preference,
    *,
    homes_first: bool,
) -> PlacementResult:
    devices = Devices()
    rooms = {offer.node: _Room(offer, devices) for offer in sorted(nodes, key=lambda offer: offer.node)}
    tasks = sorted(spec.tasks(), key=lambda task: _demand(spec.role(task.role).resources))
    chosen: dict[str, tuple[NodeOffer, tuple[str, ...]]] = {}
    for task in tasks if homes_first else ():
        home, need = rooms.get(before.nodes.get(task.member, "")), spec.role(task.role).resources
        if home is not None and home.fits(need):
            chosen[task.member] = home.offer, home.take(task.member, need, before, home=True)
    for task in tasks:
        if task.member in chosen:
            continue
        need, home_node = spec.role(task.role).resources, before.nodes.get(task.member, "")
        best = min(
            (room for room in rooms.values() if room.fits(need)),
            key=lambda room: prefer(room, home_node),
            default=None,
        )
        if best is None:
            return _nowhere(task, spec, rooms)
        at_home = best.offer.node == home_node
        chosen[task.member] = best.offer, best.take(task.member, need, before, home=at_home)
    members = [task.member for task in spec.tasks()]
    return PlacementResult(
        {member: chosen[member][0] for member in members}, {member: chosen[member][1] for member in members}
    )


def _demand(need: Resources) -> tuple[float, ...]:
    """Sorts the tasks that are hardest to place first; equal ones keep the job's order."""
    picky = bool(need.gpu_indices), bool(need.gpu_model), need.gpu_memory_bytes
    return -len(need.labels), -need.gpus, *(-each for each in picky), -need.memory_bytes, -need.cpus


def _spread(room: _Room, home: str) -> tuple[float | str, ...]:
    return room.offer.node != home, room.spares <= 0, room.tasks, room.offer.node


def _pack(room: _Room, home: str) -> tuple[float | str, ...]:
    """The tightest room first, so that large rooms stay for large tasks; labelled nodes after plain ones."""
    labels = len(room.offer.resources.labels)
    return room.gpus, labels, room.memory_bytes, room.cpus, *_spread(room, home)


def _nowhere(task: TaskId, spec: JobSpec, rooms: Mapping[str, _Room]) -> PlacementResult:
    need, asks = spec.role(task.role).resources, ("roles", task.role, "resources")
    if not rooms:
        return PlacementResult(waiting_for=f"{task} waits for a node: none is available", asks=asks)
    labelled = [room for room in rooms.values() if room.carries(need.labels)]
    if not labelled:
        labels = ", ".join(f"{name}={value}" for name, value in sorted(need.labels.items()))
        text = f"{task} needs a node with label {labels}; none of {len(rooms)} nodes has it"
        return PlacementResult(waiting_for=text, asks=(*asks, "labels"))
    shortages, node = min(
        ((room.shortages(need), room.offer.node) for room in labelled),
        key=lambda entry: (len(entry[0]), sum(lack.relative for lack in entry[0]), entry[1]),
    )
    text = f"{task} {' and '.join(lack.text for lack in shortages)} on the best node, {node}"
    remarks = [f"{room.offer.remark} on {room.offer.node}" for room in labelled if room.offer.remark]
    if need.gpus and remarks:
        more = f", and on {len(remarks) - REMARKS} more nodes" if len(remarks) > REMARKS else ""
        text += f" (GPUs that are not given: {', '.join(remarks[:REMARKS])}{more})"
    return PlacementResult(waiting_for=text, asks=asks)


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
