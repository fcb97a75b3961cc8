"""The ledger: it is written when another category begins, and adds up.

Nothing is written while nothing changes. A category that begins is dated back to when it began, as the
incident's phases are; what is written already stays as it is, so that the categories add up to the time that
has passed. docs/goodput.md says what each means.
"""

from __future__ import annotations

from dataclasses import replace

from recovery.policy.roles import training_roles
from supervisor.contract import keys
from supervisor.contract.boundaries import Op
from supervisor.contract.desired import JobPhase
from supervisor.contract.job.goodput import Category, Goodput
from supervisor.contract.job.spec import Strategy
from supervisor.contract.views.jobs import GoodputView
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.checkpoints.advice import saves_of
from supervisor.control.decide.facts.cluster_time import ages
from supervisor.control.decide.facts.history import job_step
from supervisor.control.decide.goodput.course import Course, course_of, holding
from supervisor.control.decide.goodput.training import Span, beats
from supervisor.control.decide.plan import Action, put, still, unchanged_or_absent
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned

LATE_MS = 1_000
"""A follower sees a record at most so long after it was written, as a rule."""


def keep(snap: Snapshot, job: JobState, need: Need | None, *, acts: bool = False) -> list[Action]:
    """Write the ledger when another category runs than it says. A job without one begins to count now.

    `acts`: something is decided about the job in this look. What follows from that has its record then.
    """
    held, key = job.goodput, keys.goodput_of(job.name)
    if acts and held is not None and holding(job) is None:
        return []
    if held is None or held.value.job_uuid != job.record.value.uuid:
        after = _begun(snap, job)
    else:
        waits = need is not None and need.firm and job.next_plan is None
        course = course_of(snap, job, held.value, need if waits else None)
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
    """The categories of a job's time up to now; None before anything is counted."""
    held = job.goodput
    if held is None or held.value.job_uuid != job.record.value.uuid:
        return None
    course = course_of(snap, job, held.value, need)
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
    rate = max((beat.rate for beat, _ in beats(snap, job)), default=0.0)
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


def _folded(snap: Snapshot, job: JobState, held: Versioned[Goodput], course: Course) -> Goodput:
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
    spec = job.record.value.spec
    if spec.strategy is Strategy.ASYNC and sum(spec.role(each).count for each in training_roles(spec)) > 1:
        return kept.saver, kept.saves, 0  # the others train on meanwhile
    found = [(attempt, saves) for attempt, saves in saves_of(snap, job) if attempt.task == job.saver]
    if not found:
        return kept.saver, kept.saves, 0
    attempt, saves = max(found, key=lambda each: each[0].number)
    known = kept.saves if str(attempt) == kept.saver else 0
    new = max(0, saves.inside - known)
    return str(attempt), max(known, saves.inside), new * max(0, saves.pace.cost_ms)
