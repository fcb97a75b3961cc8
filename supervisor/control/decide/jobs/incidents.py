"""The record of each failure and its recovery (rule 13), written in the transaction that acts on it.

A phase lasts from the time this leader saw the record's previous version to the write that ends the phase,
so that the phases add up to what an outside stopwatch shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile

from recovery.policy.history import REPORTED
from recovery.policy.roles import RoleKind, kind_of
from recovery.policy.scope import SERVERS
from supervisor.contract import keys
from supervisor.contract.boundaries import Op
from supervisor.contract.desired import Plan
from supervisor.contract.ids import AttemptId
from supervisor.contract.incident import STANDING_STILL, Cause, Event, Incident, Outcome
from supervisor.contract.job.spec import Scope
from supervisor.contract.observed import AttemptReport, AttemptState, TaskBeat
from supervisor.control.decide.assess import servers
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.facts.history import (
    has_stepped,
    job_step,
    role_has_stepped,
    sizes_before,
    steps_are_read,
)
from supervisor.control.decide.plan import (
    MAX_TEXT,
    OPS_PER_TRANSACTION,
    Action,
    delete_all,
    put,
    short,
    unchanged,
)
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned

BEFORE = ("detected", "decided")
"""The phases that are over when an incident is opened."""

MOVES = (Cause.NODE_LOST, Cause.DRAINED, Cause.GPU, Cause.RESIZED)
"""Causes for which tasks move or join alone, several at a time."""

HELD = "held"
"""Kind of the event that tells of a failure while restarts are held."""

QUIET_PROGRAM_MS = 30_000
KEPT_INCIDENTS = 200
KEPT_EVENTS = 2000


def opening(
    snap: Snapshot, job: JobState, need: Need, generation: int, plan_id: str, attempt: int = 0
) -> tuple[Op, ...]:
    """Open the incident of `need`, and close as superseded those that it overtook.

    One that is open already goes another way than it was planned: with `attempt`, one task alone is started.
    Another task that is started for it, as what it ended of followed from it, leaves it with its own.
    """
    held = job.incidents.get(need.incident)
    if held is not None:
        if attempt == 0 or held.value.outcome is not Outcome.OPEN or held.value.member != need.member:
            return ()
        alone = replace(
            held.value,
            generation=generation,
            plan_id=plan_id,
            attempt=attempt,
            scope=need.scope,
            rule=need.rule,
        )
        return (put(held.key, _phase(alone, "ready", snap.now_ms - held.created_ms)),)
    record = replace(
        _describe(snap, job, need),
        generation=generation,
        plan_id=plan_id,
        attempt=attempt,
        phases_ms={"detected": need.detected_ms, "decided": max(0, snap.now_ms - need.known_ms)},
    )
    if need.scope is Scope.TASK and need.cause is Cause.RESIZED:
        kept = frozenset(job.incidents)  # a worker that joins overtakes nothing
    else:
        kept = _planned(job) | _of_others(job, need) if need.scope is Scope.TASK else frozenset()
    return (*_supersede(job, record.id, kept), put(keys.incident_record(job.name, record.id), record))


def _describe(snap: Snapshot, job: JobState, need: Need) -> Incident:
    return Incident(
        id=need.incident,
        job=job.name,
        cause=need.cause,
        task=str(job.task(need.member)) if need.member else "",
        node=need.node,
        rule=need.rule,
        scope=need.scope,
        detail=short(need.detail),
        wall_ms=snap.wall_ms,
        generation=job.switch.value.generation,
        member=need.member,
        from_step=job_step(snap, job),
        # What a killed task happened to print last says nothing of why it was killed.
        tail=need.evidence.tail if _tells(need) else "",
        stack=need.evidence.stack if need.cause in STANDING_STILL else "",
        from_generation=job.switch.value.generation,
        base=job.switch.value.base,
        last_step=need.evidence.last_step,
        stepped=has_stepped(snap, job) if need.scope is Scope.ALL else need.evidence.stepped,
        flat=need.evidence.flat,
        began=need.evidence.began,
        error=need.evidence.error,
    )


def _tells(need: Need) -> bool:
    """Whether the end of the output says why it failed."""
    return need.cause.program_fault or need.cause in REPORTED or bool(need.judgement.undone)


def _planned(job: JobState) -> frozenset[str]:
    """Incidents whose recovery is to come by a plan: their own, or, where that has lost, the next one.

    What restarts one task brings no recovery of all.
    """
    plan = job.next_plan
    waiting = {
        held.value.id for held in job.incidents.values() if held.value.plan_id != job.switch.value.plan_id
    }
    return frozenset(waiting | ({plan.value.incident} if plan is not None else set()))


def _of_others(job: JobState, need: Need) -> frozenset[str]:
    """Moves of other tasks that go on in the generation in force, and the return of its parameter servers."""
    stays = job.task(need.member).role != SERVERS
    return frozenset(
        held.value.id
        for held in job.incidents.values()
        if held.value.scope is Scope.TASK
        and (held.value.cause in MOVES or (stays and servers.is_about_servers(job, held.value)))
        and held.value.plan_id == job.switch.value.plan_id
        and held.value.member != need.member
    )


def _supersede(job: JobState, by: str, kept: frozenset[str] = frozenset()) -> tuple[Op, ...]:
    """Close the open incidents that another one overtook, but those that are `kept`."""
    return tuple(
        put(held.key, replace(held.value, outcome=_outcome_of(job, held)))
        for held in job.incidents.values()
        if held.value.outcome is Outcome.OPEN and held.value.id != by and held.value.id not in kept
    )


def _outcome_of(job: JobState, held: Versioned[Incident]) -> Outcome:
    """How an incident ended that waited for a first step: what was saved since then was trained."""
    whole = held.value.scope is Scope.ALL and held.value.plan_id == job.switch.value.plan_id
    return Outcome.RECOVERED if whole and _has_saved(job, held) else Outcome.SUPERSEDED


def at_close(snap: Snapshot, job: JobState, need: Need, plan: Plan) -> tuple[Op, ...]:
    """Prepared and fenced: end the phase `ready`; a lost node's incident is opened here, when D is over."""
    held = job.incidents.get(plan.incident)
    planned_ms = job.plans[plan.plan_id].created_ms
    if held is not None:
        if held.value.outcome is not Outcome.OPEN:
            return ()
        # The plan that it was opened with may have lost: this one brings the recovery. Or one task was
        # restarted, and what followed from the same failure takes the whole job. Either took its time.
        again = replace(
            held.value,
            generation=plan.generation,
            plan_id=plan.plan_id,
            scope=need.scope,
            rule=need.rule,
            sizes=_other_sizes(snap, job, need, plan),
            phases_ms={name: held.value.phases_ms[name] for name in BEFORE if name in held.value.phases_ms},
        )
        ready = _phase(again, "ready", snap.now_ms - held.created_ms)
        return (*_supersede(job, again.id), put(held.key, ready))
    record = replace(
        _describe(snap, job, need),
        id=plan.incident,
        generation=plan.generation,
        plan_id=plan.plan_id,
        sizes=_other_sizes(snap, job, need, plan),
        phases_ms={
            "detected": need.detected_ms,
            "decided": max(0, planned_ms - need.known_ms),
            "ready": max(0, snap.now_ms - max(planned_ms, need.known_ms)),
        },
    )
    return (*_supersede(job, record.id), put(keys.incident_record(job.name, record.id), record))


def _other_sizes(snap: Snapshot, job: JobState, need: Need, plan: Plan) -> dict[str, int]:
    """The counts with which the job trained, of the roles that grow with this plan, or were asked to shrink.

    What shrinks because nodes are lost cannot be taken back, and what is submitted has not trained.
    """
    if need.judgement.undone or (need.cause is Cause.SUBMITTED and not _starts_again(job)):
        return {}
    now = {role.name: role.count for role in job.record.value.spec.roles}
    trained = now | sizes_before(snap, job)
    planned = {role.name: role.count for role in job.planned(plan).roles}
    asked = job.intent.value.sizes
    return {
        name: trained[name]
        for name, count in planned.items()
        if count > trained[name] or (count < trained[name] and asked.get(name) == count)
    }


def _starts_again(job: JobState) -> bool:
    return job.intent.value.restart_serial > job.switch.value.restart_serial


def at_flip(snap: Snapshot, job: JobState, incident: str) -> tuple[Op, ...]:
    """The generation is in force: end the phase `switched`."""
    held = job.incidents.get(incident)
    if held is None or held.value.outcome is not Outcome.OPEN:
        return ()
    switched = _phase(held.value, "switched", snap.now_ms - held.seen_ms)
    closing = job.switch.value.closing
    to_base = closing.base if closing is not None else None
    lost_steps = _lost_steps(snap, job, held.value)
    return (put(held.key, replace(switched, to_base=to_base, lost_steps=lost_steps)),)


def _lost_steps(snap: Snapshot, job: JobState, incident: Incident) -> int:
    """How far training had come beyond the base that it goes back to; -1 if nobody knows."""
    closing = job.switch.value.closing
    reached = max(incident.from_step, job_step(snap, job))
    base = closing.base.step if closing is not None and closing.base is not None else 0
    # A number that was printed once, at the start, is where training began, and not how far it came.
    began = [each.value.to_step for each in job.incidents.values() if _began_here(job, each.value)]
    if reached < 0 or closing is None or reached < base or reached in began:
        return -1
    return reached - base


def _began_here(job: JobState, incident: Incident) -> bool:
    return incident.scope is Scope.ALL and incident.generation == job.switch.value.generation


def failed(snap: Snapshot, job: JobState, need: Need, reason: str) -> tuple[Op, ...]:
    """The job ends with this failure."""
    held = job.incidents.get(need.incident)
    record = held.value if held is not None else _describe(snap, job, need)
    phases_ms = record.phases_ms or {"detected": need.detected_ms}
    ended = replace(
        record,
        outcome=Outcome.FAILED,
        detail=short(reason, 3 * MAX_TEXT),
        phases_ms=phases_ms,
        tail=need.evidence.tail,
    )
    return (*_supersede(job, ended.id), put(keys.incident_record(job.name, ended.id), ended))


def follow_up(snap: Snapshot, job: JobState) -> list[Action]:
    """Measure how open incidents go on: restored, first step; and close those of a job that has ended."""
    actions: list[Action] = []
    for held in job.incidents.values():
        if held.value.outcome is not Outcome.OPEN:
            continue
        if job.switch.value.phase.ended:
            actions.append(_close(job, held, replace(held.value, outcome=Outcome.ENDED), ""))
        elif held.value.plan_id == job.switch.value.plan_id:
            actions += _measure(snap, job, held)
    return actions + _forget_old(job)


def tell_held(job: JobState, needs: Iterable[Need], why: str) -> list[Action]:
    """An event for the first failure that is not answered, as restarts are held; once for each.

    That of a node is one for all the tasks that were lost with it.
    """
    told = {held.value.fields.get("incident") for held in job.events if held.value.kind == HELD}
    for need in needs:
        failure = (
            need.incident.partition(f"-{need.member}")[0] if need.cause is Cause.NODE_LOST else need.incident
        )
        if need.firm and failure not in told:
            fields = {"incident": failure, "cause": need.cause.value, "node": need.node}
            text = f"{need.detail}; nothing is restarted or moved: {why}"
            return [Action(HELD, job.name, text, (unchanged(job.switch),), (), fields)]
    return []


def lapse(snap: Snapshot, job: JobState) -> list[Action]:
    """Close the open incidents that nothing will end: their plans are gone, and nothing is needed any more.

    Not at once: a need may be gone for a look and come back, and its incident, once closed, tells no more.
    """
    return [
        _close(job, held, replace(held.value, outcome=Outcome.SUPERSEDED), "")
        for held in job.incidents.values()
        if held.value.outcome is Outcome.OPEN
        and held.value.plan_id not in (job.switch.value.plan_id, *job.plans)
        and snap.now_ms - held.seen_ms > snap.timing.d_ms
    ]


def _measure(snap: Snapshot, job: JobState, held: Versioned[Incident]) -> list[Action]:
    incident = held.value
    restarted = _restarted(job, incident)
    reports = [job.attempts.get(attempt) for attempt in restarted]
    training = tuple(attempt for attempt in restarted if _steps(job, attempt))
    # An evaluator tells at once, too, which step it reads: the one that training is to go on from.
    stepped = _first_steps(snap, job, training or restarted)
    if "restored" not in incident.phases_ms:
        running = [r for r in reports if r is not None and r.value.state is AttemptState.RUNNING]
        if not running or len(running) < len(reports):
            return []
        return [_restored(snap, job, held, running, stepped)]
    if servers.is_about_servers(job, incident):
        return _back(snap, job, held)
    if not stepped:
        if training and not _steps_are_known(snap, job, incident) and _has_saved(job, held):
            done = replace(incident, outcome=Outcome.RECOVERED)
            return [_close(job, held, done, f"a checkpoint was saved after: {incident.detail}")]
        waited_ms = snap.now_ms - held.seen_ms
        if training and (waited_ms < QUIET_PROGRAM_MS or _others_step(snap, job, incident)):
            return []
        done = replace(incident, outcome=Outcome.RECOVERED)
        return [_close(job, held, done, f"its tasks run, and report no step, after: {incident.detail}")]
    beat = _earliest(stepped)
    lasted_ms = snap.now_ms - beat.first_step_age_ms - held.seen_ms
    return [_recovered(snap, job, held, _phase(incident, "first_step", lasted_ms), beat)]


def _back(snap: Snapshot, job: JobState, held: Versioned[Incident]) -> list[Action]:
    """The first step since its parameter servers run again. Those before it count from another restore."""
    if held.value.to_step >= 0:
        return []  # it went back too far: all restart
    found = servers.first_step_since(snap, job, held)
    if found is None:
        quiet = snap.now_ms - held.seen_ms >= QUIET_PROGRAM_MS and not steps_are_read(snap, job)
        done = replace(held.value, outcome=Outcome.RECOVERED)
        return [_close(job, held, done, f"its tasks run, and report no step, after: {done.detail}")] * quiet
    beat, stepped_ms = found
    if servers.is_too_low(job, held, beat):
        return [_close(job, held, replace(held.value, to_step=beat.step), "")]
    record = _phase(held.value, "first_step", stepped_ms - held.seen_ms)
    if beat.step >= 0 and record.from_step >= 0 and not beat.is_local:
        record = replace(record, lost_steps=max(0, record.from_step - beat.step))
    return [_recovered(snap, job, held, record, replace(beat, first_step=beat.step))]


def _restored(
    snap: Snapshot,
    job: JobState,
    held: Versioned[Incident],
    running: list[Versioned[AttemptReport]],
    stepped: list[TaskBeat],
) -> Action:
    """End the phase `restored`: all tasks run. Training may have resumed before the last of them did."""
    incident, runs_ms = held.value, max(report.created_ms for report in running)
    first = _earliest(stepped) if stepped else None
    stepped_ms = snap.now_ms - first.first_step_age_ms if first is not None else runs_ms
    if first is None or stepped_ms >= runs_ms or len(running) == 1:
        return _close(job, held, _phase(incident, "restored", runs_ms - held.seen_ms), "")
    began_ms = min(
        stepped_ms, *(each.created_ms for each in running if str(each.value.attempt) == first.attempt)
    )
    restored = _phase(incident, "restored", began_ms - held.seen_ms)
    with_step = _phase(restored, "first_step", stepped_ms - max(began_ms, held.seen_ms))
    # A leader that came later tells of the time that it has seen.
    late_ms = runs_ms - max(stepped_ms, held.seen_ms)
    return _recovered(snap, job, held, _phase(with_step, "all_running", late_ms), first)


def _earliest(stepped: list[TaskBeat]) -> TaskBeat:
    return max(stepped, key=lambda beat: beat.first_step_age_ms)


def _recovered(
    snap: Snapshot, job: JobState, held: Versioned[Incident], record: Incident, first: TaskBeat
) -> Action:
    # A count of its own is no step of the job.
    known = not first.is_local or job_step(snap, job) >= 0
    done = replace(record, outcome=Outcome.RECOVERED, to_step=first.first_step if known else -1)
    base = record.to_base if record.scope is Scope.ALL else None
    if base is not None and 0 <= first.first_step < base.step:
        # It has not gone on from its checkpoint: what it makes again is more, if it counts steps of the job.
        again = record.from_step - first.first_step if known and record.from_step >= 0 else -1
        done = replace(done, to_step=first.first_step, lost_steps=max(-1, again))
    at = f" at step {done.to_step}" if done.to_step >= 0 else ""
    late = f", all its tasks run after {done.total_ms} ms" if done.total_ms > done.to_first_step_ms else ""
    text = (
        f"training goes on{at}, {done.to_first_step_ms} ms after: {record.detail} (rule {record.rule}){late}"
    )
    return _close(job, held, done, text)


def _close(job: JobState, held: Versioned[Incident], record: Incident, text: str) -> Action:
    return Action(
        kind="recovered" if record.outcome is Outcome.RECOVERED else "incident",
        job=job.name,
        text=text,
        compares=(unchanged(held),),
        ops=(put(held.key, record),),
        fields={
            "incident": record.id,
            "task": record.task,
            "cause": record.cause.value,
            "total_ms": str(record.total_ms),
        },
    )


def _forget_old(job: JobState) -> list[Action]:
    closed = sorted(
        (held for held in job.incidents.values() if held.value.outcome is not Outcome.OPEN),
        key=lambda held: held.create_revision,
    )
    return [
        Action("incident_forgotten", job.name, "", (unchanged(held),), delete_all((held,)))
        for held in closed[: max(0, len(closed) - KEPT_INCIDENTS)]
    ]


def forget_events(snap: Snapshot) -> list[Action]:
    """Drop events that should be gone: each new one deletes an old one, but not where it was refused."""
    if not snap.events:
        return []
    last = _serial(snap.events[-1]) - KEPT_EVENTS
    # They are in order, and asked for at every look: as a rule the first one is to stay.
    old = list(takewhile(lambda held: _serial(held) <= last, snap.events))[:OPS_PER_TRANSACTION]
    return [Action("events_removed", "", "", (), delete_all(old))] if old else []


def _serial(held: Versioned[Event]) -> int:
    return int(keys.parse(held.key)[0])


def _restarted(job: JobState, incident: Incident) -> tuple[AttemptId, ...]:
    plan = job.plan_in_force
    if plan is not None and servers.is_about_servers(job, incident):
        return servers.attempts_of(job, plan.value)
    if incident.scope is Scope.TASK:
        return (AttemptId(job.task(incident.member), incident.generation, incident.attempt),)
    if plan is None:
        return ()
    began = (each.member for each in plan.value.placements if each.member not in plan.value.moved)
    return tuple(AttemptId(job.task(member), incident.generation, 1) for member in began)


def _steps(job: JobState, attempt: AttemptId) -> bool:
    return kind_of(job.record.value.spec, attempt.task.role) is RoleKind.TRAINING


def _steps_are_known(snap: Snapshot, job: JobState, incident: Incident) -> bool:
    """Whether its program prints steps, as far as is known: then the first one ends the incident."""
    return incident.cause is Cause.SUBMITTED or incident.stepped or steps_are_read(snap, job)


def _others_step(snap: Snapshot, job: JobState, incident: Incident) -> bool:
    """Whether a worker joins, and others of its role tell of steps: then the first one of its own counts."""
    joins = (incident.cause, incident.scope) == (Cause.RESIZED, Scope.TASK)
    return joins and role_has_stepped(snap, job, job.task(incident.member).role)


def _has_saved(job: JobState, held: Versioned[Incident]) -> bool:
    """Whether a checkpoint was committed after the restart: a program that prints no steps trains again."""
    incident = held.value
    return any(
        ref.generation == incident.generation
        and (incident.scope is Scope.ALL or commit.seen_ms > held.seen_ms)
        for ref, commit in job.commits.items()
    )


def _first_steps(snap: Snapshot, job: JobState, attempts: tuple[AttemptId, ...]) -> list[TaskBeat]:
    plan = job.plan_in_force
    nodes = {p.member: p.node for p in plan.value.placements} if plan is not None else {}
    found = []
    for attempt in attempts:
        beat = snap.beat_of(nodes.get(attempt.task.member, ""), attempt)
        if beat is not None and beat.first_step_age_ms >= 0:
            found.append(beat)
    return found


def _phase(incident: Incident, phase: str, lasted_ms: int) -> Incident:
    return replace(incident, phases_ms={**incident.phases_ms, phase: max(0, lasted_ms)})
