"""Whether a task of a job in force can move to another node while the others run on (rule 6.10)."""

from __future__ import annotations

from recovery.policy.scope import may_move
from supervisor.contract import keys
from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import CHIEF_ROLES, Scope, Strategy
from supervisor.contract.observed import AttemptReport
from supervisor.control.decide.snapshot import JobState

MOST_FORMER = 500
"""Moves of one generation: each leaves an address that no other task may get in it."""
ROOM_BYTES = 1_024
"""Room that one more address takes in the record of the ClusterSpec, and one more worker in its plan."""
LEAVES = frozenset({Cause.DRAINED, Cause.GPU, Cause.OPERATOR})
"""Causes for which an attempt of a worker that runs is ended so that its task can move. The move is recorded
with one of these."""
NEVER = "others hold connections or variables with it"


def moves_alone(job: JobState, task: TaskId) -> bool:
    """Whether the loss of this task with its node is no other task's."""
    return not why_it_stays(job, task)


def why_it_stays(job: JobState, task: TaskId) -> str:
    """Why a task cannot move inside the generation in force; empty if it can."""
    spec = job.record.value.spec
    if not may_move(spec, task, job.saver):
        return NEVER
    return "" if spec.role(task.role).follow else job.once(_why_workers_stay)


def _why_workers_stay(job: JobState) -> str:
    """The same, of a worker that joins: all workers of a job run the same TensorFlow, as far as is known.

    No task of an asynchronous job has to be told of its address. A coordinator connects to its workers, whose
    programs must be known to join as well.
    """
    plan = job.plan_in_force
    known = job.specs.get(plan.value.plan_id) if plan is not None else None
    if plan is None or known is None:
        return "no ClusterSpec is in force"
    if keys.family(plan.key).max_bytes - plan.size < ROOM_BYTES:
        return "the record of its plan is full"
    room = keys.family(known.key).max_bytes - known.size
    if len(known.value.former) >= MOST_FORMER or room < ROOM_BYTES:
        return f"the record of its ClusterSpec is full after {len(known.value.former)} moves"
    if job.record.value.spec.strategy is Strategy.ASYNC:
        return _told(job, "worker", plan.value.plan_id)
    chief = next((p for p in plan.value.placements if p.role in CHIEF_ROLES), None)
    held = job.assigned(plan.value.plan_id, chief.member) if chief is not None else None
    if chief is None or held is None or not held.value.hears_moves:
        return "it has no chief that could be told of a worker's new address"
    if job.record.value.spec.restart.scope.get(chief.role) is Scope.TASK:
        return "its chief restarts alone, and could not be told again of what it was started with"
    told = _told(job, chief.role, plan.value.plan_id)
    return told or _told(job, "worker", plan.value.plan_id)


def _told(job: JobState, role: str, plan_id: str) -> str:
    """The first reason to stay that an attempt of a role in a plan reports; empty if there is none."""
    reports: list[AttemptReport] = [
        held.value
        for held in job.attempts.values()
        if held.value.plan_id == plan_id and held.value.role == role and held.value.pid > 0
    ]
    if not reports:
        return f"no {role} has run yet"
    return next((f"{each.attempt.task}: {each.stays}" for each in reports if each.stays), "")
