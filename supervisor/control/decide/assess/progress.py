"""Finds hangs, NaN losses, missed deadlines and stragglers of a running job, from beats alone.

All of it follows from the snapshot. An agent that sends no beats makes these detectors silent (rule 10).
"""

from __future__ import annotations

from dataclasses import replace

from recovery.policy.budget import Verdict
from recovery.policy.hangs import lives
from recovery.policy.roles import RoleKind, kind_of
from recovery.policy.rules import rule_of
from recovery.policy.stragglers import stragglers
from supervisor.contract.desired import JobPhase
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.incident import STANDING_STILL, Cause, Incident, Outcome
from supervisor.contract.job.spec import Rule, Scope
from supervisor.control.decide.assess import servers
from supervisor.control.decide.assess.assessment import Assessment, Liveness
from supervisor.control.decide.assess.hanging import (
    attempt_of,
    beat_of,
    find_hang,
    left_alone,
    need_for,
    sets_startup,
    spared,
    suspected,
)
from supervisor.control.decide.assess.members import GONE, Member, MemberState
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.assess.verdicts import Judgement
from supervisor.control.decide.facts import delays, missed_base
from supervisor.control.decide.facts.history import has_stepped, steps_are_read
from supervisor.control.decide.plan import Action, put, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned

WATCHED = frozenset({Cause.HANG, Cause.NAN_LOSS, Cause.NEVER_READY, Cause.BASE_MISSED, Cause.STORE_LOST})
"""Causes that may pass by themselves once they were seen: what was begun for them is carried through."""

CLOCK_MS = 5_000
CLOCK_PARTS = 100


def wall_time(snap: Snapshot, job: JobState) -> Need | None:
    """The end of a job that has run for as long as it may; goes before all other needs."""
    limit_ms = job.record.value.spec.limits.wall_time_ms
    if limit_ms is None or ran_ms(snap, job) < limit_ms:
        return None
    ledger = job.switch.value.ledger
    reason = f"limits.wall_time allows {limit_ms / 1000:g} s"
    over = Verdict(ledger, allowed=False, backoff_ms=0, reason=reason)
    return Need(
        incident=f"wall-time-g{job.switch.value.generation}",
        cause=Cause.WALL_TIME,
        scope=Scope.ALL,
        rule="limits.wall_time",
        judgement=Judgement(Cause.WALL_TIME, over),
        known_ms=snap.now_ms,
        detail=f"{job.name} has run for {ran_ms(snap, job) // 1000} s",
    )


def out_of_time(snap: Snapshot, job: JobState) -> str:
    """Why a job that has ended cannot be started again; empty where it has time left."""
    limit_ms = job.record.value.spec.limits.wall_time_ms
    if limit_ms is None or ran_ms(snap, job) < limit_ms:
        return ""
    return (
        f"job {job.name} has run for {ran_ms(snap, job) // 1000} s, all that limits.wall_time allows "
        f"({limit_ms / 1000:g} s); submit it with --resume and a larger limits.wall_time"
    )


def ran_ms(snap: Snapshot, job: JobState) -> int:
    """How long a job with a wall-time limit has run. A new leader may miss what no clock action has kept."""
    record = job.record
    return record.value.ran_ms + (snap.now_ms - record.seen_ms if record.value.counting else 0)


def clock(snap: Snapshot, job: JobState) -> list[Action]:
    """Keep the time that the job has run, so that the next leader goes on counting from it."""
    record = job.record.value
    limit_ms = record.spec.limits.wall_time_ms
    runs = job.switch.value.phase is JobPhase.RUNNING
    if limit_ms is None:
        return []
    due_ms = max(CLOCK_MS, limit_ms // CLOCK_PARTS)
    if runs == record.counting and not (runs and snap.now_ms - job.record.seen_ms >= due_ms):
        return []
    kept = replace(record, ran_ms=ran_ms(snap, job), counting=runs)
    return [Action("clock", job.name, "", (unchanged(job.record),), (put(job.record.key, kept),))]


def find(snap: Snapshot, job: JobState, there: tuple[Member, ...], liveness: Liveness) -> Need | None:
    """The restart that a job's beats ask for.

    While an attempt has ended or a node is silent, only parameter servers that do not come back ask for one.
    """
    if any(each.state in GONE for each in there):
        return _not_back(snap, job)
    return (
        spared(job, _begun(snap, job, there))
        or _from_scratch(snap, job, there)
        or _nan(snap, job, there)
        or _not_back(snap, job)
        or spared(job, find_hang(snap, job, there, liveness))
        or _late(snap, job, there)
    )


def suspicions(snap: Snapshot, job: JobState, found: Assessment) -> list[Action]:
    """One event for each attempt that may hang, for each hang that is left alone, and for each straggler."""
    tasks = {each.task: each for each in found.members}
    lines = [("hang_suspected", tasks[task], text) for task, text in sorted(suspected(found).items())]
    lines += [
        ("straggler", tasks[task], f"makes {slower:g} times fewer steps than its peers")
        for task, slower in slow_tasks(snap, found).items()
    ]
    actions = left_alone(snap, job, found)
    actions += [
        Action(
            kind,
            job.name,
            f"{member.task} on {member.placement.node} {text}",
            (unchanged(job.switch),),
            (),
            {"task": str(member.task), "attempt": attempt_of(member)},
        )
        for kind, member, text in lines
    ]
    told = {(held.value.kind, held.value.fields.get("attempt")) for held in job.events} if actions else set()
    return [each for each in actions if (each.kind, each.fields["attempt"]) not in told]


def slow_tasks(snap: Snapshot, found: Assessment) -> dict[TaskId, float]:
    """How many times slower each straggler of a running job is than its peers; one that may hang is none."""
    if any(each.state in GONE for each in found.members):
        # Who waits for a peer that is gone stands still sooner or later than others.
        return {}
    beats = {each.task: beat_of(snap, each) for each in found.members}
    paces = {task: beat.pace for task, beat in beats.items() if beat is not None and beat.pace >= 0}
    hung = found.liveness.judgement.suspected
    return {task: slower for task, slower in stragglers(paces).items() if task not in hung}


def stacks(job: JobState) -> list[Action]:
    """Keep where the threads of a hung attempt were: its last report brings it, and is forgotten soon."""
    for held in job.incidents.values():
        incident = held.value
        if incident.cause not in STANDING_STILL or incident.stack:
            continue
        hit = {
            attempt: report.value.exit
            for attempt, report in sorted(job.attempts.items(), key=lambda each: _tells_least(job, each[0]))
            if _was_hit(incident, attempt) and _is_last(job, attempt)
        }
        # Of a whole job the one that drives it tells most; those who serve it only wait.
        if any(each is None for attempt, each in hit.items() if attempt.task == job.saver):
            continue
        found = [(attempt, each) for attempt, each in hit.items() if each is not None and each.stack]
        if found:
            attempt, last = found[0]
            # Says where its directory is kept, if it is.
            detail = "; ".join(filter(None, (incident.detail, last.detail)))
            stack = last.stack if incident.member else f"{attempt.task}, {last.stack}"
            record = replace(incident, stack=stack, detail=detail)
            return [Action("stack_kept", job.name, "", (unchanged(held),), (put(held.key, record),))]
    return []


def _tells_least(job: JobState, attempt: AttemptId) -> tuple[bool, AttemptId]:
    return (attempt.task != job.saver, attempt)


def _was_hit(incident: Incident, attempt: AttemptId) -> bool:
    """Whether the incident ended this attempt."""
    if incident.member and attempt.task.member != incident.member:
        return False
    if incident.scope is Scope.TASK:
        return (attempt.generation, attempt.number) == (incident.generation, incident.attempt - 1)
    return attempt.generation == incident.from_generation


def _is_last(job: JobState, attempt: AttemptId) -> bool:
    """Whether no later attempt of its task was in that generation: what ended before was hit by another."""
    others = (each for each in job.attempts if each.task == attempt.task)
    return not any(each.generation == attempt.generation and each.number > attempt.number for each in others)


# What was begun.


def _begun(snap: Snapshot, job: JobState, found: tuple[Member, ...]) -> Need | None:
    """A generation in preparation for a task that may have come back to life meanwhile."""
    plan = job.next_plan
    held = job.incidents.get(plan.value.incident) if plan is not None else None
    if held is None or held.value.outcome is not Outcome.OPEN or held.value.cause not in WATCHED:
        return None
    incident = held.value
    accused = next((each for each in found if each.task.member == incident.member), None)
    need = need_for(snap, job, accused, incident.cause, held.created_ms, incident.detail)
    bad_base = missed_base.spoilt(job) if incident.cause is Cause.BASE_MISSED else need.judgement.bad_base
    judgement = replace(need.judgement, bad_base=bad_base)
    return replace(need, incident=incident.id, scope=Scope.ALL, rule=incident.rule, judgement=judgement)


# Losses and deadlines.


def _from_scratch(snap: Snapshot, job: JobState, found: tuple[Member, ...]) -> Need | None:
    saver = next((each for each in found if each.task == job.saver), None)
    told = missed_base.missed(job, beat_of(snap, saver)) if saver is not None else ""
    if saver is None or not told:
        return None
    detail = f"{saver.task} on {saver.placement.node} began from scratch: {told}"
    need = need_for(snap, job, saver, Cause.BASE_MISSED, snap.now_ms, detail)
    judgement = replace(need.judgement, bad_base=missed_base.spoilt(job))
    return replace(need, scope=Scope.ALL, rule="base-missed.all", judgement=judgement)


def _not_back(snap: Snapshot, job: JobState) -> Need | None:
    """All restart where a program does not recover from the loss of its parameter servers, as others do."""
    for held in job.incidents.values():
        incident = held.value
        is_begun = incident.outcome is Outcome.OPEN and servers.was_widened(job, incident)
        if is_begun and incident.from_generation == job.switch.value.generation:
            return _of_all(job, held, incident.rule, held.seen_ms)
    for held in servers.open_incidents(job):
        incident = held.value
        if incident.to_step >= 0:
            rule = f"{incident.rule}, but training went back to step {incident.to_step}, too far"
            return _of_all(job, held, rule, held.seen_ms)
        if "restored" not in incident.phases_ms or not steps_are_read(snap, job):
            continue
        limit_ms = servers.bound_ms(snap, job)
        late = snap.now_ms - held.seen_ms >= limit_ms
        if late and servers.first_step_since(snap, job, held) is None:
            rule = f"{incident.rule}, but no task has made a step within {limit_ms / 1000:.0f} s"
            return _of_all(job, held, rule, held.seen_ms + limit_ms)
    return None


def _of_all(job: JobState, held: Versioned[Incident], rule: str, known_ms: int) -> Need:
    """An incident that goes on with all tasks, and is charged already."""
    incident = held.value
    paid = Verdict(job.switch.value.ledger, allowed=True, backoff_ms=0, reason="it is charged already")
    spoilt = servers.spoilt(job, held) if incident.to_step >= 0 else None
    return Need(
        incident=incident.id,
        cause=incident.cause,
        scope=Scope.ALL,
        rule=rule,
        judgement=Judgement(incident.cause, paid, bad_base=spoilt),
        known_ms=known_ms,
        detail=incident.detail,
        member=incident.member,
        node=incident.node,
    )


def _nan(snap: Snapshot, job: JobState, found: tuple[Member, ...]) -> Need | None:
    spec = job.record.value.spec
    if not spec.progress.watch_nan or rule_of(spec, Cause.NAN_LOSS) is Rule.IGNORE:
        return None
    for member in found:
        beat = beat_of(snap, member)
        if beat is not None and beat.nan:
            detail = f"{member.task} on {member.placement.node} printed a loss that is not a number"
            need = need_for(snap, job, member, Cause.NAN_LOSS, snap.now_ms, f"{detail}, at step {beat.step}")
            # The weights that all tasks share are spoilt.
            return replace(need, scope=Scope.ALL, rule="nan-loss.all")
    return None


def _late(snap: Snapshot, job: JobState, found: tuple[Member, ...]) -> Need | None:
    """The start-up deadline, from when a task was last told to start, or was reported to run.

    Past it, a task that does not run yet is late. While its agent says what it waits for it is not, and its
    time begins anew when that is over. The whole job is late when none of it has made a step, though this
    job's steps have been read before; and so is a training task when another of its role steps. A job of
    which no step was ever read is held to it once its tasks run only if its own file sets the limit, and only
    if none of them works or writes. A new leader counts afresh.
    """
    spec = job.record.value.spec
    limit_ms = spec.limits.startup_ms
    if limit_ms is None or rule_of(spec, Cause.NEVER_READY) is Rule.IGNORE:
        return None
    within = f"within {limit_ms / 1000:g} s (limits.startup)"
    starting = [each for each in found if each.state is MemberState.STARTING]
    unexplained = [each for each in starting if delays.free_ms(snap, job, each.task.member) >= limit_ms]
    if unexplained:
        names = ", ".join(str(each.task) for each in unexplained[:4])
        where = ", ".join(sorted({each.placement.node for each in unexplained}))
        detail = f"{names} on {where} did not start {within}"
        return need_for(snap, job, None, Cause.NEVER_READY, snap.now_ms, detail)
    late = [each for each in found if overdue(snap, job, each, limit_ms)]
    if not late or starting:
        return None
    if not has_stepped(snap, job):
        trainers = [each for each in found if kind_of(spec, each.task.role) is RoleKind.TRAINING]
        if len(late) < len(trainers):
            return None
        detail = f"no task of {job.name} has made a step {within}"
        if not steps_are_read(snap, job):
            if not sets_startup(spec) or not all(_shows_nothing(snap, each) for each in late):
                return None
            detail += ", and none works or writes anything"
        return need_for(snap, job, None, Cause.NEVER_READY, snap.now_ms, detail)
    stepping = {each.task.role for each in found if (beat := beat_of(snap, each)) and beat.has_stepped}
    first = next((each for each in late if each.task.role in stepping), None)
    if first is None:
        return None
    detail = f"{first.task} on {first.placement.node} has made no step {within}, though its peers have"
    assert first.report is not None
    return need_for(snap, job, first, Cause.NEVER_READY, first.report.created_ms + limit_ms, detail)


def _shows_nothing(snap: Snapshot, member: Member) -> bool:
    """Whether its signs of life can be read, and say that it does nothing (`overdue` has asked for fresh
    ones).
    """
    beat = beat_of(snap, member)
    return beat is not None and bool(beat.signs)


def overdue(snap: Snapshot, job: JobState, member: Member, limit_ms: int) -> bool:
    """A training task that has run for the whole of the limit without a step of its own.

    One that works, or writes what is new, is waited for, and told of (`hanging.liveness_of`).
    """
    beat, picture = beat_of(snap, member), snap.nodes.get(member.placement.node)
    if picture is None or picture.beat is None or member.report is None:
        return False
    if beat is not None and (beat.has_stepped or lives(beat.signs)):
        return False
    trains = kind_of(job.record.value.spec, member.task.role) is RoleKind.TRAINING
    runs_ms = snap.now_ms - member.report.created_ms if member.state is MemberState.RUNNING else 0
    return trains and runs_ms >= limit_ms
