"""The failures of a job: the root failure, and the restart that it needs.

How much a failure restarts is told by `escalation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from recovery.policy.blame import NOTICE_LAG_MS, Failure, root_failures
from recovery.policy.budget import charge
from recovery.policy.history import ASKED
from recovery.policy.logs import error_of_the_code, left_lock
from recovery.policy.scope import may_move, scope_of
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Cause, Incident, Outcome
from supervisor.contract.job.spec import Scope
from supervisor.contract.observed import AttemptReport, Exit
from supervisor.control.decide.assess.escalation import FailedTask, scope_of_failure
from supervisor.control.decide.assess.members import Member, MemberState, ended_as
from supervisor.control.decide.assess.moving import moves_alone, why_it_stays
from supervisor.control.decide.assess.need import Evidence, Need
from supervisor.control.decide.assess.servers import are_together, comes_back, open_incidents
from supervisor.control.decide.assess.verdicts import Judgement, Suspect, judge
from supervisor.control.decide.facts.history import has_stepped, incident_id, newest_commit
from supervisor.control.decide.facts.standing import Standing, standing
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned


def find_need(snap: Snapshot, job: JobState, there: tuple[Member, ...]) -> Need | None:
    """The restart that an operator asks for, or the failures of a job; None where neither does."""
    switch, plan = job.switch.value, job.plan_in_force
    if switch.phase is JobPhase.WAITING or plan is None:
        # It is about to start: that is the restart which an operator may have asked for meanwhile.
        return _first_need(job)
    asked = _operators_need(job) if job.intent.value.restart_serial > switch.restart_serial else None
    if asked is not None and asked.scope is Scope.ALL:
        return asked
    need = _own_need(snap, job, there)
    # What restarts the whole job grants the wish for one task too, which may not even be possible by itself.
    if asked is None or (need is not None and need.scope is Scope.ALL):
        return need
    homes = [each for each in plan.value.placements if each.member == asked.member]
    # Where its node is silent another task's own need goes first. Where that can start nothing new, for days
    # maybe, whatever there is does, and what runs is not ended for an attempt that cannot start.
    alive = any(standing(snap, each) is Standing.ALIVE for each in homes)
    blocked = any(snap.blocked(each.node) for each in homes)
    return need if blocked or (need is not None and not alive) else asked


def _own_need(snap: Snapshot, job: JobState, there: tuple[Member, ...]) -> Need | None:
    failed = [member for member in there if member.state is MemberState.FAILED]
    away = [member for member in there if member.state in (MemberState.LOST, MemberState.SUSPECTED)]
    bound = [member for member in away if not moves_alone(job, member.task)]
    lost = [member for member in bound if member.state is MemberState.LOST]
    suspected = [member for member in bound if member.state is MemberState.SUSPECTED]
    culprit = _culprit(snap, failed, [*lost, *suspected])
    if culprit is not None:
        return _task_need(snap, job, culprit)
    if lost or suspected:
        return _node_need(snap, job, (lost or suspected)[0], firm=bool(lost) and not suspected)
    return _need_of_followers(snap, job, failed)


def lost_alone(snap: Snapshot, job: JobState, there: tuple[Member, ...]) -> Iterator[Need]:
    """The tasks whose node is lost and that move alone, so that the loss is no other task's (rule 6.10)."""
    for member in there:
        if member.state is MemberState.LOST and moves_alone(job, member.task):
            need = _node_need(snap, job, member, firm=True)
            incident = incident_id(job, f"{need.incident}-{member.task.member}")
            follows = job.record.value.spec.role(member.task.role).follow
            rule = "node.follower" if follows else "node.worker"
            yield replace(need, incident=incident, scope=Scope.TASK, rule=rule)


def _need_of_followers(snap: Snapshot, job: JobState, failed: list[Member]) -> Need | None:
    """Tasks that speak of a lost peer, and no peer that is: its loss is waited for, but not for ever.

    What restarted a single task a moment ago, and has not recovered yet, is the loss they speak of.
    """
    if not failed:
        return None
    root = root_failures(tuple(_failure(member) for member in failed))
    follower = next(member for member in failed if member.task == root.task)
    held, _, _ = _evidence(follower)
    explained = _explaining(job, held)
    lag_ms = max(snap.timing.suspect_ms + snap.timing.beat_ms, NOTICE_LAG_MS[Cause.LAUNCHER_LOST])
    if explained is None and snap.now_ms - held.seen_ms < lag_ms:
        return None
    need = _task_need(snap, job, follower)
    if explained is None:
        return need
    verdict = replace(need.judgement.verdict, ledger=job.switch.value.ledger)
    paid = replace(need.judgement, verdict=verdict)
    detail = f"{need.detail}; it followed from {explained.detail}"
    return replace(need, incident=explained.id, cause=explained.cause, judgement=paid, detail=detail)


def _explaining(job: JobState, ended: Versioned[AttemptReport]) -> Incident | None:
    """The open incident whose one task was restarted inside the generation in force.

    It explains the end of attempts that ran when it happened. An attempt that started after it and loses its
    peer has a failure of its own, which is charged to the budget and followed by a pause.
    """
    switch = job.switch.value
    held = job.incidents.get(switch.incident)
    if held is None or held.value.outcome is not Outcome.OPEN or held.value.cause in ASKED:
        return None
    if ended.create_revision > held.create_revision:
        return None
    return held.value if held.value.from_generation == switch.generation else None


def _culprit(snap: Snapshot, failed: list[Member], silent: list[Member]) -> Member | None:
    """The failed task to answer; None when none failed, or when those that did followed from a silent node.

    A process that was killed on a healthy node is answered at once even so: no silence elsewhere explains it.
    """
    first = [member for member in failed if member.cause is not None and member.cause is not Cause.PEER_LOST]
    killed = [member for member in first if member.cause is not None and not member.cause.program_fault]
    accused = killed or first
    if not accused:
        return None
    known_ms = {member.task: _marked_ms(snap, member) for member in silent}
    suspects = [
        Failure(member.task, Cause.NODE_LOST, known_ms[member.task]) for member in silent if not killed
    ]
    root = root_failures((*(_failure(member) for member in accused), *suspects))
    return next((member for member in accused if member.task == root.task), None)


def _marked_ms(snap: Snapshot, member: Member) -> int:
    mark = snap.mark_of(member.placement.node, member.placement.incarnation)
    return mark.created_ms if mark is not None else snap.now_ms


def _failure(member: Member) -> Failure:
    held, exit_, cause = _evidence(member)
    return Failure(member.task, cause, held.seen_ms - exit_.age_ms, exit_)


def _evidence(member: Member) -> tuple[Versioned[AttemptReport], Exit, Cause]:
    held = member.report
    assert held is not None
    assert held.value.exit is not None
    assert member.cause is not None
    return held, held.value.exit, member.cause


def _task_need(snap: Snapshot, job: JobState, member: Member) -> Need:
    held, exit_, cause = _evidence(member)
    need = need_of(
        snap,
        job,
        member,
        cause,
        known_ms=held.seen_ms,
        detail=ended_as(member),
        end=exit_,
    )
    detected_ms = max(exit_.age_ms, _unseen_ms(snap, held))
    return replace(need, detected_ms=detected_ms, evidence=replace(need.evidence, stack=exit_.stack))


def _unseen_ms(snap: Snapshot, held: Versioned[AttemptReport]) -> int:
    """Milliseconds from the machine's last beat before it rebooted to this report; 0 for any other end."""
    report = held.value
    picture = snap.nodes.get(report.node)
    if report.exit is None or not report.exit.rebooted or picture is None:
        return 0
    return held.seen_ms - picture.heard_before_ms if picture.heard_before_ms is not None else 0


def need_of(
    snap: Snapshot,
    job: JobState,
    member: Member,
    cause: Cause,
    *,
    known_ms: int,
    detail: str,
    end: Exit | None = None,
) -> Need:
    """The restart that a failed member needs. It has ended, or it runs and should not go on.

    `end`: how it ended, if the program ended by itself.
    """
    assert member.report is not None
    report = member.report.value
    incident = incident_id(job, f"g{report.generation}-{member.task.member}-a{report.number}")
    beat = snap.beat_of(report.node, report.attempt)
    last_step = max(report.last_step, beat.step if beat is not None else -1)
    stepped = report.has_stepped or (beat is not None and beat.has_stepped)
    if comes_back(job, member.task) and not open_incidents(job):
        # It makes no steps itself. Those of the trainers tell that it has served.
        stepped |= has_stepped(snap, job)
    failed = FailedTask(snap, job, member.task, member.placement, member.report, cause)
    scope, rule = scope_of_failure(failed)
    ran = report.pid > 0 or cause is not Cause.LAUNCHER_LOST
    began = member.report.create_revision if ran else 0
    code = (report.exit.code or 0) if report.exit is not None else 0
    error = error_of_the_code(end.tail, end.raised) if end is not None else None
    accused = Suspect(
        *(incident, cause, scope, member.task.member, report.node, stepped, known_ms, began, error),
        warm=report.warm,
        code=code,
        found_lock=end is not None and bool(left_lock(end.tail)),
    )
    found = judge(snap, job, accused)
    if found.away:
        rule = f"{rule}, away from {report.node}{found.away_why}"
        # One that moves alone needs no new generation for it. Others may have been told any other's address.
        ended = report.exit is not None or job.record.value.spec.role(member.task.role).follow
        scope = scope if ended and moves_alone(job, member.task) else Scope.ALL
    if found.undone:
        scope, rule = Scope.ALL, "resize.undone"
    return Need(
        incident=incident,
        cause=found.cause,
        scope=scope,
        rule=rule,
        judgement=found,
        known_ms=known_ms,
        detail="; ".join(filter(None, (detail, found.cause_why))),
        member=member.task.member,
        node=report.node,
        avoid_nodes=(report.node,) if found.away else (),
        evidence=Evidence(
            last_step=last_step,
            stepped=stepped,
            tail=end.tail if end is not None else "",
            error=error,
            began=began,
        ),
    )


def judgement_of(job: JobState, cause: Cause) -> Judgement:
    """The judgement of a restart that no failure asks for."""
    policy = job.record.value.spec.restart
    return Judgement(cause, charge(job.switch.value.ledger, cause, newest_commit(job), policy))


def _node_need(snap: Snapshot, job: JobState, member: Member, *, firm: bool) -> Need:
    placement = member.placement
    picture = snap.nodes.get(placement.node)
    mark = picture.mark_of(placement.incarnation) if picture is not None else None
    unread_ms = snap.unread_ms(picture) if picture is not None else 0
    # Of one that beats, but cannot read etcd, the last read is the sign of life that counts.
    beat = picture.beat if picture is not None else None
    heard_ms = beat.received_ms - unread_ms if beat is not None else None
    known_ms = mark.created_ms if mark is not None else snap.now_ms
    word = "lost" if firm else "suspected"
    unmarked = f"etcd has not answered it for {unread_ms} ms" if unread_ms else "its key is gone"
    reason = mark.value.reason if mark is not None else unmarked
    detail = f"node {placement.node} is {word}: {reason}"
    stays = why_it_stays(job, member.task)
    if stays and may_move(job.record.value.spec, member.task, job.saver):
        detail = f"{detail}; {member.task} cannot move alone: {stays}"
    life = placement.incarnation[:8]
    incident = incident_id(job, f"g{job.switch.value.generation}-node.{placement.node}-{life}")
    accused = Suspect(incident, Cause.NODE_LOST, Scope.ALL, "", placement.node, False, known_ms)
    return Need(
        incident=incident,
        cause=Cause.NODE_LOST,
        scope=Scope.ALL,
        rule="node.all",
        judgement=judge(snap, job, accused),
        firm=firm,
        detected_ms=max(0, known_ms - heard_ms) if heard_ms is not None else 0,
        known_ms=known_ms,
        member=placement.member,
        node=placement.node,
        detail=detail,
    )


def _operators_need(job: JobState) -> Need:
    """All tasks, or the one that was named where its role can be restarted in place."""
    intent = job.intent.value
    scope, rule = Scope.ALL, "operator.all"
    if intent.restart_member and job.plan_in_force is not None:
        task = job.task(intent.restart_member)
        scope = scope_of(job.record.value.spec, task, job.saver)[0]
        if are_together(job, task) and job.record.value.spec.role(task.role).count > 1:
            scope = Scope.ALL  # the others would go on with variables that its peers have restored
        rule = f"operator.{task.role}.{'in_place' if scope is Scope.TASK else 'all'}"
    return Need(
        incident=f"op-{intent.restart_serial}",
        cause=Cause.OPERATOR,
        scope=scope,
        rule=rule,
        judgement=judgement_of(job, Cause.OPERATOR),
        known_ms=job.intent.seen_ms,
        member=intent.restart_member,
        detail="an operator asked for a restart",
    )


def _first_need(job: JobState) -> Need:
    """The start of a job that was submitted, or had ended: a new life, whose failures count from nought."""
    serial = job.intent.value.restart_serial
    started = serial > job.switch.value.restart_serial
    return Need(
        incident=f"start-{serial}" if started else "submit",
        cause=Cause.SUBMITTED,
        scope=Scope.ALL,
        rule="start.all" if started else "submit.all",
        judgement=judgement_of(job, Cause.SUBMITTED),
        known_ms=job.intent.seen_ms if started else job.record.seen_ms,
        detail="an operator started the job" if started else "the job was submitted",
    )
