"""Placement by the book: each task looks at every node. Slow, and plain enough to be right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from supervisor.contract.job.spec import ContainerSpec, JobSpec, Packing, Resources, RoleSpec
from supervisor.contract.observed import NodeResources
from supervisor.control.decide.facts.gpus import GpuSlot
from supervisor.control.decide.nodes.offers import NodeOffer
from supervisor.control.decide.nodes.placement import Before
from tests.support.builders import GIB, job_spec, role

Placed = dict[str, tuple[str, tuple[str, ...]]]
"""Member -> its node and GPUs."""


def place_by_the_book(spec: JobSpec, nodes: Sequence[NodeOffer], before: Before) -> Placed | None:
    """The places of all tasks; None if they find none."""
    there = [offer for offer in nodes if _suits(spec, offer.resources)]
    packs = spec.packing is Packing.PACK
    for homes_first, packed in ((True, packs), (False, packs), (False, True)):
        book = _Book(there, before, packs=packed)
        if book.place_all(spec, homes_first=homes_first):
            return {task.member: book.placed[task.member] for task in spec.tasks()}
    return None


def _suits(spec: JobSpec, has: NodeResources) -> bool:
    container, secrets = spec.container, spec.secrets or any(each.secrets for each in spec.roles)
    return (
        (container is None or has.runtime == "docker")
        and (container is None or not container.networked or container.network in has.networks)
        and (not secrets or has.secrets)
    )


class _Book:
    """The room left on each node, while tasks are placed."""

    def __init__(self, nodes: Sequence[NodeOffer], before: Before, *, packs: bool) -> None:
        self.nodes, self.before, self.packs, self.placed = nodes, before, packs, Placed()
        self.cpus = {each.node: each.resources.cpus - each.used_cpus for each in nodes}
        self.memory = {each.node: each.resources.memory_bytes - each.used_memory_bytes for each in nodes}
        self.gpus = {each.node: sum(not slot.users for slot in each.gpus) for each in nodes}
        self.tasks = {each.node: each.tasks for each in nodes}
        self.spares = {each.node: each.spares for each in nodes}
        self.shares: dict[str, list[int]] = {slot.uuid: [] for each in nodes for slot in each.gpus}

    def place_all(self, spec: JobSpec, *, homes_first: bool) -> bool:
        roles = sorted(spec.roles, key=_demand)
        tasks = [(f"{each.name}.{index}", each.resources) for each in roles for index in range(each.count)]
        for member, need in tasks if homes_first else ():
            home = [each for each in self.nodes if each.node == self.before.nodes.get(member)]
            if home and self.fits(home[0], need):
                self.give(member, need, home[0])
        for member, need in tasks:
            if member in self.placed:
                continue
            fitting = [each for each in self.nodes if self.fits(each, need)]
            if not fitting:
                return False
            self.give(member, need, min(fitting, key=self.preference(member)))
        return True

    def fits(self, offer: NodeOffer, need: Resources) -> bool:
        return (
            all(offer.resources.labels.get(name) == value for name, value in need.labels.items())
            and (not need.cpus or need.cpus <= self.cpus[offer.node] + 1e-9)
            and (not need.memory_bytes or need.memory_bytes <= self.memory[offer.node])
            and (not need.gpus or need.gpus <= len(self.usable(offer, need)))
        )

    def usable(self, offer: NodeOffer, need: Resources) -> list[GpuSlot]:
        return [
            slot
            for slot in offer.gpus
            if slot.memory_bytes >= need.gpu_memory_bytes
            and need.gpu_model.lower() in slot.name.lower()
            and (not need.gpu_indices or slot.index in need.gpu_indices)
            and slot.users + len(self.shares[slot.uuid])
            < min([slot.share, need.gpu_share, *self.shares[slot.uuid]])
        ]

    def preference(self, member: str) -> Callable[[NodeOffer], tuple[float | str, ...]]:
        def rank(offer: NodeOffer) -> tuple[float | str, ...]:
            node = offer.node
            spread = node != self.before.nodes.get(member), self.spares[node] <= 0, self.tasks[node], node
            tight = self.gpus[node], len(offer.resources.labels), self.memory[node], self.cpus[node]
            return (*tight, *spread) if self.packs else spread

        return rank

    def give(self, member: str, need: Resources, offer: NodeOffer) -> None:
        had = self.before.gpus.get(member, ())
        others = [uuid for each, uuids in self.before.gpus.items() if each != member for uuid in uuids]

        def rank(slot: GpuSlot) -> tuple[bool, bool, int, int, int]:
            busy = slot.users + len(self.shares[slot.uuid])
            return slot.uuid not in had, slot.uuid in others, busy, slot.memory_bytes, slot.index

        chosen = sorted(self.usable(offer, need), key=rank)[: need.gpus]
        for slot in chosen:
            self.shares[slot.uuid].append(need.gpu_share)
        uuids = tuple(slot.uuid for slot in sorted(chosen, key=lambda slot: slot.index))
        self.placed[member] = offer.node, uuids
        self.cpus[offer.node] -= need.cpus
        self.memory[offer.node] -= need.memory_bytes
        self.gpus[offer.node] -= need.gpus
        self.tasks[offer.node] += 1
        self.spares[offer.node] -= self.before.nodes.get(member) != offer.node


def _demand(asking: RoleSpec) -> tuple[float, ...]:
    need = asking.resources
    picky = bool(need.gpu_indices), bool(need.gpu_model), need.gpu_memory_bytes
    return -len(need.labels), -need.gpus, *(-each for each in picky), -need.memory_bytes, -need.cpus


def random_offers(random: Random) -> list[NodeOffer]:
    """Nodes of a few kinds, many of which have the same left. Some agents report a GPU of another one."""
    kinds = [_random_kind(random) for _ in range(random.randint(1, 3))]
    loads = [_random_load(random) for _ in range(random.randint(1, 3))]
    found: list[NodeOffer] = []
    for number in range(random.randint(0, 20)):
        node, (has, gpus) = f"n{number:02}", random.choice(kinds)
        cpus, memory, tasks, users = random.choice(loads)
        slots = tuple(
            GpuSlot(f"GPU-{node}-{index}", index, name, size, users if index % 2 else 0, has.gpu_share)
            for index, (name, size) in enumerate(gpus)
        )
        if slots and found and found[-1].gpus and random.random() < 0.2:
            slots = (*slots[:-1], found[-1].gpus[-1])
        spares = random.choice([0, 0, 0, 0, 2])
        remark = random.choice(["", "", "", "1 quarantined"])
        found.append(NodeOffer(node, f"{node}-life", has, cpus, memory, slots, tasks, spares, remark))
    random.shuffle(found)
    return found


def _random_kind(random: Random) -> tuple[NodeResources, list[tuple[str, int]]]:
    labels = {name: random.choice("ab") for name in ("rack", "gpu") if random.random() < 0.3}
    model = random.choice([("H200", 140 * GIB), ("L4", 24 * GIB)])
    has = NodeResources(
        cpus=random.choice([1.0, 4.0, 8.0]),
        memory_bytes=random.choice([2, 16]) * GIB,
        labels=labels,
        runtime=random.choice(["process", "docker", "docker"]),
        gpu_share=random.choice([1, 2, 3]),
        networks=random.choice([(), ("training",)]),
        secrets=random.random() < 0.7,
    )
    return has, [model] * random.choice([0, 1, 2, 4])


def _random_load(random: Random) -> tuple[float, int, int, int]:
    load = random.choice([0, 0, 1, 2])
    return 0.7 * load, load * GIB, load, random.randint(0, load)


def random_job(random: Random) -> JobSpec:
    """Up to four roles of up to five tasks."""
    roles = [
        role(f"role{number}", random.randint(1, 5), _random_need(random))
        for number in range(random.randint(1, 4))
    ]
    spec = job_spec(tuple(roles))
    container = random.choice([*[None] * 8, ContainerSpec(), ContainerSpec(network="training")])
    return JobSpec(
        name=spec.name,
        strategy=spec.strategy,
        roles=spec.roles,
        checkpoint=spec.checkpoint,
        workdir=spec.workdir,
        packing=random.choice(list(Packing)),
        container=container,
        secrets=random.choice([*[{}] * 8, {"TOKEN": "hf"}]),
    )


def _random_need(random: Random) -> Resources:
    gpus = random.choice([0, 0, 0, 0, 1, 2])
    return Resources(
        cpus=random.choice([0.0, 0.1, 0.5, 1.0]),
        memory_bytes=random.choice([0, 1, GIB]),
        gpus=gpus,
        labels={"rack": random.choice("ab")} if random.random() < 0.1 else {},
        gpu_memory_bytes=random.choice([0, 0, 40 * GIB]) if gpus else 0,
        gpu_model=random.choice(["", "", "h200"]) if gpus else "",
        gpu_share=random.choice([1, 1, 2, 3]) if gpus else 1,
        gpu_indices=(0, 1)[:gpus] if gpus and random.random() < 0.1 else (),
    )


def random_before(random: Random, spec: JobSpec, nodes: Sequence[NodeOffer]) -> Before:
    """Some of its tasks were somewhere, on nodes that may be gone."""
    homes, gpus = dict[str, str](), dict[str, tuple[str, ...]]()
    for task in spec.tasks() if random.random() < 0.7 else ():
        if random.random() < 0.6:
            homes[task.member] = random.choice([*(each.node for each in nodes), "gone"])
            slots = [slot.uuid for each in nodes if each.node == homes[task.member] for slot in each.gpus]
            gpus[task.member] = tuple(random.sample(slots, min(len(slots), random.randint(0, 2))))
    return Before(homes, gpus)
