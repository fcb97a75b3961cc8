"""Launchers in reserve: what each node that could take a task of a running job is told to import beforehand.

A task that moves there then starts warm. The record is inert: it never starts anything, and placement goes by
what the agents say that they have, not by what they were told.
"""

from __future__ import annotations

from supervisor.contract import keys
from supervisor.contract.boundaries import Delete, Op
from supervisor.contract.desired import JobPhase, Spare
from supervisor.contract.job import JobSpec, RoleSpec
from supervisor.control.failures import MemberState, members
from supervisor.control.placement import NodeOffer, has_room
from supervisor.control.plan import Action, fitting, put, unchanged
from supervisor.control.prepare import environment, offers
from supervisor.control.snapshot import JobPicture, NodePicture, Snapshot

CALM_MS = 2_000
"""So long all tasks have run before a node is told to import: what starts needs its processors."""


def keep(snap: Snapshot, job: JobPicture) -> list[Action]:
    """Bring the records of a job's spares in line with its nodes; nothing when they are."""
    ops: list[Op] = [
        Delete(held.key) for node, held in job.spares.items() if _over(job, snap.nodes.get(node))
    ]
    if _calm(snap, job):
        for offer in offers(snap, job.name):
            spare, held = _wanted(job, offer), job.spares.get(offer.node)
            if spare is not None and (held is None or held.value != spare):
                ops.append(put(keys.spare(offer.node, job.name), spare))
            elif spare is None and held is not None:
                ops.append(Delete(held.key))
    return [Action("spares", job.name, "", (unchanged(job.switch),), fitting(ops))] if ops else []


def _over(job: JobPicture, picture: NodePicture | None) -> bool:
    """Whether nothing of the job can come to this node any more. A short silence is no reason."""
    if job.switch.value.phase.ended or picture is None or picture.incarnation is None:
        return True
    return picture.cordon is not None or picture.incarnation.value.incarnation in picture.marks


def _calm(snap: Snapshot, job: JobPicture) -> bool:
    """Nothing of the job starts now, nor is about to."""
    plan, switch = job.plan_in_force, job.switch.value
    if plan is None or switch.phase is not JobPhase.RUNNING or job.next_plan is not None:
        return False
    for member in members(snap, job, plan.value):
        if member.state not in (MemberState.RUNNING, MemberState.DONE) or member.report is None:
            return False
        if snap.now_ms - member.report.created_ms < CALM_MS:
            return False
    return True


def _wanted(job: JobPicture, offer: NodeOffer) -> Spare | None:
    """For the surroundings that most of the tasks share which could come to this node; None for no task."""
    spec = job.record.value.spec
    if not spec.preload:
        return None
    votes: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
    for role in spec.roles:
        if has_room(offer, role.resources):
            votes[_surroundings(spec, role)] = votes.get(_surroundings(spec, role), 0) + role.count
    if not votes:
        return None
    program, env = max(votes, key=lambda each: votes[each])
    uuid = job.switch.value.job_uuid
    return Spare(spec.name, uuid, offer.node, spec.workdir, program, spec.preload, dict(env), spec.code)


def _surroundings(spec: JobSpec, role: RoleSpec) -> tuple[str, tuple[tuple[str, str], ...]]:
    return role.command[0], tuple(environment(spec, role).items())
