"""Whether workers join and leave a running job while all other tasks run on (rule 6.11), and which leave."""

from __future__ import annotations

from recovery.policy.rules import rule_of
from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Cause, Incident, NotJoined, Outcome
from supervisor.contract.job.spec import CHIEF_ROLES, PsRecovery, Rule, Scope, Strategy
from supervisor.control.decide.assess.members import Member, MemberState
from supervisor.control.decide.assess.moving import why_it_stays
from supervisor.control.decide.assess.progress import overdue
from supervisor.control.decide.facts.delays import free_ms
from supervisor.control.decide.facts.history import role_has_stepped
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned

WORKER = "worker"
MOST_TAKEN = 3
"""Joins of a generation that may be lost by no fault of the program before no other is tried."""


def asked(job: JobState) -> dict[str, int]:
    """The counts that are to change without a look at the room: fixed ones, and elastic ones that shrink."""
    spec, wanted = job.record.value.spec, job.wanted
    return {
        role.name: role.count
        for role, now in zip(wanted.roles, spec.roles, strict=True)
        if role.count != now.count and (not role.most or role.count < now.count)
    }


def counts(job: JobState) -> tuple[int, int]:
    """The count of workers in force, and the one that is wanted at most; zeros for a job without workers."""
    now, wanted = (
        next((role.count for role in spec.roles if role.name == WORKER), 0)
        for spec in (job.record.value.spec, job.wanted)
    )
    return now, wanted


def why_all_restart(job: JobState) -> str:
    """Why all tasks restart where the count of workers changes; empty if workers join or leave alone."""
    return job.once(_why_all_restart)


def _why_all_restart(job: JobState) -> str:
    spec, switch, (now, wanted) = job.record.value.spec, job.switch.value, counts(job)
    others = [role for role in asked(job) if role != WORKER]
    if others or not now:
        return f"the count of {', '.join(others) or 'a role'} changes, and not that of workers alone"
    if why := _why_kept(job, leaves=wanted < now):
        return why
    if job.saver != spec.saver:
        return f"{job.saver} saves, and not {spec.saver}: its program may give that to another worker"
    if why := why_it_stays(job, TaskId(job.name, WORKER, min(now, wanted))):
        return why
    if wanted < now and spec.restart.ps_recovery is PsRecovery.PARTIAL:
        return "programs that get a parameter server back would wait for a worker that has left"
    if wanted < now:
        saved = any(ref.generation == switch.generation for ref in job.commits)
        return "" if saved else "nothing is saved yet, and any worker may be the one that saves"
    return did_not_join(job)


def _why_kept(job: JobState, *, leaves: bool) -> str:
    """Why a coordinator keeps the workers that it has; empty if it takes more, or, `leaves`, fewer."""
    if job.record.value.spec.strategy is not Strategy.COORDINATOR:
        return ""
    plan = job.plan_in_force
    placed = plan.value.placements if plan is not None else ()
    chief = next((each for each in placed if each.role in CHIEF_ROLES), None)
    report = job.report(chief, plan.value) if chief is not None and plan is not None else None
    if report is not None and (report.value.drops_workers if leaves else report.value.adds_workers):
        return ""
    other = "fewer" if leaves else "more"
    return f"its chief takes no {other} workers: its launcher is of an earlier release"


def did_not_join(job: JobState) -> str:
    """A join of the generation in force that came to nothing, in words; empty if another may be tried.

    The worker has left again. If its program was at fault, an operator who asks again gets a new generation.
    If it was not, it is not tried for ever: a new generation finds out what its node lacks.
    """
    failed, taken = _not_joined(job, NotJoined.PROGRAM), _not_joined(job, NotJoined.MACHINE)
    told = failed[-1:] or taken[MOST_TAKEN - 1 :][-1:]
    return "".join(f"{each.task} did not join (incident {each.id})" for each in told)


def is_taken_often(job: JobState) -> bool:
    """Whether joins of the generation in force were lost so often by no fault of the program."""
    return len(_not_joined(job, NotJoined.MACHINE)) >= MOST_TAKEN


def _not_joined(job: JobState, fault: NotJoined) -> list[Incident]:
    """The joins of the generation in force that came to nothing for this reason."""
    plan = job.plan_in_force
    there = {each.member for each in plan.value.placements} if plan is not None else set()
    return [
        held.value
        for held in job.incidents.values()
        if held.value.plan_id == job.switch.value.plan_id and held.value.member not in there
        if held.value.outcome is Outcome.SUPERSEDED and held.value.not_joined is fault
    ]


def joining(job: JobState) -> dict[str, Versioned[Incident]]:
    """The workers that have not done any work yet since they joined, each with the incident of its join."""
    return {
        held.value.member: held
        for held in job.incidents.values()
        if held.value.outcome is Outcome.OPEN
        and (held.value.cause, held.value.scope) == (Cause.RESIZED, Scope.TASK)
        and held.value.plan_id == job.switch.value.plan_id
    }


def is_late(snap: Snapshot, job: JobState, member: Member) -> bool:
    """Whether a worker that joins has not started within `limits.startup`, or makes no step as others do."""
    spec = job.record.value.spec
    limit_ms = spec.limits.startup_ms
    if limit_ms is None or rule_of(spec, Cause.NEVER_READY) is Rule.IGNORE:
        return False
    if member.state is MemberState.STARTING:
        return free_ms(snap, job, member.task.member) >= limit_ms
    return role_has_stepped(snap, job, WORKER) and overdue(snap, job, member, limit_ms)


def leaving(snap: Snapshot, job: JobState, there: tuple[Member, ...]) -> tuple[Member, ...]:
    """The workers that are to leave, the last one first.

    Those beyond the size that is wanted leave, and so does a worker that fails, or is late, before it has
    done any work: growth costs the others nothing. With it go those after it, as the workers of a cluster are
    numbered without a gap; but not the one that saves. A coordinator may know it by then. Where it cannot go
    on without it, all restart.
    """
    now, wanted = counts(job)
    begun = {} if _why_kept(job, leaves=True) else joining(job)
    failed = [
        member.task.index
        for member in there
        if member.task.member in begun
        and (member.state in (MemberState.FAILED, MemberState.LOST) or is_late(snap, job, member))
    ]
    keeps = min(failed, default=now)
    if job.saver.role == WORKER and job.saver.index >= keeps:
        keeps = now
    if wanted < now and not why_all_restart(job):
        keeps = min(keeps, wanted)
    beyond = [each for each in there if each.task.role == WORKER and each.task.index >= keeps]
    return tuple(sorted(beyond, key=lambda each: -each.task.index))
