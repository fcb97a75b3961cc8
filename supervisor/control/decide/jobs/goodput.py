"""The goodput ledger of a job: which category its time falls into, and when another one begins. Pure.

What runs is found from records that are there anyway: the switch, the open incident and its phases, the plan
in preparation. So nothing is written while nothing changes. A category that begins is dated back to when it
began, as the incident's phases are; what is written already stays as it is, so that the categories add up to
the time that has passed. docs/goodput.md says what each means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from recovery.policy.history import ASKED
from recovery.policy.roles import RoleKind, kind_of, training_roles
from supervisor.contract import keys
from supervisor.contract.boundaries import Op
from supervisor.contract.desired import JobPhase
from supervisor.contract.ids import AttemptId
from supervisor.contract.incident import Cause, Incident, Outcome
from supervisor.contract.job.goodput import Category, Goodput
from supervisor.contract.job.spec import CHIEF_ROLES, Scope, Strategy
from supervisor.contract.observed import StageFailure, TaskBeat
from supervisor.contract.views.jobs import GoodputView
from supervisor.control.decide.assess import servers
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.checkpoints.advice import saves_of
from supervisor.control.decide.facts import hold
from supervisor.control.decide.facts.cluster_time import ages
from supervisor.control.decide.facts.history import has_stepped, job_step
from supervisor.control.decide.plan import Action, put, still, unchanged_or_absent
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


LATE_MS = 1_000
"""A follower sees a record at most so long after it was written, as a rule."""


@dataclass(frozen=True, slots=True)
class Span:
    """A category that began at a time, on this leader's clock, and ran until the next one."""

    category: Category
    began_ms: int


@dataclass(frozen=True, slots=True)
class _Course:
    """What has run since the ledger's time, oldest first; none: what ran then runs on."""

    spans: tuple[Span, ...] = ()
    incident: str = ""
    reached: int = -1


def keep(snap: Snapshot, job: JobState, need: Need | None, *, acts: bool = False) -> list[Action]:
    """Write the ledger when another category runs than it says. A job without one begins to count now.

    `acts`: something is decided about the job in this look. What follows from that has its record then.
    """
    held, key = job.goodput, keys.goodput_of(job.name)
    if acts and held is not None and _holding(job) is None:
        return []
    if held is None or held.value.job_uuid != job.record.value.uuid:
        after = _begun(snap, job)
    else:
        waits = need is not None and need.firm and job.next_plan is None
        course = _course(snap, job, held.value, need if waits else None)
        if not course.spans or course.spans[-1].category is held.value.category:
            return []
        after = _folded(snap, job, held, course)
    compares = (still(job.record), unchanged_or_absent(key, held))
    return [Action("goodput", job.name, "", compares, (put(key, after),))]


def opened(snap: Snapshot, job: str, job_uuid: str, wall_ms: int, now_ms: int) -> Op:
    """The ledger of a job that is submitted at this time, by the leader's two clocks."""
    first = Goodput(
        job=job,
        job_uuid=job_uuid,
        since_wall_ms=wall_ms,
        wall_ms=wall_ms,
        leader=snap.token.create_revision,
        at_ms=now_ms,
    )
    return put(keys.goodput_of(job), first)


def view(snap: Snapshot, job: JobState, need: Need | None) -> GoodputView | None:
    """What a job's time was spent on up to now; None before anything is counted."""
    held = job.goodput
    if held is None or held.value.job_uuid != job.record.value.uuid:
        return None
    course = _course(snap, job, held.value, need)
    phase = job.switch.value.phase
    stands = phase.ended and phase is not JobPhase.STOPPED
    runs = course.spans[-1].category if course.spans else held.value.category
    spans = course.spans if stands else (*course.spans, Span(runs, snap.now_ms))
    now = _folded(snap, job, held, replace(course, spans=spans))
    spent_ms = {each.value: now.spent_ms[each.value] for each in Category if now.spent_ms.get(each.value)}
    elapsed_ms = sum(spent_ms.values())
    counted_ms = elapsed_ms - spent_ms.get(Category.STOPPED.value, 0)
    productive_ms = spent_ms.get(Category.PRODUCTIVE.value, 0)
    return GoodputView(
        since_wall_ms=now.since_wall_ms,
        elapsed_ms=elapsed_ms,
        spent_ms=spent_ms,
        now="" if stands else runs.value,
        share=round(productive_ms / counted_ms, 4) if counted_ms else 0.0,
        wall_ms=snap.wall_ms,
    )


def redone_in_ms(snap: Snapshot, job: JobState) -> float:
    """For how long a job that makes lost steps again certainly goes on with that; infinity for any other."""
    held = job.goodput
    if held is None or held.value.category is not Category.REDOING:
        return float("inf")
    rate = max((beat.rate for beat, _ in _beats(snap, job)), default=0.0)
    left = held.value.reached - job_step(snap, job)
    return left / rate * 500 if rate > 0 and left > 0 else 0


def _begun(snap: Snapshot, job: JobState) -> Goodput:
    phase = job.switch.value.phase
    runs = Category.PRODUCTIVE
    if phase.ended or phase is JobPhase.STOPPING:
        runs = Category.STOPPED
    elif phase is JobPhase.WAITING:
        runs = Category.STARTING
    return Goodput(
        job=job.name,
        job_uuid=job.record.value.uuid,
        since_wall_ms=snap.wall_ms,
        wall_ms=snap.wall_ms,
        category=runs,
        leader=snap.token.create_revision,
        at_ms=snap.now_ms,
    )


# Adding up.


def _elapsed_ms(snap: Snapshot, held: Versioned[Goodput]) -> int:
    """How long ago the ledger's time was.

    A leader knows it of its own records. Those that it saw being written as a follower it may have seen a
    moment late: the wall clocks tell that moment, where they agree. Of others it takes the wall clocks' word,
    where that is no less than what is certain.
    """
    kept = held.value
    if kept.leader == snap.token.create_revision:
        return max(0, snap.now_ms - kept.at_ms)
    seen_ms, told_ms = snap.now_ms - held.seen_ms, snap.wall_ms - kept.wall_ms
    if held.seen_ms > snap.read_ms:
        return told_ms if 0 <= told_ms - seen_ms <= LATE_MS else seen_ms
    return max(seen_ms, ages(snap).of(held.mod_revision), told_ms)


def _folded(snap: Snapshot, job: JobState, held: Versioned[Goodput], course: _Course) -> Goodput:
    """The ledger up to the beginning of what runs now."""
    kept, now_ms = held.value, snap.now_ms
    at_ms = now_ms - _elapsed_ms(snap, held)
    spent, runs = dict(kept.spent_ms), kept.category
    trained: dict[Category, int] = {}
    for span in course.spans:
        began_ms = min(max(span.began_ms, at_ms), now_ms)
        spent[runs.value] = spent.get(runs.value, 0) + began_ms - at_ms
        if runs.trains:
            trained[runs] = trained.get(runs, 0) + began_ms - at_ms
        at_ms, runs = began_ms, span.category
    saver, saves, held_ms = _saves(snap, job, kept)
    for category, ms in trained.items():
        moved_ms = min(ms, held_ms)
        spent[category.value] -= moved_ms
        spent[Category.SAVING.value] = spent.get(Category.SAVING.value, 0) + moved_ms
        held_ms -= moved_ms
    return replace(
        kept,
        wall_ms=snap.wall_ms - (now_ms - at_ms),
        category=runs,
        spent_ms={name: ms for name, ms in spent.items() if ms},
        incident=course.incident or kept.incident,
        reached=max(kept.reached, course.reached),
        saver=saver,
        saves=saves,
        leader=snap.token.create_revision,
        at_ms=at_ms,
    )


def _saves(snap: Snapshot, job: JobState, kept: Goodput) -> tuple[str, int, int]:
    """The saver's newest attempt, its saves so far, and how long those not counted yet held training up."""
    found = [(attempt, saves) for attempt, saves in saves_of(snap, job) if attempt.task == job.saver]
    if not found:
        return kept.saver, kept.saves, 0
    attempt, saves = max(found, key=lambda each: each[0].number)
    known = kept.saves if str(attempt) == kept.saver else 0
    new = max(0, saves.inside - known)
    return str(attempt), max(known, saves.inside), new * max(0, saves.pace.cost_ms)


# What runs.


def _course(snap: Snapshot, job: JobState, kept: Goodput, need: Need | None) -> _Course:
    switch, now_ms = job.switch, snap.now_ms
    phase = switch.value.phase
    if phase.ended or phase is JobPhase.STOPPING:
        stopped = kept.category is Category.STOPPED
        return _Course() if stopped else _Course((Span(Category.STOPPED, switch.seen_ms),))
    if phase is JobPhase.FINISHING:
        return _Course((Span(Category.SAVING, switch.seen_ms),))
    held = _holding(job)
    if held is not None and not _trains_on(job, held.value) and not _trains_again(kept, held.value):
        return _of_incident(snap, job, kept, held)
    if phase is JobPhase.WAITING:
        waits = need is not None and job.next_plan is None
        runs = _without_plan(snap, job) if waits else Category.STARTING
        return _Course((Span(runs, switch.seen_ms if kept.category is Category.STOPPED else now_ms),))
    if need is not None and held is None and (spans := _of_need(snap, job, kept, need)):
        return _Course(spans, need.incident)
    if kept.category is Category.PRODUCTIVE:
        return _Course()
    if kept.category is Category.REDOING:
        return _Course(tuple(_training(snap, job, kept, now_ms)))
    for name in (kept.incident, *([switch.value.incident] if kept.category not in _TURN else [])):
        last = job.incidents.get(name)
        if last is not None and last.value.plan_id == switch.value.plan_id:
            return _of_incident(snap, job, kept, last)
    return _Course(tuple(_training(snap, job, kept, now_ms)))


def _holding(job: JobState) -> Versioned[Incident] | None:
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


def _of_incident(snap: Snapshot, job: JobState, kept: Goodput, held: Versioned[Incident]) -> _Course:
    """The phases of an incident that the ledger does not have yet, and the training after it."""
    incident = held.value
    kept = replace(kept, reached=max(kept.reached, _reached(incident)))
    over, trains_ms = incident.outcome is not Outcome.OPEN, _trains_ms(snap, job, held)
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
        spans += _training(snap, job, kept, trains_ms)
    return _Course(tuple(spans), incident.id, kept.reached)


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
            spans.append(Span(Category.FIRST_STEP, min(_started_ms(snap, job, incident), trains_ms)))
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
    """What a job is in whose next generation has no plan: no node has room, or a pause holds it."""
    return Category.STOPPED if hold.held(snap, job) else Category.WAITING_ROOM


# Training.


def _training(snap: Snapshot, job: JobState, kept: Goodput, began_ms: int) -> list[Span]:
    """Training that began then: lost steps first, up to the furthest one that was seen before."""
    redoes = kept.category is Category.REDOING
    began = [] if redoes else [Span(Category.REDOING, began_ms)]
    if kept.reached < 0:
        return [Span(Category.PRODUCTIVE, began_ms)]
    step, base = job_step(snap, job), job.switch.value.base
    if step < 0:
        # Nobody has told of steps yet, or the program counts in another way by now.
        return [Span(Category.PRODUCTIVE, began_ms)] if has_stepped(snap, job) else []
    if step < kept.reached:
        return began
    if base is not None and base.step >= kept.reached:
        return [Span(Category.PRODUCTIVE, began_ms)]
    return [*began, Span(Category.PRODUCTIVE, _passed_ms(snap, job, kept.reached))]


def _passed_ms(snap: Snapshot, job: JobState, step: int) -> int:
    """When the job came to a step, by the pace of the task that is furthest."""
    found = [(beat, received_ms) for beat, received_ms in _beats(snap, job) if beat.step >= step]
    if not found:
        return snap.now_ms
    beat, received_ms = max(found, key=lambda each: each[0].step)
    since_ms = (beat.step - step) / beat.rate * 1000 if beat.rate > 0 else 0
    return received_ms - max(0, beat.step_age_ms) - round(since_ms)


def _reached(incident: Incident) -> int:
    """The furthest step before the restart, as far as its record tells."""
    base = incident.to_base.step if incident.to_base is not None else 0
    return max(incident.from_step, base + incident.lost_steps if incident.lost_steps > 0 else -1)


def _trains_ms(snap: Snapshot, job: JobState, held: Versioned[Incident]) -> int | None:
    """When training went on after an incident; None: it has not, or nobody has seen when."""
    incident = held.value
    if incident.plan_id != job.switch.value.plan_id:
        return None
    over = incident.outcome is Outcome.RECOVERED
    if servers.is_about_servers(job, incident):
        return held.seen_ms if over else None
    first = [
        received_ms - beat.first_step_age_ms
        for beat, received_ms in _beats(snap, job, incident)
        if beat.first_step_age_ms >= 0
    ]
    if first:
        return min(first)
    if not over:
        return None
    if "first_step" in incident.phases_ms:
        return held.seen_ms - incident.phases_ms.get("all_running", 0)
    return _started_ms(snap, job, incident, last=True)  # a program that tells of no steps


def _started_ms(snap: Snapshot, job: JobState, incident: Incident, *, last: bool = False) -> int:
    """When the first of the restarted tasks that train was seen to run, or the last of them."""
    ran = [held.created_ms for attempt, held in job.attempts.items() if _is_of(job, incident, attempt)]
    return (max if last else min)(ran, default=snap.now_ms)


def _beats(snap: Snapshot, job: JobState, incident: Incident | None = None) -> list[tuple[TaskBeat, int]]:
    """The last beat of each task that trains in the generation in force, and when it came; those that an
    incident restarted, if one is given.
    """
    found = []
    for attempt, held in job.attempts.items():
        picture = snap.nodes.get(held.value.node)
        if picture is None or picture.beat is None or not _is_of(job, incident, attempt):
            continue
        beat = picture.beat.tasks.get(str(attempt))
        if beat is not None:
            found.append((beat, picture.beat.received_ms))
    return found


def _is_of(job: JobState, incident: Incident | None, attempt: AttemptId) -> bool:
    """Whether an attempt trains in the generation in force, and was started for the incident."""
    if attempt.generation != job.switch.value.generation:
        return False
    if incident is not None and incident.scope is Scope.TASK:
        return (attempt.task.member, attempt.number) == (incident.member, incident.attempt)
    return kind_of(job.record.value.spec, attempt.task.role) is RoleKind.TRAINING
