"""The stack dumps that nodes are asked for, in the answer to each beat."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from supervisor.contract.containment import Tell, contained
from supervisor.contract.desired import JobPhase
from supervisor.control.decide.assess.assess import Assessments
from supervisor.control.decide.assess.hanging import attempt_of
from supervisor.control.decide.assess.members import MemberState
from supervisor.control.decide.snapshot import JobState


def to_dump(assessments: Assessments, suspicious: Collection[str], node: str, tell: Tell) -> tuple[str, ...]:
    """Attempts on a node whose stacks are wanted: those suspected, and all of a job that stands still.

    `suspicious` names the jobs with a task that may hang. An error about a job goes to `tell`, and nothing of
    the job is wanted.
    """
    wanted: list[str] = []
    for name in suspicious:
        job = assessments.snap.jobs.get(name)
        with contained(partial(tell, name)):
            wanted += _to_dump(assessments, job, node) if job is not None else ()
    return tuple(wanted)


def _to_dump(assessments: Assessments, job: JobState, node: str) -> list[str]:
    plan = job.plan_in_force
    runs = job.switch.value.phase is JobPhase.RUNNING
    if plan is None or not runs or all(each.node != node for each in plan.value.placements):
        return []
    found = assessments.of(job)
    judged = found.liveness.judgement
    return [
        attempt_of(member)
        for member in (found.members if judged.suspected else ())
        if member.placement.node == node and member.state is MemberState.RUNNING
        if judged.everyone or member.task in judged.suspected
    ]
