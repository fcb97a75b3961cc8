"""A running job's tasks that show no sign of life: what is suspected, what is acted upon, what is left alone.

The judgement itself is `recovery.policy.hangs`; this module gives it the signs, and draws the consequences.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from recovery.policy.hangs import (
    SAVE,
    SAVES_LEAST,
    STEP,
    TRAINING,
    WAITS,
    Hang,
    Judgement,
    Running,
    bounds_of,
    describe,
    idle_starts,
    judge,
    slow_starts,
    waits_for_data,
)
from recovery.policy.roles import RoleKind, kind_of, training_roles
from recovery.policy.rules import rule_of
from supervisor.contract.bounds import MAX_DURATION_MS
from supervisor.contract.desired import JobPhase
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import JobSpec, Limits, Rule, Scope
from supervisor.contract.observed import AttemptReport, AttemptState, ExitReason, Sign, TaskBeat
from supervisor.control.decide.assess import servers, verdicts
from supervisor.control.decide.assess.assessment import Assessment, Liveness
from supervisor.control.decide.assess.failures import need_of
from supervisor.control.decide.assess.members import Member, MemberState
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.facts.history import incident_id, life_of, steps_are_read
from supervisor.control.decide.plan import Action, unchanged
from supervisor.control.decide.snapshot import JobState, NodeState, Snapshot, Versioned

MOST_NAMED = 8


def find_hang(snap: Snapshot, job: JobState, there: tuple[Member, ...], liveness: Liveness) -> Need | None:
    """The restart that a hang asks for, if it is to be acted upon."""
    if liveness.acted is None:
        return None
    hang, need = liveness.acted
    return _with_others(snap, job, there, hang, need)


def _with_others(snap: Snapshot, job: JobState, there: tuple[Member, ...], hang: Hang, need: Need) -> Need:
    """The restart of the blamed task, and with it of those that hang as it does and may restart in place.

    One that takes the whole job may only wait for the blamed task. The next verdict finds it if it hangs.
    """
    if need.scope is Scope.ALL or not _may(need) or not hang.others:
        return need
    if len(hang.others) >= servers.MOST:
        detail = f"{need.detail}; {len(hang.others)} more hang with it"
        rule = f"{need.rule}, but more than {servers.MOST} tasks hang"
        return replace(need, scope=Scope.ALL, rule=rule, detail=detail)
    if snap.now_ms < need.due_ms:
        return need
    others = frozenset(hang.others)
    needs = (_need_of(snap, job, each, hang) for each in there if each.task in others)
    beside = tuple(each.member for each in needs if each.scope is Scope.TASK and _may(each))
    if not beside:
        return need
    names = ", ".join(str(job.task(member)) for member in beside[:MOST_NAMED])
    more = f" and {len(beside) - MOST_NAMED} more" if len(beside) > MOST_NAMED else ""
    return replace(need, beside=beside, detail=f"{need.detail}; {names}{more} hang with it")


def _may(need: Need) -> bool:
    return need.judgement.verdict.allowed


def _member(there: tuple[Member, ...], task: TaskId | None) -> Member | None:
    return next((each for each in there if each.task == task), None)


def _need_of(snap: Snapshot, job: JobState, member: Member | None, hang: Hang) -> Need:
    """The restart of a task that hangs; without one, of the whole job.

    One that waits for its data is no fault of its program: its store is.
    """
    # Known since its time was up: the back-off runs from there.
    story = _story(snap, job, member, hang)
    cause = Cause.STORE_LOST if hang.waits is not None and hang.root in (None, hang.waits) else Cause.HANG
    need = need_for(snap, job, member, cause, snap.now_ms - hang.late_ms, story)
    evidence = replace(need.evidence, flat=hang.flat)
    return replace(need, detected_ms=hang.stalled_ms - hang.late_ms, evidence=evidence)


def spared(job: JobState, need: Need | None) -> Need | None:
    """A hang found by our own measure never fails the job: a healthy program may look like one."""
    if need is None or need.cause is not Cause.HANG or need.judgement.verdict.allowed:
        return need
    return need if _is_users_wish(job) else None


def sets_startup(spec: JobSpec) -> bool:
    """Whether the job's own file says how long a start may take."""
    return spec.limits.startup_ms != Limits().startup_ms


def _is_users_wish(job: JobState) -> bool:
    """Whether the job itself says when a task hangs, or what a hang leads to."""
    spec = job.record.value.spec
    return spec.progress.act_after_ms is not None or rule_of(spec, Cause.HANG) is Rule.FAIL


def suspected(found: Assessment) -> dict[TaskId, str]:
    """The tasks of a running job that may hang, with the signs of life that each is missing."""
    liveness = found.liveness
    return {
        each.task: _suspicion(liveness, each)
        for each in liveness.tasks
        if each.task in liveness.judgement.suspected
    }


def _suspicion(liveness: Liveness, each: Running) -> str:
    lacks = describe(each)
    if each.task in liveness.slow:
        lacks = (
            f"has made no step in the {each.fresh_ms / 1000:.0f} s since its start (limits.startup is over)"
        )
    works = each.task in liveness.judgement.busy and not waits_for_data(each)
    return lacks + (", but still works or writes" if works else "")


def left_alone(snap: Snapshot, job: JobState, found: Assessment) -> list[Action]:
    """An operator is told of each hang that we do not act upon, once for each attempt or generation."""
    return [_told_of_left(snap, job, found, hang, why) for hang, why in found.liveness.left]


def _told_of_left(snap: Snapshot, job: JobState, found: Assessment, hang: Hang, why: str) -> Action:
    root = _member(found.members, hang.root)
    attempt = attempt_of(root) if root is not None else f"{job.name}@{job.switch.value.generation}"
    text = (
        f"{_story(snap, job, root, hang)}; it is left running: {why}. If it does hang, restart it "
        f"(supervisorctl restart {job.name}) and set progress.act_after"
    )
    fields = {"task": str(hang.root or ""), "attempt": attempt}
    return Action("hang_left", job.name, text, (unchanged(job.switch),), (), fields)


def _sorted_out(
    snap: Snapshot, job: JobState, there: tuple[Member, ...], judgement: Judgement
) -> tuple[tuple[Hang, Need] | None, tuple[tuple[Hang, str], ...]]:
    """The hang to act upon, with its restart, and those that are left alone, each with the reason."""
    left: list[tuple[Hang, str]] = []
    hang = None if rule_of(job.record.value.spec, Cause.HANG) is Rule.IGNORE else judgement.hang
    while hang is not None:
        need = _need_of(snap, job, _member(there, hang.root), hang)
        why = _why_left(job, need, hang)
        if not why:
            return (hang, need), tuple(left)
        left.append((hang, why))
        # Where the budget of the job is spent, none of the others may restart either.
        if len(left) == servers.MOST or not _may(need_for(snap, job, None, need.cause, need.known_ms, why)):
            break
        hang = judgement.hang_beside({each.root for each, _ in left if each.root is not None})
    return None, tuple(left)


def _why_left(job: JobState, need: Need, hang: Hang) -> str:
    """Why a hang is not acted upon; empty if it is.

    The first one is. A second one is believed only if a sign of training is missing that was missing before,
    and if nothing is written any more.
    """
    if _is_users_wish(job):
        return ""
    before = [past.incident.flat for past in life_of(job) if past.incident.cause is Cause.HANG]
    training = set(hang.flat) & set(TRAINING)
    if any(flat and not training & set(flat) for flat in before):
        return "it was restarted for other missing signs before"
    if before and hang.writes:
        return "it was restarted for that before, and goes on writing output"
    return "" if need.judgement.verdict.allowed else need.judgement.verdict.reason


def _story(snap: Snapshot, job: JobState, root: Member | None, hang: Hang) -> str:
    stalled = f"{hang.stalled_ms / 1000:.1f} s"
    beat = beat_of(snap, root) if root is not None else None
    where = f"{root.task} on {root.placement.node}" if root is not None else job.name
    stopped = f"{where} is stopped by a signal" if beat is not None and beat.stopped else ""
    waits = f"{hang.waits} {WAITS}" if hang.waits is not None else ""
    if hang.everyone and hang.root != _only(job):
        what = "made a step" if STEP in hang.flat else "shown a sign of training"
        flat = f" ({', '.join(hang.flat)} flat)" if hang.flat != (STEP,) else ""
        why = stopped or waits
        return f"no task of {job.name} has {what} for {stalled}{flat}" + (f": {why}" if why else "")
    back_ms = servers.back_for_ms(snap, job)
    running = _running(snap, job, root, beat, back_ms) if root is not None and beat is not None else None
    lacks = describe(running) if running is not None and running.signs else f"has made no step for {stalled}"
    why = "it is stopped by a signal" if stopped else waits if root is None else ""
    return f"{where} {lacks}" + (f": {why}" if why else "")


def _only(job: JobState) -> TaskId | None:
    tasks = job.record.value.spec.tasks()
    return tasks[0] if len(tasks) == 1 else None


def liveness_of(snap: Snapshot, job: JobState, there: tuple[Member, ...]) -> Liveness:
    """The liveness of a running job's tasks, by their signs of life."""
    tasks = _tasks(snap, job, there)
    spec = job.record.value.spec
    # A task that waits for parameter servers shows no sign of life: `progress` holds it to a bound.
    if not spec.progress.watch_hangs or servers.open_incidents(job):
        return Liveness(tasks)
    before = sum(past.incident.cause is Cause.HANG for past in life_of(job)) if tasks else 0
    bounds = bounds_of(tasks, spec.progress, spec.limits.startup_ms, hung_before=before)
    judgement = judge(tasks, bounds, by_training=spec.progress.act_after_ms is not None)
    held_to_it = steps_are_read(snap, job) or sets_startup(spec)
    slow = slow_starts(tasks, spec.limits.startup_ms, steps_are_read=steps_are_read(snap, job))
    idle = idle_starts(tasks, spec.limits.startup_ms) if held_to_it else frozenset[TaskId]()
    acted, left = _sorted_out(snap, job, there, judgement)
    # `cannot_end` names the others: they wait for nothing that will come, and seem to hang therefore.
    left_alone = {attempt.task for attempt in left_behind(snap, job)[0]}
    suspected = (judgement.suspected | slow | idle) - left_alone
    judgement = replace(judgement, suspected=suspected, busy=judgement.busy | slow)
    return Liveness(tasks, judgement, slow, acted, left)


def left_behind(
    snap: Snapshot, job: JobState, for_ms: int = 0
) -> tuple[tuple[AttemptId, ...], tuple[str, ...]]:
    """The attempts that run on after other training tasks have ended with 0, and the members that have ended.

    None before they have for that time. Either no task of their role has ended, or they make no steps since.
    """
    plan = job.plan_in_force
    if plan is None or job.switch.value.phase is not JobPhase.RUNNING:
        return (), ()
    trains, ended, left = training_roles(job.record.value.spec), dict[str, int](), list[AttemptId]()
    for placed in plan.value.placements:
        held = job.report(placed, plan.value)
        if held is None or placed.role not in trains:
            continue
        end = held.value.exit
        if end is not None and (end.reason, end.code) == (ExitReason.EXIT, 0):
            ended[placed.member] = held.seen_ms
        elif held.value.state is AttemptState.RUNNING:
            left.append(held.value.attempt)
    since_ms = snap.now_ms - max(ended.values(), default=snap.now_ms)
    if not ended or since_ms < for_ms:
        return (), ()
    roles = {each.task.role for each in left}
    if roles & {job.task(member).role for member in ended} and _steps_since(snap, job, left, since_ms):
        return (), ()
    return tuple(left), tuple(ended)


def _steps_since(snap: Snapshot, job: JobState, left: list[AttemptId], since_ms: int) -> bool:
    """Whether one of the attempts has made a step within that time, or may have."""
    beats = (snap.beat_of(job.attempts[each].value.node, each) for each in left)
    return any(beat is None or 0 <= beat.step_age_ms < since_ms for beat in beats)


def _tasks(snap: Snapshot, job: JobState, there: tuple[Member, ...]) -> tuple[Running, ...]:
    """Every task, all of which must be heard, or be done: one that is not may be who the others wait for.

    So may one that has ended and is still to be reported, by an agent that etcd does not answer; and one that
    does not run yet, or has run for too short to have been told of in a beat. None of them is judged then.
    One that beats have left out for longer than that is taken for one that shows no signs.
    """
    spec = job.record.value.spec
    heard: list[tuple[Member, TaskBeat | None]] = []
    for member in there:
        if member.state is MemberState.DONE:
            continue
        picture = snap.nodes.get(member.placement.node)
        if picture is None or snap.unheard_ms(picture) >= snap.timing.suspect_ms:
            return ()
        beat = beat_of(snap, member)
        if beat is not None and beat.ended:
            return ()
        if beat is None:
            if spec.role(member.task.role).outside:
                continue
            if member.report is None or _told_of_ms(snap, picture, member.report) < snap.timing.d_ms:
                return ()
        heard.append((member, beat))
    # Only now, as this costs most: in a large job there is often one that is not heard.
    back_ms = servers.back_for_ms(snap, job)
    return tuple(
        _running(snap, job, member, beat, back_ms) if beat is not None else Running(member.task)
        for member, beat in heard
    )


def _told_of_ms(snap: Snapshot, picture: NodeState, report: Versioned[AttemptReport]) -> int:
    """The time for which its agent could have beaten about an attempt: a restarted agent has yet to learn of
    it.
    """
    joined_ms = picture.incarnation.seen_ms if picture.incarnation is not None else 0
    return snap.now_ms - max(report.created_ms, joined_ms)


def _running(snap: Snapshot, job: JobState, member: Member, beat: TaskBeat, back_ms: int | None) -> Running:
    """A task as the detector of hangs sees it. One that does not train shows no signs of training.

    `back_ms`: since when the job trains again after its parameter servers came back: without them nobody
    could show any.
    """
    picture = snap.nodes.get(member.placement.node)
    if picture is None or picture.beat is None:
        return Running(member.task)
    if kind_of(job.record.value.spec, member.task.role) is not RoleKind.TRAINING:
        return Running(member.task, stopped=beat.stopped)
    since_ms, fresh_ms = snap.now_ms - picture.beat.received_ms, -1
    most_ms = MAX_DURATION_MS if back_ms is None else back_ms
    signs = [Sign(each.name, min(each.age_ms + since_ms, most_ms), each.pause_ms) for each in beat.signs]
    if not signs and beat.step_age_ms >= 0:
        # Of an agent that tells of nothing else.
        signs = [Sign(STEP, min(beat.step_age_ms + since_ms, most_ms), beat.slowest_ms)]
    told = any(each.name == SAVE for each in signs)
    if signs and not told and member.task == job.saver:
        signs += _saves(snap, job)
    if beat.step_age_ms < 0 and member.report is not None:
        fresh_ms = _told_of_ms(snap, picture, member.report)
    silent_ms = beat.silent_ms + since_ms if beat.silent_ms >= 0 else -1
    return Running(member.task, tuple(signs), silent_ms, beat.stopped, fresh_ms)


def _saves(snap: Snapshot, job: JobState) -> list[Sign]:
    """The commits of the generation in force, of a task that saves without telling of it."""
    generation = job.switch.value.generation
    made_ms = sorted(held.created_ms for ref, held in job.commits.items() if ref.generation == generation)
    if not made_ms:
        return []
    longest_ms = max((after - before for before, after in pairwise(made_ms)), default=-1)
    return [Sign(SAVE, snap.now_ms - made_ms[-1], longest_ms if len(made_ms) >= SAVES_LEAST else -1)]


def beat_of(snap: Snapshot, member: Member) -> TaskBeat | None:
    """The last beat about a running member; None without one."""
    if member.state is not MemberState.RUNNING or member.report is None:
        return None
    return snap.beat_of(member.placement.node, member.report.value.attempt)


def attempt_of(member: Member) -> str:
    """The name of the attempt that a task is at, as in beats and events; empty before it is reported."""
    return str(member.report.value.attempt) if member.report is not None else ""


def need_for(
    snap: Snapshot, job: JobState, member: Member | None, cause: Cause, known_ms: int, detail: str
) -> Need:
    """A restart for a member that runs; without one, of the whole job."""
    if member is not None and member.report is not None:
        return need_of(snap, job, member, cause, known_ms=known_ms, detail=detail)
    name = cause.value.replace("_", "-")
    incident = incident_id(job, f"g{job.switch.value.generation}-{name}")
    accused = verdicts.Suspect(incident, cause, Scope.ALL, "", "", False, known_ms)
    return Need(
        incident=incident,
        cause=cause,
        scope=Scope.ALL,
        rule=f"{name}.all",
        judgement=verdicts.judge(snap, job, accused),
        known_ms=known_ms,
        detail=detail,
    )
