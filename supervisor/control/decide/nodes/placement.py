"""Placement of the tasks of a generation: all of them find a place, or none is placed (gang start)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from itertools import chain, filterfalse

from supervisor.contract.ids import TaskId
from supervisor.contract.job.data import kinds
from supervisor.contract.job.environment import needs_zstd
from supervisor.contract.job.spec import JobSpec, Packing, Resources, RoleSpec
from supervisor.contract.secret import uses
from supervisor.control.decide.facts.gpus import Devices, asked_for
from supervisor.control.decide.nodes.offers import NodeOffer, Offers

DOCKER = "docker"
"""The runtime of nodes that run containers, in `NodeResources.runtime`."""

REMARKS = 3
"""The most nodes that a message names whose GPUs cannot be given."""

_CPU_SLACK = 1e-9
"""Sums of fractions of a CPU may miss their total by a rounding error."""


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


@dataclass(frozen=True)
class Before:
    """The nodes and GPUs that the members of a job had, by `ROLE.INDEX`."""

    nodes: Mapping[str, str] = field(default_factory=dict)
    gpus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def users(self) -> Counter[str]:
        """GPU -> the number of members that had it."""
        return Counter(chain.from_iterable(self.gpus.values()))


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

    def take(self, member: str, need: Resources, before: Before) -> tuple[str, ...]:
        """Make room for a task that fits; returns its GPUs."""
        self.cpus -= need.cpus
        self.memory_bytes -= need.memory_bytes
        self.gpus -= need.gpus
        self.tasks += 1
        self.spares -= before.nodes.get(member) != self.offer.node
        had = before.gpus.get(member, ())
        return self.devices.choose(self.offer.gpus, need, had, before.users) if need.gpus else ()

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


_Rank = tuple[float | str, ...]
_Preference = Callable[[_Room, str], _Rank]


class _Rooms:
    """The nodes while tasks are placed on them.

    The first node of a group stands for all of it. A node that takes a task stands for itself from then on.
    """

    def __init__(self, nodes: Offers, prefer: _Preference) -> None:
        self._nodes = nodes
        self._prefer = prefer
        self._devices = Devices()
        self._rooms: dict[str, _Room] = {}
        self._taken: set[str] = set()
        self._ranked: list[tuple[_Rank, _Room, Iterator[str]]] = []
        """A heap: a room as it was when it was ranked, and the names of nodes that it stands for."""

    def at(self, node: str) -> _Room | None:
        """The room of a node; None where it is not offered."""
        if node not in self._rooms and node in self._nodes.by_node:
            self._rooms[node] = _Room(self._nodes.by_node[node], self._devices)
        return self._rooms.get(node)

    def distinct(self) -> Iterator[tuple[_Room, Iterator[str]]]:
        """Each room that differs from all others, with the names of further nodes that it stands for."""
        for node in self._taken:
            yield self._rooms[node], iter(())
        for names in self._nodes.groups.values():
            others = filterfalse(self._taken.__contains__, names)
            first = self.at(next(others, ""))
            if first is not None:
                yield first, others

    def rank(self, need: Resources) -> None:
        """Sort the rooms for tasks that need this, and are placed next."""
        self._ranked = []
        for room, others in self.distinct():
            if room.fits(need):
                self._push(room, others)

    def best(self, need: Resources, home: str) -> _Room | None:
        """The preferred room of those that were ranked; None if none of them has room any more."""
        while self._ranked:
            rank, room, others = self._ranked[0]
            if rank == self._prefer(room, "") and room.fits(need):
                own = self.at(home)
                rooms = (room,) if own is None or not own.fits(need) else (room, own)
                return min(rooms, key=lambda each: self._prefer(each, home))
            heappop(self._ranked)
            self._push(self.at(next(others, "")), others)
        return None

    def take(
        self, room: _Room, member: str, need: Resources, before: Before
    ) -> tuple[NodeOffer, tuple[str, ...]]:
        """Place a task in a room where it fits; returns the node and its GPUs."""
        gpus = room.take(member, need, before)
        self._taken.add(room.offer.node)
        self._push(room, iter(()))
        return room.offer, gpus

    def _push(self, room: _Room | None, others: Iterator[str]) -> None:
        if room is not None:
            heappush(self._ranked, (self._prefer(room, ""), room, others))


@dataclass(frozen=True, slots=True)
class _Need:
    """A property that all nodes of a job must have. `lacking` goes on after "needs a node"."""

    met: Callable[[NodeOffer], bool]
    asks: tuple[str, ...]
    lacking: str


def _needs(spec: JobSpec) -> Iterator[_Need]:
    """In the order in which they are looked at."""
    if spec.container is not None:
        yield _Need(
            lambda offer: offer.resources.runtime == DOCKER,
            ("container",),
            f"whose runtime is {DOCKER}; none of {{}} nodes has it",
        )
        network = spec.container.network
        if spec.container.networked:
            yield _Need(
                lambda offer: network in offer.resources.networks,
                ("container", "network"),
                f"where jobs may join docker network {network} (docker.networks); none of {{}} nodes has it",
            )
    if (used := next(uses(spec), None)) is not None:
        yield _Need(
            lambda offer: offer.resources.secrets,
            used[0],
            "whose agent knows secrets; the agents of all {} nodes are of an earlier release",
        )
    if spec.environment is not None:
        yield _Need(
            lambda offer: offer.resources.environments,
            ("environment",),
            "that makes environments; the {} nodes run tasks in containers, or their agents are of an "
            "earlier release",
        )
        if needs_zstd(spec.environment):
            yield _Need(
                lambda offer: offer.resources.zstd,
                ("environment",),
                "whose agent found the command zstd when it began; the agents of all {} nodes that make "
                "environments did not, or are of an earlier release",
            )
    if spec.data:
        wanted = set(kinds(spec.data))
        yield _Need(
            lambda offer: wanted <= set(offer.resources.data),
            ("data",),
            "that can show `data` to tasks; the agents of all {} nodes cannot mount (docs/data.md: fuse3, "
            "/dev/fuse), or are of an earlier release",
        )


def place(spec: JobSpec, nodes: Offers, before: Before) -> PlacementResult:
    """Place all tasks of a job; equal arguments give equal results.

    A member that was somewhere before stays there if that node is offered and has room, as it starts warm
    there. Others go where they would start warm, then where the fewest tasks are, then by name; those of a
    job that is to be packed go where the least room is left. If that leaves a task without room, tasks are
    placed afresh, the most demanding first, and at last packed as tight as they go. Packing is a heuristic:
    it may say no where an exhaustive search would find a way.
    """
    for need in _needs(spec):
        able = nodes.only(need.met)
        if nodes.by_node and not able.by_node:
            lacking = need.lacking.format(len(nodes.by_node))
            return PlacementResult(waiting_for=f"{spec.name} needs a node {lacking}", asks=need.asks)
        nodes = able
    preferred = _pack if spec.packing is Packing.PACK else _spread
    result = _arrange(spec, nodes, before, preferred, homes_first=True)
    for prefer in (preferred, _pack):
        if result.waiting_for:
            result = _arrange(spec, nodes, before, prefer, homes_first=False)
    return result


def _arrange(
    spec: JobSpec, nodes: Offers, before: Before, prefer: _Preference, *, homes_first: bool
) -> PlacementResult:
    rooms = _Rooms(nodes, prefer)
    roles = sorted(spec.roles, key=lambda role: _demand(role.resources))
    chosen: dict[str, tuple[NodeOffer, tuple[str, ...]]] = {}
    for role in roles if homes_first else ():
        for task in _tasks(spec, role):
            home = rooms.at(before.nodes.get(task.member, ""))
            if home is not None and home.fits(role.resources):
                chosen[task.member] = rooms.take(home, task.member, role.resources, before)
    for role in roles:
        rooms.rank(role.resources)
        for task in _tasks(spec, role):
            if task.member in chosen:
                continue
            best = rooms.best(role.resources, before.nodes.get(task.member, ""))
            if best is None:
                return _nowhere(task, role.resources, rooms, len(nodes.by_node))
            chosen[task.member] = rooms.take(best, task.member, role.resources, before)
    members = [task.member for task in spec.tasks()]
    return PlacementResult(
        {member: chosen[member][0] for member in members}, {member: chosen[member][1] for member in members}
    )


def _tasks(spec: JobSpec, role: RoleSpec) -> Iterator[TaskId]:
    return (TaskId(spec.name, role.name, index) for index in range(role.count))


def _demand(need: Resources) -> tuple[float, ...]:
    """Sorts the roles that are hardest to place first; equal ones keep the job's order."""
    picky = bool(need.gpu_indices), bool(need.gpu_model), need.gpu_memory_bytes
    return -len(need.labels), -need.gpus, *(-each for each in picky), -need.memory_bytes, -need.cpus


def _spread(room: _Room, home: str) -> _Rank:
    return room.offer.node != home, room.spares <= 0, room.tasks, room.offer.node


def _pack(room: _Room, home: str) -> _Rank:
    """The tightest room first, so that large rooms stay for large tasks; labelled nodes after plain ones."""
    labels = len(room.offer.resources.labels)
    return room.gpus, labels, room.memory_bytes, room.cpus, *_spread(room, home)


def _nowhere(task: TaskId, need: Resources, rooms: _Rooms, total: int) -> PlacementResult:
    asks = ("roles", task.role, "resources")
    if not total:
        return PlacementResult(waiting_for=f"{task} waits for a node: none is available", asks=asks)
    labelled = [(room, others) for room, others in rooms.distinct() if room.carries(need.labels)]
    if not labelled:
        labels = ", ".join(f"{name}={value}" for name, value in sorted(need.labels.items()))
        text = f"{task} needs a node with label {labels}; none of {total} nodes has it"
        return PlacementResult(waiting_for=text, asks=(*asks, "labels"))
    shortages, node = min(
        ((room.shortages(need), room.offer.node) for room, _ in labelled),
        key=lambda entry: (len(entry[0]), sum(lack.relative for lack in entry[0]), entry[1]),
    )
    text = f"{task} {' and '.join(lack.text for lack in shortages)} on the best node, {node}"
    remarks = sorted(
        (each, room.offer.remark)
        for room, others in labelled
        if need.gpus and room.offer.remark
        for each in (room.offer.node, *others)
    )
    if remarks:
        told = ", ".join(f"{remark} on {each}" for each, remark in remarks[:REMARKS])
        more = f", and on {len(remarks) - REMARKS} more nodes" if len(remarks) > REMARKS else ""
        text += f" (GPUs that are not given: {told}{more})"
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
