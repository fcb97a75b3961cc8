"""How a job ends: finishing, stopping, starting again, and the removal of what it has left."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.contract.desired import (
    LAST_LOOK,
    LOOK_ASIDE,
    LOOK_FOR_JUDGES,
    Assignment,
    JobPhase,
    Ledger,
    Placement,
    Plan,
)
from supervisor.contract.job.spec import Wanted
from supervisor.contract.observed import AttemptReport
from supervisor.control.decide.assess.completion import Completion
from supervisor.control.decide.checkpoints import saving, seen_saver
from supervisor.control.decide.checkpoints.collecting import collect
from supervisor.control.decide.facts.history import job_step, newest_commit
from supervisor.control.decide.facts.standing import Standing, standing
from supervisor.control.decide.jobs.prepare import serves
from supervisor.control.decide.plan import Action, Decision, delete_all, short, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned
from supervisor.control.decide.switch import Transition, turn

STOP_PATIENCE = 2
SIGKILL = 9


def finish(job: JobState, done: Completion) -> Action:
    """Training is over: stop the servers, and let the saver commit its last checkpoint.

    An evaluator gets time to judge that one.
    """
    spec = job.record.value.spec
    judges = any(role.follow and not serves(role) for role in spec.roles)
    grace_ms = spec.limits.save_grace_ms if judges else 0
    reason = f"training is over: {done.detail}"
    return _to(job, Transition.FINISH, JobPhase.FINISHING, reason, grace_ms)


def stop(job: JobState) -> Action:
    """The operator wants the job to stop, with or without time for its program to save."""
    running = job.switch.value.phase is JobPhase.RUNNING
    if not job.intent.value.save or not running:
        return _to(job, Transition.STOP, JobPhase.STOPPING, "an operator asked for a stop")
    grace_ms = job.record.value.spec.limits.save_grace_ms
    text = f"an operator asked for a stop; the program has {grace_ms} ms to save"
    return _to(job, Transition.STOP, JobPhase.STOPPING, text, grace_ms)


def end(snap: Snapshot, job: JobState) -> list[Action]:
    """Finishing or stopping: done when all attempts are dead, and the last save was looked for after that."""
    switch = job.switch.value
    changed = seen_saver.follow(snap, job) if switch.look < LOOK_ASIDE else []
    if changed:
        return changed
    if switch.save_grace_ms:
        trains = any(not _has_time(job, each) for each in _alive(snap, job))
        if switch.phase is JobPhase.FINISHING and not (switch.look or trains) and _may_look(snap, job):
            return [_look(job, LOOK_FOR_JUDGES)]
        why = _no_more_time(snap, job)
        return [_time_is_over(job, why)] if why else []
    waited_ms = snap.now_ms - job.switch.seen_ms
    alive = _alive(snap, job)
    overdue = waited_ms > snap.timing.commit_deadline_ms and not saving.still_moves(snap, job)
    if alive and not overdue:
        return []
    wanted = _wanted_look(alive)
    if _may_look(snap, job):
        if switch.look < wanted:
            return [_look(job, wanted)]
        if not overdue and not _has_looked(job, wanted):
            return []
    aside = _aside(snap, job) if not alive else []
    if switch.look < LOOK_ASIDE and not all(each.lost for each in aside):
        return [_look(job, LOOK_ASIDE)]
    if not overdue and not all(each.looked or each.lost for each in aside):
        return []
    left = _left(snap, job, alive)
    warning = f"; warning: {left}" if left else ""
    text = f"{switch.reason}{warning}{_cut_off(snap, job)}"
    if switch.phase is JobPhase.STOPPING:
        return [_to(job, Transition.END, JobPhase.STOPPED, text, uncommitted=left)]
    return [_to(job, Transition.SUCCEED, JobPhase.SUCCEEDED, text, uncommitted=left)]


@dataclass(frozen=True, slots=True)
class _Aside:
    """A node whose tasks may have saved where the saver's node does not see it. They share one directory."""

    node: str
    reports: tuple[AttemptReport, ...]
    lost: bool

    @property
    def looked(self) -> bool:
        """Whether it has looked: any of the tasks may look there."""
        return any(report.look >= LOOK_ASIDE for report in self.reports)


def _left(snap: Snapshot, job: JobState, alive: list[Placement]) -> str:
    """The finished saves that a job ends without, as far as its nodes know, for people; empty for none."""
    named = {each.node: _left_aside(job, each) for each in _aside(snap, job)} if not alive else {}
    report, found = _saver_report(job), [each for each in named.values() if each]
    found += [line for node, line in saving.elsewhere(snap, job) if not named.get(node)]
    if report is not None and _has_looked(job, _wanted_look(alive)):
        if report.value.uncommitted:
            found.append(
                f"{report.value.uncommitted}{saving.kept_on(job, report.value.node)} is not committed"
            )
    elif pending := saving.uncommitted(snap, job):
        found.append(f"{pending} is not committed")
    elif report is not None:
        why = "has not looked for it in time" if _may_look(snap, job) else "is lost"
        found.append(f"whether its last save is committed is not known: {report.value.node} {why}")
    elif (placed := _saver_placed(job)) is not None and _is_between_attempts(job, placed):
        found.append(f"whether its last save is committed is not known: {job.saver} was to run again")
    if alive:
        names = ", ".join(each.member for each in alive)
        found.append(f"{names} could not be confirmed dead, so that a later save would not be committed")
    return short("; ".join(found))


def _aside(snap: Snapshot, job: JobState) -> list[_Aside]:
    plan, saver, found = job.plan_in_force, _saver_placed(job), dict[str, list[AttemptReport]]()
    if plan is None or saver is None or not saving.files_differ(job):
        return []
    for placed in plan.value.placements:
        held = _last_report(job, plan.value, placed)
        if held is None or placed.node == saver.node or serves(job.record.value.spec.role(placed.role)):
            continue
        if not saving.share_files(snap, saver.node, placed.node):
            found.setdefault(placed.node, []).append(held.value)
    lost = {each.node for each in plan.value.placements if standing(snap, each) is Standing.LOST}
    return [_Aside(node, tuple(reports), node in lost) for node, reports in found.items()]


def _left_aside(job: JobState, aside: _Aside) -> str:
    """A save that only this node sees and that is newer than all commits, for people; empty for none."""
    tasks = ", ".join(f"{each.role}:{each.index}" for each in aside.reports)
    if aside.looked:
        left = next((each.uncommitted for each in aside.reports if each.uncommitted), "")
        kept = saving.kept_on(job, aside.node)
        return left and f"{left} of {tasks}{kept} is not committed, as only saves of {job.saver} are"
    if all(each.saves.watched for each in aside.reports):
        return ""  # what such tasks have saved they have said
    why = "is lost" if aside.lost else "has not looked for it in time"
    return f"whether {tasks} has a later save is not known: {aside.node} {why}"


def _cut_off(snap: Snapshot, job: JobState) -> str:
    """What the tasks that were let end by themselves, and did not, leave undone; empty for nothing."""
    plan, newest, switch = job.plan_in_force, newest_commit(job), job.switch.value
    if plan is None or (switch.phase is JobPhase.STOPPING and not job.intent.value.save):
        return ""
    killed = _killed(job, plan.value)
    if switch.phase is JobPhase.STOPPING:
        step, saved = job_step(snap, job), newest.step if newest is not None else 0
        since = f"after {newest}" if newest is not None else "as nothing was committed"
        lost = f"; warning: it was ended before it had saved; steps lost: {step - saved}, {since}"
        return lost if killed and step > saved else ""
    late = [f"{each.role}:{each.index}" for each in killed if newest and each.last_step < newest.step]
    return f"; warning: {', '.join(late)} ended before it had judged {newest}" if late else ""


def _killed(job: JobState, plan: Plan) -> list[AttemptReport]:
    """Of the attempts that may end by themselves, those that were killed. SIGTERM may end one that saved."""
    reports = [job.report(placed, plan) for placed in plan.placements if _has_time(job, placed)]
    return [
        held.value
        for held in reports
        if held is not None and held.value.exit is not None and held.value.exit.signal == SIGKILL
    ]


def _no_more_time(snap: Snapshot, job: JobState) -> str:
    """Why those that were let end by themselves need no more time; empty while they have some."""
    switch, intent = job.switch.value, job.intent.value
    plan = job.plan_in_force
    if plan is None:
        return "nothing runs"
    left = [p for p in plan.value.placements if _has_time(job, p) and _is_alive(snap, job, plan.value, p)]
    since_ms = job.switch.seen_ms
    if switch.phase is JobPhase.STOPPING:
        if intent.wanted is Wanted.STOP and not intent.save:
            return "the operator waits no longer"
        if not left:
            return "the program has ended"
    else:
        saver = _saver_report(job)
        if _may_look(snap, job) and not _has_looked(job, LOOK_FOR_JUDGES):
            in_time = snap.now_ms - since_ms <= snap.timing.commit_deadline_ms
            if in_time or saving.still_moves(snap, job):
                return ""
        elif saver is not None:
            since_ms = max(since_ms, saver.seen_ms)
        if all(_has_judged(snap, job, p, plan.value) for p in left):
            return "the last checkpoint is judged" if left else "nobody is left to judge the last checkpoint"
    # An agent counts from when it saw the switch, a little later than this.
    over = snap.now_ms - since_ms > switch.save_grace_ms + snap.timing.suspect_ms
    return f"{', '.join(p.member for p in left)} did not end within {switch.save_grace_ms} ms" if over else ""


def _has_time(job: JobState, placement: Placement) -> bool:
    """Whether the agents let this task end by itself, in the job's present phase."""
    role = job.record.value.spec.role(placement.role)
    stopping = job.switch.value.phase is JobPhase.STOPPING
    return not serves(role) and (stopping or role.follow)


def _has_judged(snap: Snapshot, job: JobState, placement: Placement, plan: Plan) -> bool:
    """Whether a follower has reported the step of the last commit."""
    newest, report = newest_commit(job), job.report(placement, plan)
    if newest is None or report is None:
        return True
    beat = snap.beat_of(placement.node, report.value.attempt)
    return beat is not None and beat.step >= newest.step


def _time_is_over(job: JobState, why: str) -> Action:
    changed = turn(job.switch, Transition.END_GRACE, save_grace_ms=0)
    text = f"what still runs is stopped: {why}"
    plan = job.plan_in_force
    if plan is not None and job.switch.value.phase is JobPhase.STOPPING and _killed(job, plan.value):
        text = f"its time to end by itself, {job.switch.value.save_grace_ms} ms, is over"
    return Action("time_is_over", job.name, text, (unchanged(job.switch),), (changed,))


def begin_again(job: JobState) -> Action:
    """An operator starts a job that had ended: its next generation begins from its newest checkpoint."""
    started = turn(
        job.switch,
        Transition.START,
        phase=JobPhase.WAITING,
        reason="",
        ledger=Ledger(),
        held=(),
        uncommitted="",
    )
    text = "an operator starts the job again"
    return Action("started", job.name, text, (unchanged(job.switch), unchanged(job.intent)), (started,))


def tidy(snap: Snapshot, job: JobState) -> list[Decision]:
    """Records that nothing needs: reports of dead attempts of older generations, and surplus checkpoints."""
    decisions: list[Decision] = []
    switch = job.switch.value
    stale = _stale(snap, job)
    if stale:
        compares = tuple(unchanged(held) for held in stale[:50])
        decisions.append(Action("reports_removed", job.name, "", compares, delete_all(stale[:50])))
    if switch.closing is None:
        decisions += collect(snap, job)
    return decisions


def _look(job: JobState, look: int) -> Action:
    changed = turn(job.switch, Transition.LOOK, look=look)
    return Action("last_look", job.name, "", (unchanged(job.switch),), (changed,))


def _to(
    job: JobState,
    transition: Transition,
    phase: JobPhase,
    reason: str,
    grace_ms: int = 0,
    uncommitted: str = "",
) -> Action:
    # A restart that was asked for while the job was finishing has nothing left to restart.
    answered = job.intent if phase is JobPhase.SUCCEEDED else job.switch
    changed = turn(
        job.switch,
        transition,
        phase=phase,
        closing=None,
        reason=reason,
        save_grace_ms=grace_ms,
        restart_serial=answered.value.restart_serial,
        uncommitted=uncommitted,
    )
    return Action(
        kind=phase.value,
        job=job.name,
        text=f"the job has {phase.value}: {reason}" if phase.ended else reason,
        compares=(unchanged(job.switch), unchanged(job.intent)),
        ops=(changed,),
        fields={"phase": phase.value},
    )


def _alive(snap: Snapshot, job: JobState) -> list[Placement]:
    """The members in force that may be alive: they are not reported dead, and their nodes are not lost."""
    plan = job.plan_in_force
    if plan is None:
        return []
    return [each for each in plan.value.placements if _is_alive(snap, job, plan.value, each)]


def _is_alive(snap: Snapshot, job: JobState, plan: Plan, placement: Placement) -> bool:
    held = job.report(placement, plan)
    may_live = held is not None and not held.value.confirmed_dead
    return may_live and standing(snap, placement) is not Standing.LOST


def _may_look(snap: Snapshot, job: JobState) -> bool:
    """Whether a node can look for the last save: the saver has run there, and it is not lost."""
    saver = _saver_placed(job)
    return saver is not None and _saver_report(job) is not None and standing(snap, saver) is not Standing.LOST


def _wanted_look(alive: list[Placement]) -> int:
    """The look for the last save before the end. What may live can still write: the last look is after it."""
    return LOOK_FOR_JUDGES if alive else LAST_LOOK


def _has_looked(job: JobState, look: int) -> bool:
    report = _saver_report(job)
    return report is not None and report.value.look >= look


def _saver_placed(job: JobState) -> Placement | None:
    plan, saver = job.plan_in_force, job.saver.member
    found = plan.value.placements if plan is not None else ()
    return next((each for each in found if each.member == saver), None)


def _is_between_attempts(job: JobState, placed: Placement) -> bool:
    """Whether an attempt of this generation has ended here, and nothing is known of the next one."""
    held = job.assigned(job.switch.value.plan_id, placed.member)
    return held is not None and held.value.attempt > 1


def _saver_report(job: JobState) -> Versioned[AttemptReport] | None:
    plan, placed = job.plan_in_force, _saver_placed(job)
    return _last_report(job, plan.value, placed) if plan is not None and placed is not None else None


def _last_report(job: JobState, plan: Plan, placed: Placement) -> Versioned[AttemptReport] | None:
    """The report of the attempt that ran last here: the next one is not started once a job ends."""
    held = job.report(placed, plan)
    if held is not None:
        return held
    before = [
        each
        for each in job.attempts.values()
        if (each.value.plan_id, each.value.attempt.task.member) == (plan.plan_id, placed.member)
        and each.value.node == placed.node
    ]
    return max(before, key=lambda each: each.value.number, default=None)


def _stale(snap: Snapshot, job: JobState) -> list[Versioned[AttemptReport]]:
    """Reports that may go. Of a generation that is over all stay while one of its attempts may be alive: that
    one knows the addresses of all, which no new task may have (rule 6).
    """
    over = {attempt: held for attempt, held in job.attempts.items() if _forgettable(snap, job, held)}
    known = {
        held.value.plan_id
        for attempt, held in job.attempts.items()
        if attempt not in over and held.value.generation < job.switch.value.generation
    }
    return [held for held in over.values() if held.value.plan_id not in known]


def _forgettable(snap: Snapshot, job: JobState, held: Versioned[AttemptReport]) -> bool:
    """Whether an attempt's report has said its last: it is dead for sure, and its end needs no telling."""
    report = held.value
    switch = job.switch.value
    superseded = report.generation < switch.generation or _is_followed(job, report)
    if not superseded and (not switch.phase.ended or report.confirmed_dead):
        # How the last attempts of a job have ended stays.
        return False
    if report.confirmed_dead:
        return True
    # Never confirmed, but the incarnation that ran it is over: its successor kills all that it does not adopt
    # before it registers (rule 12), and D has passed for one that never came back.
    picture = snap.nodes.get(report.node)
    over = (
        picture is not None and picture.incarnation is not None and not picture.acts_for(report.incarnation)
    )
    return over and snap.now_ms - held.seen_ms > STOP_PATIENCE * snap.timing.d_ms


def _is_followed(job: JobState, report: AttemptReport) -> bool:
    """Whether a later attempt of this generation has started: until then this one may have to look."""
    held: Versioned[Assignment] | None = job.assigned(report.plan_id, f"{report.role}.{report.index}")
    if held is None or held.value.attempt_id not in job.attempts:
        return False
    return report.number < held.value.attempt


def wants_stop(job: JobState) -> bool:
    """Whether the operator's wish is to stop a job that has not ended."""
    return job.intent.value.wanted is Wanted.STOP and not job.switch.value.phase.ended


def wants_start(job: JobState) -> bool:
    """Whether the operator asked an ended job to start again."""
    asked = job.intent.value.restart_serial > job.switch.value.restart_serial
    return asked and job.intent.value.wanted is Wanted.RUN and job.switch.value.phase.ended
