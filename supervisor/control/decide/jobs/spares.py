"""Launchers in reserve: what some nodes that could take a task of a job are told to import beforehand.

A task that moves there then starts warm. The record is inert: it never starts anything, and placement goes by
what the agents say that they have, not by what they were told.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import partial

from supervisor.contract import keys
from supervisor.contract.boundaries import Delete, Op
from supervisor.contract.desired import Spare
from supervisor.contract.job.data import as_user, kinds
from supervisor.contract.job.environment import needs_zstd
from supervisor.contract.job.spec import JobSpec, Resources, RoleSpec
from supervisor.contract.secret import environment_of
from supervisor.control.decide.assess.members import Member, MemberState
from supervisor.control.decide.facts.gpus import all_slots
from supervisor.control.decide.nodes.offers import NodeOffer
from supervisor.control.decide.nodes.placement import DOCKER, has_room
from supervisor.control.decide.plan import Action, fitting, put, unchanged
from supervisor.control.decide.snapshot import JobState, NodeState, Snapshot

Surroundings = tuple[str, tuple[tuple[str, str], ...], float, int]
"""Launchers of a job that agree in these are interchangeable: program, environment, a container's limits."""

CALM_MS = 2_000
"""The time that all tasks have run before nodes import for a spare: starting tasks need the processors."""
LEAST_NODES = 8
NODES_FOR_EACH_TASK = 2
"""Of each kind. On a large cluster a spare on every node for every job would be too much for etcd."""


def keep(snap: Snapshot, job: JobState, there: tuple[Member, ...]) -> list[Action]:
    """Bring the records of a job's spares in line with its nodes; nothing when they are."""
    ops: list[Op] = [
        Delete(held.key) for node, held in job.spares.items() if _over(job, held.value, snap.nodes.get(node))
    ]
    # One thing at a time: a transaction may not delete a key and put it.
    ops = ops or _declined(snap, job)
    if not ops and job.record.value.spec.preload and _calm(snap, job, there):
        ops = _told(snap, job)
    return [Action("spares", job.name, "", (unchanged(job.switch),), fitting(ops))] if ops else []


def _declined(snap: Snapshot, job: JobState) -> list[Op]:
    """The writes for nodes that take no tasks: such a node may drop a launcher that a task has left."""
    if job.switch.value.phase.ended:
        return []
    ops: list[Op] = []
    for name in snap.once(_all_closed):
        held = job.spares.get(name)
        none = Spare(job.name, job.switch.value.job_uuid, name, "", "", wanted=False)
        if held.value != none if held is not None else _may_keep(snap, job, name):
            ops.append(put(keys.spare(name, job.name), none))
    return ops


def _may_keep(snap: Snapshot, job: JobState, node: str) -> bool:
    """Whether a node may have launchers of the job."""
    beat = snap.nodes[node].beat
    return node in job.once(_had_attempts) or (beat is not None and job.name in beat.spares)


def _had_attempts(job: JobState) -> frozenset[str]:
    return frozenset(held.value.node for held in job.attempts.values())


def _all_closed(snap: Snapshot) -> tuple[str, ...]:
    return tuple(name for name, picture in snap.nodes.items() if _closed(picture))


def _closed(picture: NodeState) -> bool:
    return picture.cordon is not None and picture.incarnation is not None


def _told(snap: Snapshot, job: JobState) -> list[Op]:
    """The writes for nodes that take tasks now: the launcher that a few of each kind keep in reserve.

    A node that has a record counts also while it is silent, so that a short silence moves none.
    """
    ops: list[Op] = []
    there = {node for node, held in job.spares.items() if held.value.wanted}
    most = max(LEAST_NODES, NODES_FOR_EACH_TASK * len(job.record.value.spec.tasks()))
    kinds = snap.once(_kinds)
    silent = there.difference(*(names for _, names in kinds.values()))
    for offer, names in kinds.values():
        best, told = _best(job, offer), there & names
        if best is None:
            ops += [Delete(keys.spare(name, job.name)) for name in sorted(told)]
            continue
        kept = sorted(told, key=partial(_turn, job))
        fresh: list[str] = []
        if len(told) + len(silent) < min(most, len(names)):
            fresh = sorted(names - there, key=partial(_turn, job))[: most - len(told) - len(silent)]
        ops += [Delete(keys.spare(name, job.name)) for name in kept[most:]]
        for name in (*kept[:most], *fresh):
            held, wanted = job.spares.get(name), replace(best, node=name)
            if held is None or held.value != wanted:
                ops.append(put(keys.spare(name, job.name), wanted))
    return ops


def _turn(job: JobState, node: str) -> int:
    """A number that orders nodes for a job, for each job in another way."""
    return zlib.crc32(f"{job.name} {node}".encode())


def _kinds(snap: Snapshot) -> dict[object, tuple[NodeOffer, set[str]]]:
    """The nodes that take tasks now, by what they offer when empty: an offer, and their names.

    A cluster has few kinds of nodes, and this is asked at every look.
    """
    kinds: dict[object, tuple[NodeOffer, set[str]]] = {}
    for name, state in snap.nodes.items():
        if state.incarnation is None or not snap.usable(state):
            continue
        resources, slots = state.incarnation.value.resources, all_slots(state)
        if not resources.spares:
            continue
        devices = tuple((slot.name, slot.memory_bytes, slot.index) for slot in slots)
        kind = (
            resources.cpus,
            resources.memory_bytes,
            resources.runtime,
            resources.environments,
            resources.zstd,
            resources.data,
            devices,
            *sorted(resources.labels.items()),
        )
        kinds.setdefault(kind, (NodeOffer(name, "", resources, gpus=slots), set()))[1].add(name)
    return kinds


def _best(job: JobState, empty: NodeOffer) -> Spare | None:
    """The record for nodes that offer this; None where no task of the job fits."""
    spec = job.record.value.spec
    best = _shared(spec, empty)
    if best is None:
        return None
    program, env, cpus, memory_bytes = best
    return Spare(
        job.name,
        job.switch.value.job_uuid,
        empty.node,
        spec.workdir,
        program,
        spec.preload,
        dict(env),
        spec.code,
        spec.container,
        Resources(cpus, memory_bytes),
        templated=spec.templated,
        environment=spec.environment,
        data=as_user(spec.data, job.record.value.hdfs_user),
    )


def _over(job: JobState, spare: Spare, picture: NodeState | None) -> bool:
    """Whether a record has nothing to say any more. A short silence is no reason."""
    if job.switch.value.phase.ended or picture is None or picture.incarnation is None:
        return True
    if _closed(picture):
        return False
    life = picture.incarnation.value
    return not spare.wanted or not life.resources.spares or life.incarnation in picture.marks


def _calm(snap: Snapshot, job: JobState, there: tuple[Member, ...]) -> bool:
    """Whether no task of the job starts now, or is about to."""
    if not there or job.next_plan is not None:
        return False
    for member in there:
        if member.state not in (MemberState.RUNNING, MemberState.DONE) or member.report is None:
            return False
        if snap.now_ms - member.report.created_ms < CALM_MS:
            return False
    return True


def _shared(spec: JobSpec, empty: NodeOffer) -> Surroundings | None:
    """The surroundings of most of the tasks that this node could take if it were empty; None for no task.

    The room that other jobs leave changes faster than an import, so it does not count. A container's GPUs are
    fixed when it is made, and a task's GPUs are not known before.
    """
    contained = empty.resources.runtime == DOCKER
    if spec.container is not None and not contained:
        return None
    if spec.environment is not None:
        able = empty.resources.zstd if needs_zstd(spec.environment) else empty.resources.environments
        if not able:
            return None
    if not set(kinds(spec.data)) <= set(empty.resources.data):
        return None
    votes: dict[Surroundings, int] = {}
    for role in spec.roles:
        bound = contained and role.resources.gpus
        if not bound and has_room(empty, role.resources):
            surroundings = _surroundings(spec, role, contained=contained)
            votes[surroundings] = votes.get(surroundings, 0) + role.count
    return max(votes, key=lambda each: votes[each], default=None)


def _surroundings(spec: JobSpec, role: RoleSpec, *, contained: bool) -> Surroundings:
    limits = role.resources if contained else Resources()
    return role.command[0], tuple(environment_of(spec, role).items()), limits.cpus, limits.memory_bytes
