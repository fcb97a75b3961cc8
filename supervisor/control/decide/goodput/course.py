"""The categories of a job's time: of now, and of the time since its ledger.

It follows from records that are there anyway: the switch, the open incident and its phases, the plan in
preparation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from recovery.policy.history import ASKED
from recovery.policy.roles import RoleKind, kind_of, training_roles
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Cause, Incident, Outcome
from supervisor.contract.job.goodput import Category, Goodput
from supervisor.contract.job.spec import CHIEF_ROLES, Scope, Strategy
from supervisor.contract.observed import StageFailure
from supervisor.control.decide.assess import servers
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.facts import hold
from supervisor.control.decide.goodput.training import Span, started_ms, training, went_on_ms
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned

_PHASES: Mapping[str, Category] = {
    "detected": Category.DETECT,
    "decided": Category.DECIDE,
    "ready": Category.PREPARE,
    "switched": Category.RESTORING,
    "restored": Category.START,
    "first_step": Category.FIRST_STEP,
}
"""The phases of an incident that hold training up, in order."""
_OF_ALL_ALONE = ("ready", "switched")
"""The phases that only a restart of all tasks has."""
_TURN: Mapping[Category, int] = {
    **{category: turn for turn, category in enumerate(_PHASES.values())},
    Category.WAITING_ROOM: 2,
    Category.STOPPED: 2,
    Category.FENCE: 2,
    Category.WAITING_STORE: 3,
}
"""The number of the phase in which a category may run."""
_WAITING = (Category.WAITING_ROOM, Category.WAITING_STORE, Category.STOPPED)
_UNHURT = frozenset({Cause.OPERATOR, Cause.RESIZED, Cause.DRAINED, Cause.GPU})
"""Causes for which tasks may train on until the next generation is ready."""


@dataclass(frozen=True, slots=True)
class Course:
    """The categories since the ledger's time, oldest first; none: what ran then runs on."""

    spans: tuple[Span, ...] = ()
    incident: str = ""
    reached: int = -1


def course_of(snap: Snapshot, job: JobState, kept: Goodput, need: Need | None) -> Course:
    """The categories since the time of a job's ledger. `need`: the restart that is wanted, if it counts."""
    switch, now_ms = job.switch, snap.now_ms
    phase = switch.value.phase
    if phase.ended or phase is JobPhase.STOPPING:
        stopped = kept.category is Category.STOPPED
        return Course() if stopped else Course((Span(Category.STOPPED, switch.seen_ms),))
    if phase is JobPhase.FINISHING:
        return Course((Span(Category.SAVING, switch.seen_ms),))
    held = holding(job)
    if held is not None and not _trains_on(job, held.value) and not _trains_again(kept, held.value):
        return _of_incident(snap, job, kept, held)
    if phase is JobPhase.WAITING:
        waits = need is not None and job.next_plan is None
        runs = _without_plan(snap, job) if waits else Category.STARTING
        return Course((Span(runs, switch.seen_ms if kept.category is Category.STOPPED else now_ms),))
    if need is not None and held is None and (spans := _of_need(snap, job, kept, need)):
        return Course(spans, need.incident)
    if kept.category is Category.PRODUCTIVE:
        return Course()
    if kept.category is Category.REDOING:
        return Course(tuple(training(snap, job, kept, now_ms)))
    for name in (kept.incident, *([switch.value.incident] if kept.category not in _TURN else [])):
        last = job.incidents.get(name)
        if last is not None and last.value.plan_id == switch.value.plan_id:
            return _of_incident(snap, job, kept, last)
    return Course(tuple(training(snap, job, kept, now_ms)))


def holding(job: JobState) -> Versioned[Incident] | None:
    """The open incident that holds training up: of the whole job, or of a task that all others need."""
    there = [held for held in job.incidents.values() if held.value.outcome is Outcome.OPEN]
    of_all = [held for held in there if held.value.scope is Scope.ALL]
    found = of_all or [held for held in there if _holds_all(job, held.value)]
    return max(found, key=lambda held: held.create_revision, default=None)


def _holds_all(job: JobState, incident: Incident) -> bool:
    """Whether no task trains while this one is away."""
    if servers.is_about_servers(job, incident):
        return True
    spec, task = job.record.value.spec, job.task(incident.member)
    if kind_of(spec, task.role) is not RoleKind.TRAINING:
        return False
    trainers = training_roles(spec)
    if spec.strategy is Strategy.COORDINATOR and task.role not in CHIEF_ROLES:
        trainers -= frozenset(CHIEF_ROLES)
    return sum(role.count for role in spec.roles if role.name in trainers) == 1


def _trains_on(job: JobState, incident: Incident) -> bool:
    """Whether the tasks that the incident is to restart train until the next generation is ready."""
    switch = job.switch.value
    if switch.phase is not JobPhase.RUNNING or incident.cause not in _UNHURT or "ready" in incident.phases_ms:
        return False
    trainers = training_roles(job.record.value.spec)
    ended = (
        attempt
        for attempt, held in job.attempts.items()
        if attempt.generation == switch.generation and held.value.exit is not None
    )
    return incident.plan_id != switch.plan_id and not any(each.task.role in trainers for each in ended)


def _trains_again(kept: Goodput, incident: Incident) -> bool:
    """Whether the ledger tells of the first step after an incident that is open until all tasks run."""
    return kept.category.trains and kept.incident == incident.id and "switched" in incident.phases_ms


def _of_need(snap: Snapshot, job: JobState, kept: Goodput, need: Need) -> tuple[Span, ...]:
    """A failure of the whole job that has no record yet; empty where training goes on meanwhile."""
    if need.scope is not Scope.ALL or need.patience_ms or need.cause in _UNHURT:
        return ()
    plan, known_ms = job.next_plan, need.known_ms
    spans = [Span(Category.DETECT, known_ms - need.detected_ms), Span(Category.DECIDE, known_ms)]
    if plan is not None:
        spans += _preparing(job, plan.value.plan_id, max(plan.created_ms, known_ms))
    elif need.firm:
        spans.append(Span(_without_plan(snap, job), known_ms))
    if kept.category in _WAITING and kept.incident == need.incident:
        return (replace(spans[-1], began_ms=snap.now_ms),)
    return tuple(_after(spans, kept, need.incident))


def _of_incident(snap: Snapshot, job: JobState, kept: Goodput, held: Versioned[Incident]) -> Course:
    """The phases of an incident that the ledger does not have yet, and the training after it."""
    incident = held.value
    kept = replace(kept, reached=max(kept.reached, incident.reached))
    over, trains_ms = incident.outcome is not Outcome.OPEN, went_on_ms(snap, job, held)
    if incident.cause in ASKED:
        runs = _waits(snap, job, incident) or Span(Category.STARTING, snap.now_ms)
        spans = [] if trains_ms is not None else [runs]
    else:
        spans = _phases(snap, job, held, trains_ms)
        if trains_ms is None and (wait := _waits(snap, job, incident)) is not None:
            before = [each for each in spans if _TURN[each.category] < _TURN[wait.category]]
            spans = _after([*before, wait], kept, incident.id)
        elif kept.category in _WAITING and kept.incident == incident.id:
            # It is over by now: nobody knows what came first meanwhile.
            spans = [replace(each, began_ms=snap.now_ms) for each in spans[-1:]]
        else:
            spans = _after(spans, kept, incident.id)
        if over and kept.incident == incident.id and kept.category in _TURN:
            spans = [each for each in spans if _TURN[each.category] > _TURN[kept.category]]
    if trains_ms is None and over:
        trains_ms = held.seen_ms
    if trains_ms is not None:
        spans += training(snap, job, kept, trains_ms)
    return Course(tuple(spans), incident.id, kept.reached)


def _phases(snap: Snapshot, job: JobState, held: Versioned[Incident], trains_ms: int | None) -> list[Span]:
    """All phases of an incident so far: their ends are the writes that tell of them."""
    incident = held.value
    over = incident.outcome is not Outcome.OPEN
    alone = incident.scope is Scope.TASK
    order = [name for name in _PHASES if not (alone and name in _OF_ALL_ALONE)]
    done = [name for name in order if name in incident.phases_ms]
    end_ms = trains_ms if trains_ms is not None and over else held.seen_ms
    began_ms = end_ms - sum(incident.phases_ms[name] for name in done)
    spans: list[Span] = []
    for name in done:
        spans += _begin(job, incident, name, began_ms)
        began_ms += incident.phases_ms[name]
    following = order[order.index(done[-1]) + 1 if done else 0 :]
    if not over and following:
        spans += _begin(job, incident, following[0], began_ms)
        if trains_ms is not None and following[0] == "restored":
            spans.append(Span(Category.FIRST_STEP, min(started_ms(snap, job, incident), trains_ms)))
    return spans


def _begin(job: JobState, incident: Incident, phase: str, began_ms: int) -> list[Span]:
    if phase == "ready":
        return _preparing(job, incident.plan_id, began_ms)
    return [Span(_PHASES[phase], began_ms)]


def _preparing(job: JobState, plan_id: str, began_ms: int) -> list[Span]:
    """Tasks are prepared; once all are, the fence, a back-off or the next commit is waited for."""
    plan = job.plans.get(plan_id)
    spans = [Span(Category.PREPARE, began_ms)]
    if plan is not None:
        there = [job.prepared.get((plan_id, each.member)) for each in plan.value.placements]
        ready = [held.created_ms for held in there if held is not None and not held.value.delay]
        if len(ready) == len(there):
            spans.append(Span(Category.FENCE, max((began_ms, *ready))))
    return spans


def _after(spans: list[Span], kept: Goodput, incident: str) -> list[Span]:
    """Those that the ledger does not tell of already; the last one in any case."""
    if kept.incident != incident or kept.category not in _TURN:
        return spans
    turn = _TURN[kept.category]
    new = [each for each in spans if _TURN[each.category] > turn]
    return new or spans[-1:]


def _waits(snap: Snapshot, job: JobState, incident: Incident) -> Span | None:
    """The room or the store that a recovery waits for; None for neither."""
    switch = job.switch.value
    if incident.plan_id == switch.plan_id or incident.outcome is not Outcome.OPEN:
        return None
    closing = switch.closing
    if closing is not None:
        unread = [
            held.created_ms
            for (plan_id, _), held in job.staged.items()
            if plan_id == closing.plan_id
            and held.value.base == closing.base
            and held.value.failure is StageFailure.UNKNOWN
        ]
        return Span(Category.WAITING_STORE, min(unread)) if unread else None
    return Span(_without_plan(snap, job), snap.now_ms) if job.next_plan is None else None


def _without_plan(snap: Snapshot, job: JobState) -> Category:
    """The category of a job whose next generation has no plan: no node has room, or a pause holds it."""
    return Category.STOPPED if hold.held(snap, job) else Category.WAITING_ROOM
