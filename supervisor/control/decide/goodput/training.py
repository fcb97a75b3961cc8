"""The training after a failure: when it went on, and which of its steps are made again."""

from __future__ import annotations

from dataclasses import dataclass

from recovery.policy.roles import RoleKind, kind_of
from supervisor.contract.ids import AttemptId
from supervisor.contract.incident import Incident, Outcome
from supervisor.contract.job.goodput import Category, Goodput
from supervisor.contract.job.spec import Scope
from supervisor.contract.observed import TaskBeat
from supervisor.control.decide.assess import servers
from supervisor.control.decide.facts.history import has_stepped, job_step
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned


@dataclass(frozen=True, slots=True)
class Span:
    """A category that began at a time, on this leader's clock, and ran until the next one."""

    category: Category
    began_ms: int


def training(snap: Snapshot, job: JobState, kept: Goodput, began_ms: int) -> list[Span]:
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
    found = [(beat, received_ms) for beat, received_ms in beats(snap, job) if beat.step >= step]
    if not found:
        return snap.now_ms
    beat, received_ms = max(found, key=lambda each: each[0].step)
    since_ms = (beat.step - step) / beat.rate * 1000 if beat.rate > 0 else 0
    return received_ms - max(0, beat.step_age_ms) - round(since_ms)


def went_on_ms(snap: Snapshot, job: JobState, held: Versioned[Incident]) -> int | None:
    """When training went on after an incident; None: it has not, or nobody has seen when."""
    incident = held.value
    if incident.plan_id != job.switch.value.plan_id:
        return None
    over = incident.outcome is Outcome.RECOVERED
    if servers.is_about_servers(job, incident):
        return held.seen_ms if over else None
    first = [
        received_ms - beat.first_step_age_ms
        for beat, received_ms in beats(snap, job, incident)
        if beat.first_step_age_ms >= 0
    ]
    if first:
        return min(first)
    if not over:
        return None
    if "first_step" in incident.phases_ms:
        return held.seen_ms - incident.phases_ms.get("all_running", 0)
    return started_ms(snap, job, incident, last=True)  # a program that tells of no steps


def started_ms(snap: Snapshot, job: JobState, incident: Incident, *, last: bool = False) -> int:
    """When the first of the restarted tasks that train was seen to run, or the last of them."""
    ran = [held.created_ms for attempt, held in job.attempts.items() if _is_of(job, incident, attempt)]
    return (max if last else min)(ran, default=snap.now_ms)


def beats(snap: Snapshot, job: JobState, incident: Incident | None = None) -> list[tuple[TaskBeat, int]]:
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
