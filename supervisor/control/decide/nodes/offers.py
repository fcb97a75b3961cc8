"""The room left on nodes that may take tasks: found once for a snapshot, for all jobs that look for places.

A cluster has few kinds of nodes, and what is left on most of them is the same. So nodes are grouped, and a
question whether a task fits is asked of each group, however many nodes are in it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from supervisor.contract.observed import NodeResources
from supervisor.control.decide.facts.claims import (
    Asking,
    all_claims,
    before_plans,
    by_gpu,
    by_node,
    claims_of,
    planned_in_look,
)
from supervisor.control.decide.facts.gpus import GpuSlot, slots_of
from supervisor.control.decide.set_aside import Claim
from supervisor.control.decide.snapshot import JobState, Snapshot

_Claims = dict[str, list[Claim]]


class NodeOffer(NamedTuple):
    """A node that may take tasks. A look makes one of each node, so that it is of the kind that is made fast.

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
class Offers:
    """Offers by node, and the nodes in groups: those of one differ in their names and UUIDs of GPUs alone.

    `groups`: the names in order, by what the nodes have in common. `shared`: GPUs that several nodes report;
    such a node has a group of its own.
    """

    by_node: Mapping[str, NodeOffer]
    groups: Mapping[object, Sequence[str]]
    shared: frozenset[str]

    def only(self, suits: Callable[[NodeOffer], bool]) -> Offers:
        """The offers that suit. One of each group is asked."""
        groups = {kind: names for kind, names in self.groups.items() if suits(self.by_node[names[0]])}
        return self if len(groups) == len(self.groups) else self._of(groups)

    def without(self, nodes: Collection[str]) -> Offers:
        """The offers of all other nodes."""
        if not nodes:
            return self
        left = {kind: [each for each in names if each not in nodes] for kind, names in self.groups.items()}
        return self._of({kind: names for kind, names in left.items() if names})

    def _of(self, groups: Mapping[object, Sequence[str]]) -> Offers:
        return replace(
            self,
            by_node={name: self.by_node[name] for names in groups.values() for name in names},
            groups=groups,
        )

    def changed(self, offers: Iterable[NodeOffer]) -> Offers:
        """The offers of the same nodes, some of which offer something else now."""
        by_node, groups = dict(self.by_node), dict(self.groups)
        copies: dict[object, list[str]] = {}

        def alike(offer: NodeOffer) -> list[str]:
            kind = _kind(offer, self.shared)
            if kind not in copies:
                groups[kind] = copies[kind] = list(groups.get(kind, ()))
            return copies[kind]

        for offer in offers:
            names = alike(by_node[offer.node])
            del names[bisect_left(names, offer.node)]
            insort(alike(offer), offer.node)
            by_node[offer.node] = offer
        return replace(self, by_node=by_node, groups={kind: names for kind, names in groups.items() if names})


def grouped(offers: Iterable[NodeOffer]) -> Offers:
    """The offers, in whatever order they come."""
    by_node = {offer.node: offer for offer in sorted(offers, key=attrgetter("node"))}
    reports = Counter(slot.uuid for offer in by_node.values() for slot in offer.gpus)
    shared = frozenset(uuid for uuid, nodes in reports.items() if nodes > 1)
    groups: dict[object, list[str]] = {}
    for offer in by_node.values():
        groups.setdefault(_kind(offer, shared), []).append(offer.node)
    return Offers(by_node, groups, shared)


def _kind(offer: NodeOffer, shared: frozenset[str]) -> object:
    """The parts of an offer that all offers of its group share."""
    has = offer.resources
    return (
        has.cpus - offer.used_cpus,
        has.memory_bytes - offer.used_memory_bytes,
        offer.tasks,
        offer.spares,
        offer.remark,
        has.runtime,
        has.networks,
        has.secrets,
        has.environments,
        has.zstd,
        has.data,
        frozenset(has.labels.items()),
        _devices(offer, shared) if offer.gpus else None,
    )


def _devices(offer: NodeOffer, shared: frozenset[str]) -> object:
    if not shared.isdisjoint(slot.uuid for slot in offer.gpus):
        return offer.node
    return tuple((slot.name, slot.memory_bytes, slot.index, slot.users, slot.share) for slot in offer.gpus)


def offers(snap: Snapshot, job: JobState | None, member: str = "") -> Offers:
    """The nodes that may take tasks now, with what is left there for all tasks of a job, or one `member`.

    What makes room there is not counted (`Asking`). None is a job that has nothing anywhere.
    """
    found = snap.once(_to_anyone)
    if job is None:
        return found
    asking = Asking(job.name, member)
    own = {claim.node for claim in claims_of(snap, job) if asking.gives_up(claim)}
    own |= set(before_plans(snap).once(_with_spares).get(job.name, ()))
    own &= found.by_node.keys()
    return found.changed(_offers(snap, asking, own)) if own else found


def _to_anyone(snap: Snapshot) -> Offers:
    """The offers to a job that has nothing anywhere. A plan of this look changes those of its nodes."""
    if not snap.once(planned_in_look):
        return grouped(_offers(snap, Asking(), snap.once(_usable)))
    found, claims = before_plans(snap).once(_to_anyone), list(chain(*snap.once(_of_planned)))
    about = {claim.node for claim in claims}
    if shared := found.shared.intersection(chain(*(claim.gpus for claim in claims))):
        about |= {each.node for each in found.by_node.values() for slot in each.gpus if slot.uuid in shared}
    return found.changed(_offers(snap, Asking(), about & found.by_node.keys()))


def _usable(snap: Snapshot) -> tuple[str, ...]:
    return tuple(name for name, state in snap.nodes.items() if snap.usable(state))


def _with_spares(snap: Snapshot) -> dict[str, list[str]]:
    """Job -> the nodes with launchers in reserve for it."""
    found: dict[str, list[str]] = {}
    for name, state in snap.nodes.items():
        for job in state.beat.spares if state.beat is not None else ():
            found.setdefault(job, []).append(name)
    return found


def _claims(snap: Snapshot) -> tuple[_Claims, _Claims]:
    """All claims by node, and by GPU."""
    planned = snap.once(planned_in_look)
    if not planned:
        claims = all_claims(snap)
        return by_node(claims), by_gpu(claims)
    (on_nodes, on_gpus), (gone, come) = before_plans(snap).once(_claims), snap.once(_of_planned)

    def renewed(known: _Claims, gone: _Claims, come: _Claims) -> _Claims:
        return known | {
            place: [*(each for each in known.get(place, ()) if each.job not in planned), *come.get(place, ())]
            for place in gone | come
        }

    return renewed(on_nodes, by_node(gone), by_node(come)), renewed(on_gpus, by_gpu(gone), by_gpu(come))


def _of_planned(snap: Snapshot) -> tuple[list[Claim], list[Claim]]:
    """The claims of jobs for which the look has made a plan: before it, and with it."""

    def claims(then: Snapshot) -> list[Claim]:
        return [
            claim for job in sorted(snap.once(planned_in_look)) for claim in claims_of(then, then.jobs[job])
        ]

    return claims(before_plans(snap)), claims(snap)


def _offers(snap: Snapshot, asking: Asking, nodes: Iterable[str]) -> Iterator[NodeOffer]:
    on_nodes, on_gpus = snap.once(_claims)
    for node in nodes:
        state, cpus, memory_bytes, tasks = snap.nodes[node], 0.0, 0, 0
        assert state.incarnation is not None
        for claim in on_nodes.get(node, ()):
            if not asking.gives_up(claim):
                tasks += 1
                cpus += claim.resources.cpus
                memory_bytes += claim.resources.memory_bytes
        slots, remark = slots_of(snap, state, asking, on_gpus)
        spares = state.beat.spares.count(asking.job) if state.beat is not None else 0
        yield NodeOffer(
            node=node,
            incarnation=state.incarnation.value.incarnation,
            resources=state.incarnation.value.resources,
            used_cpus=cpus,
            used_memory_bytes=memory_bytes,
            gpus=slots,
            tasks=tasks,
            spares=spares and spares - _about_to_start(snap, asking, node),
            remark=remark,
        )


def _about_to_start(snap: Snapshot, asking: Asking, node: str) -> int:
    """The tasks that were placed there one by one, and take spares of which the node's beat still tells."""
    job = snap.jobs.get(asking.job)
    plan = job.plan_in_force if job is not None else None
    if job is None or plan is None or not asking.member:
        return 0
    placed = [each for each in plan.value.placements if each.node == node and each.member != asking.member]
    return sum(job.report(each, plan.value) is None for each in placed)
