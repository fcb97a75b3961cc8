"""Whether the parameter servers of a job come back while its chief and its workers run on (rule 6.12)."""

from __future__ import annotations

from recovery.policy.roles import RoleKind, kind_of
from recovery.policy.scope import SERVERS, come_back_together, comes_back_alone
from recovery.policy.suspects import BaseVerdict
from supervisor.contract.checkpoint import CommitState
from supervisor.contract.desired import Assignment, Placement, Plan
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.incident import Incident, Outcome
from supervisor.contract.job.spec import Scope
from supervisor.contract.observed import AttemptState, TaskBeat
from supervisor.control.decide.facts.history import life_of, newest_commit, steps_are_read
from supervisor.control.decide.facts.standing import Standing, standing
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned

MOST = 40
"""Parameter servers that one transaction restarts."""
LEAST_BOUND_MS = 10_000
UNKNOWN_BOUND_MS = 120_000
SLOWEST_TIMES = 10
START_TIMES = 2
IN_FLIGHT_MS = 250
"""For so long after a loss trainers may tell of a step that the server had answered before."""


def are_together(job: JobState, task: TaskId) -> bool:
    """Whether a task restarts with all other parameter servers of its job, where it does not restart all."""
    return come_back_together(job.record.value.spec, task, job.saver)


def why_all_restart(snap: Snapshot, job: JobState) -> str:
    """Why the loss of a parameter server restarts all tasks; empty if the others run on."""
    spec, plan = job.record.value.spec, job.plan_in_force
    if spec.restart.scope.get(SERVERS) is Scope.TASK:
        return ""  # the job answers for its program
    if spec.preload:
        return "all start warm, which takes less time"
    if plan is None or not steps_are_read(snap, job):
        return "its steps are not read"
    if job.switch.value.edition:
        return "a task has moved, joined or left"  # a chief's new session may wait for it where it was
    newest = newest_commit(job)
    if newest is None or newest.generation != job.switch.value.generation:
        return "no checkpoint of this generation is committed"
    if job.saver != spec.saver:
        return f"{job.saver} saves, where {spec.saver} may find nothing to restore"
    if any(was_widened(job, past.incident) for past in life_of(job)):
        return "its program did not recover by itself before"
    return next(filter(None, (_why_not(snap, job, plan.value, each) for each in plan.value.placements)), "")


def was_widened(job: JobState, incident: Incident) -> bool:
    """Whether its parameter servers were restarted, and then all tasks."""
    widened = incident.scope is Scope.ALL and incident.attempt > 0 and bool(incident.member)
    return widened and job.task(incident.member).role == SERVERS


def _why_not(snap: Snapshot, job: JobState, plan: Plan, placement: Placement) -> str:
    """Why a task would not survive the loss of the parameter servers; empty if it would."""
    task = job.task(placement.member)
    if kind_of(job.record.value.spec, placement.role) is not RoleKind.TRAINING:
        return ""
    held = job.report(placement, plan)
    if held is None or held.value.exit is not None:
        return f"{task} does not run"
    where = standing(snap, placement)
    if where is not Standing.ALIVE:
        return f"the node of {task} is {where.value}"
    beat = snap.beat_of(placement.node, held.value.attempt)
    recovers = beat is not None and beat.saves.recovers
    return "" if recovers else f"nothing tells that the program of {task} recovers by itself"


def servers_of(job: JobState, plan: Plan) -> list[tuple[Placement, Versioned[Assignment] | None]]:
    """The parameter servers of a plan, and what their agents are asked for."""
    placed = (each for each in plan.placements if each.role == SERVERS)
    return [(each, job.assigned(plan.plan_id, each.member)) for each in placed]


def why_not_together(snap: Snapshot, job: JobState, plan: Plan) -> str:
    """Why its parameter servers cannot restart in place, all of them; empty if they can."""
    servers = servers_of(job, plan)
    if len(servers) > MOST:
        return f"more than {MOST} parameter servers do not restart at once"
    for placement, held in servers:
        task = job.task(placement.member)
        if standing(snap, placement) is not Standing.ALIVE or snap.blocked(placement.node):
            return f"{task} cannot restart on {placement.node}"
        report = job.attempts.get(held.value.attempt_id) if held is not None else None
        if held is None or report is None:
            return f"{task} has not begun"
        asked_ms = snap.now_ms - held.seen_ms if held.value.ends and not report.value.confirmed_dead else 0
        if asked_ms > snap.timing.d_ms:
            return f"{task} does not end"
    return ""


def open_incidents(job: JobState) -> list[Versioned[Incident]]:
    """Those that are not over, and restarted parameter servers in the generation in force."""
    return [
        held
        for held in job.incidents.values()
        if held.value.outcome is Outcome.OPEN
        and held.value.plan_id == job.switch.value.plan_id
        and is_about_servers(job, held.value)
    ]


def back_for_ms(snap: Snapshot, job: JobState) -> int | None:
    """Since when the job trains again after its parameter servers came back; None if they never did."""
    switch = job.switch.value
    over = [
        snap.now_ms - held.seen_ms
        for held in job.incidents.values()
        if held.value.plan_id == switch.plan_id and held.value.outcome is Outcome.RECOVERED
        if is_about_servers(job, held.value)
    ]
    return min(over, default=None)


def is_too_low(job: JobState, held: Versioned[Incident], beat: TaskBeat) -> bool:
    """Whether a step after a recovery is below a checkpoint that was committed before the loss.

    The chief has begun from scratch, or from another directory. A commit may have a higher number than its
    step, by one for each recovery: a session saves when it is made, and that is the same step again.
    """
    generation = job.switch.value.generation
    saved = (
        ref.step
        for ref, commit in job.commits.items()
        if ref.generation == generation and commit.create_revision < held.create_revision
    )
    recoveries = sum(
        each.value.generation == generation and is_about_servers(job, each.value)
        for each in job.incidents.values()
    )
    least = min(max(saved, default=-1) - recoveries, held.value.from_step)
    return not beat.is_local and 0 <= beat.step < least


def spoilt(job: JobState, held: Versioned[Incident]) -> BaseVerdict | None:
    """A commit that must be set aside, as it was made after a recovery that went back too far.

    A saver that was restarted, too, has not made what was committed before its present attempt was reported:
    its node was late with a save that was finished before the loss.
    """
    generation = job.switch.value.generation
    reports = [held for attempt, held in job.attempts.items() if attempt.task == job.saver]
    began = max(
        (each.create_revision for each in reports if each.value.state is AttemptState.RUNNING), default=0
    )
    since = max(held.create_revision, began)
    wrong = [
        ref
        for ref, commit in job.commits.items()
        if ref.generation == generation
        and commit.create_revision > since
        and commit.value.state is CommitState.COMMITTED
    ]
    if not wrong:
        return None
    reason = f"saved by a run that had gone back to step {held.value.to_step}"
    return BaseVerdict(max(wrong), quarantine=True, reason=reason)


def is_about_servers(job: JobState, incident: Incident) -> bool:
    """Whether an incident restarted parameter servers, one or all, and no other task."""
    if incident.scope is not Scope.TASK or incident.attempt == 0 or not incident.member:
        return False
    return comes_back(job, job.task(incident.member))


def comes_back(job: JobState, task: TaskId) -> bool:
    """Whether a task is a parameter server that may come back while the trainers run on."""
    return are_together(job, task) or comes_back_alone(job.record.value.spec, task)


def attempts_of(job: JobState, plan: Plan) -> tuple[AttemptId, ...]:
    """The attempts that are wanted of the parameter servers."""
    return tuple(held.value.attempt_id for _, held in servers_of(job, plan) if held is not None)


def first_step_since(snap: Snapshot, job: JobState, held: Versioned[Incident]) -> tuple[TaskBeat, int] | None:
    """The oldest of the trainers' last steps since the parameter servers run again, and when it was made."""
    since_ms = max(held.seen_ms, held.created_ms + IN_FLIGHT_MS)
    steps = [
        (beat, received_ms - beat.step_age_ms)
        for beat, received_ms in _trainers(snap, job)
        if beat.step_age_ms >= 0
    ]
    return min((each for each in steps if each[1] > since_ms), key=lambda each: each[1], default=None)


def bound_ms(snap: Snapshot, job: JobState) -> int:
    """For so long after its parameter servers run again a job may make no step.

    It is learnt from the slowest step, and from what the task that saves took from its start to its first
    step: that began with a restore, too. A leader that came later has not seen that start.
    """
    bounds = [LEAST_BOUND_MS]
    for beat, received_ms in _trainers(snap, job):
        bounds.append(SLOWEST_TIMES * beat.slowest_ms)
        attempt = next((each for each in job.attempts if str(each) == beat.attempt), None)
        if attempt is not None and attempt.task == job.saver and beat.first_step_age_ms >= 0:
            start_ms = received_ms - beat.first_step_age_ms - job.attempts[attempt].created_ms
            bounds.append(START_TIMES * start_ms if start_ms >= 0 else UNKNOWN_BOUND_MS)
    return max(bounds)


def _trainers(snap: Snapshot, job: JobState) -> list[tuple[TaskBeat, int]]:
    """The last beat of each running task that trains, and its time."""
    plan, spec = job.plan_in_force, job.record.value.spec
    found = []
    for placement in plan.value.placements if plan is not None else ():
        picture = snap.nodes.get(placement.node)
        report = job.report(placement, plan.value) if plan is not None else None
        if picture is None or picture.beat is None or report is None or report.value.exit is not None:
            continue
        beat = snap.beat_of(placement.node, report.value.attempt)
        if beat is not None and kind_of(spec, placement.role) is RoleKind.TRAINING:
            found.append((beat, picture.beat.received_ms))
    return found
