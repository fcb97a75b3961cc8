"""The members of the generation in force, and the state of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from recovery.policy.causes import Judged, classify, describe
from recovery.policy.rules import rule_of
from supervisor.contract.desired import Placement, Plan
from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import Rule
from supervisor.contract.observed import AttemptReport, AttemptState, ExitReason
from supervisor.control.decide.assess.servers import are_together
from supervisor.control.decide.facts.gpus import befallen
from supervisor.control.decide.facts.history import has_trained
from supervisor.control.decide.facts.standing import Standing, standing
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned


class MemberState(Enum):
    """One member of the generation in force."""

    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SUSPECTED = "suspected"
    LOST = "lost"


GONE = frozenset({MemberState.FAILED, MemberState.LOST, MemberState.SUSPECTED})
"""The states of a member that does not train."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member, its state, and the report that says so; `line` of its output tells of the cause."""

    placement: Placement
    task: TaskId
    state: MemberState
    report: Versioned[AttemptReport] | None
    cause: Cause | None = None
    line: str = ""


def ended_as(member: Member) -> str:
    """How its attempt ended, with the line that says why, for people; empty without a report."""
    if member.report is None:
        return ""
    return describe(member.report.value) + (f": {member.line}" if member.line else "")


def members(snap: Snapshot, job: JobState, plan: Plan) -> tuple[Member, ...]:
    """The state of every member of the plan in force."""
    return tuple(_member(snap, job, plan, each) for each in plan.placements)


def _member(snap: Snapshot, job: JobState, plan: Plan, placement: Placement) -> Member:
    task = job.task(placement.member)
    report = job.report(placement, plan)
    if report is not None and report.value.state is AttemptState.EXITED:
        judged = _judged(snap, job, report.value)
        if (
            judged is not None
            and rule_of(job.record.value.spec, judged.cause, task, job.saver) is Rule.IGNORE
        ):
            return Member(placement, task, MemberState.DONE, report)
        cause = judged.cause if judged is not None else None
        harmed = befallen(snap, job, plan, placement)
        if cause is not None and cause.program_fault and harmed is not None and not harmed.blames_program:
            # Its own words describe the harm by its GPU.
            cause = Cause.GPU
        if cause is None and not _succeeded(report.value):
            # Ended by its agent, say because the launcher was silent, while the leader still wants it.
            cause = Cause.KILLED
        line = judged.line if judged is not None else ""
        if cause is Cause.KILLED and _was_to_end(job, plan, placement):
            cause, line = Cause.GPU if harmed is not None else Cause.DRAINED, "its task is to run elsewhere"
            if are_together(job, task):
                cause, line = Cause.PEER_LOST, "it starts again with another parameter server"
        state = MemberState.DONE if cause is None else MemberState.FAILED
        return Member(placement, task, state, report, cause, line)
    where = standing(snap, placement)
    if where is Standing.LOST:
        return Member(placement, task, MemberState.LOST, report, Cause.NODE_LOST)
    if where is Standing.SUSPECTED:
        return Member(placement, task, MemberState.SUSPECTED, report, Cause.NODE_LOST)
    return Member(placement, task, MemberState.STARTING if report is None else MemberState.RUNNING, report)


def _was_to_end(job: JobState, plan: Plan, placement: Placement) -> bool:
    """Whether the leader had its attempt ended, so that its task can move (rule 6.10), or another restart
    (rule 6.12).
    """
    held = job.assigned(plan.plan_id, placement.member)
    return held is not None and held.value.ends


def _judged(snap: Snapshot, job: JobState, report: AttemptReport) -> Judged | None:
    trained = report.has_stepped or has_trained(snap, job)
    return classify(report, job.record.value.spec, job.switch.value.phase, trained=trained)


def as_taken(snap: Snapshot, job: JobState, report: AttemptReport) -> AttemptReport:
    """The report as completion takes it: an end that the job ignores counts as exit code 0."""
    if report.exit is None:
        return report
    judged = _judged(snap, job, report)
    if judged is None:
        return report
    if rule_of(job.record.value.spec, judged.cause, report.attempt.task, job.saver) is not Rule.IGNORE:
        return report
    return replace(report, exit=replace(report.exit, reason=ExitReason.EXIT, code=0, signal=None))


def _succeeded(report: AttemptReport) -> bool:
    return report.exit is not None and report.exit.code == 0
