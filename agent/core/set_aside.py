"""An unexpected error costs what it is about: a launcher with its attempts, or a plan's part here. Pure.

An attempt that is set aside is ended as one that cannot start (START_FAILED, with the error and its place),
and its launcher is fenced, so that the leader hears of it as of any other end. A plan that is set aside asks
for nothing here any more; the leader is told why. Everything else goes on (decision 0045).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.core.events import (
    Broken,
    BroughtIn,
    Drained,
    Event,
    Fenced,
    FirewallSet,
    Reported,
    SecretsFetched,
    SpawnFailed,
    SpecRead,
    StageDone,
    Unstaged,
    Written,
)
from agent.core.instructions import (
    BringIn,
    Commit,
    Drain,
    Fence,
    FetchSecrets,
    Follow,
    FollowCommits,
    Instruction,
    Launch,
    PrepareOutputs,
    ReadSpec,
    Report,
    Say,
    SetFirewall,
    Spawn,
    Stage,
    StopCommit,
    StopFollowing,
    Unfollow,
    Write,
)
from agent.core.prepared import refuse
from agent.core.saved.record import End
from agent.core.state import AgentState, Attempt, Condemned, HoldState, Launcher, PortReservation
from agent.core.step_context import FENCE_AGAIN_MS, Work
from supervisor.contract.containment import contained, frames_of
from supervisor.contract.desired import Assignment, JobPhase, Spare
from supervisor.contract.ids import AttemptId
from supervisor.contract.observed import ExitReason

REFUSE_AGAIN_MS = 1_000
"""After an error about what the leader was to be told."""
WHAT = "cannot start or go on: the agent met an error of its own in it"


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of an error. `whole`: all of the job on this node, where a part was not enough."""

    job: str
    launcher_id: str = ""
    attempt: AttemptId | None = None
    plan_id: str = ""
    whole: bool = False


def subject_of(state: AgentState, error: BaseException, event: Event, known: list[Subject]) -> Subject | None:
    """The subject to set aside next: the innermost one in the frames of the traceback that is left."""
    whole = {each.job: each.whole for each in known}
    for found in (*_told(state, error, event), *_said(state, event)):
        if found.job not in whole:
            return found
        if not whole[found.job]:
            return Subject(found.job, whole=True)
    return None


def is_met_again(error: BaseException, known: list[Subject]) -> bool:
    """Whether an event raises although all of a job is set aside: it is about that job, and is dropped."""
    return any(each.whole for each in known) and any(name == "_take" for name, _ in frames_of(error))


def ask_nothing(state: AgentState) -> set[str]:
    """The plans and spares that ask for nothing: those set aside, and all plans of a condemned job."""
    condemned = {each.job for each in state.condemned.values()}
    return set(state.aside).union(*(_plans_of(state, job) for job in condemned))


def jobs_here(state: AgentState) -> set[str]:
    """The jobs that have launchers here, or are to have tasks here."""
    view = state.view
    wanted = {each.job for each in view.assignments} if view is not None else set()
    return wanted | {each.recipe.job for each in state.launchers.values()}


def is_about(state: AgentState, event: Event, subject: Subject) -> bool:
    """Whether an event is of a launcher that is set aside: it is not taken."""
    return any(
        each.job == subject.job and (subject.whole or each.launcher_id == subject.launcher_id)
        for each in _said(state, event)
    )


def set_aside(work: Work, subject: Subject, why: str) -> None:
    """End it, or forget it."""
    if subject.whole:
        _forget(work, subject.job, why)
    elif subject.launcher_id in work.state.launchers:
        break_launcher(work, subject.launcher_id, why)
    elif subject.attempt is not None:
        _end_alone(work, subject.attempt, why)
    elif subject.plan_id:
        _refuse_plan(work, subject.plan_id, why)


def tend(work: Work) -> None:
    """Kill what is condemned until it is dead; end what is wanted of a plan that is set aside."""
    state = work.state
    for part, condemned in list(state.condemned.items()):
        if not condemned.fencing and work.now_ms >= condemned.again_ms:
            state.condemned[part] = replace(condemned, fencing=True)
            work.emit(Fence(part, tuple(each for each in condemned.processes if each[0])))
    view = state.view
    if view is None or state.me is None:
        return
    present = {each.plan_id for each in view.assignments} | {_spares_of(each.job) for each in view.spares}
    for name in [each for each in state.aside if each not in present]:
        del state.aside[name]
    for switch in view.switches if state.aside else ():
        why = state.aside.get(switch.plan_id, "")
        if why and switch.phase is JobPhase.RUNNING:
            _end_wanted(work, switch.plan_id, why)


def _end_wanted(work: Work, plan_id: str, why: str) -> None:
    """End each attempt that the leader wants of a plan in force, up to those that follow them.

    One error must not use up the budget of the job.
    """
    state, view, me = work.state, work.state.view, work.state.me
    condemned = {attempt.id for each in state.condemned.values() for attempt in each.attempts}
    orders = [each for each in view.assignments if each.plan_id == plan_id] if view is not None else []
    here = [each for each in orders if me is not None and me.acts_for(each.incarnation)]
    ended = {each.id for each in state.attempts.values() if each.end and each.end.detail.startswith(WHAT)}
    if any(replace(each.attempt_id, number=each.attempt - 1) in ended for each in here):
        del state.aside[plan_id]
        return
    for order in here:
        if order.attempt_id not in state.attempts and order.attempt_id not in condemned:
            end = _end(work, order.job, why, dead=True)
            attempt = Attempt(order.attempt_id, order.job_uuid, plan_id, "", 0, "", False, end=end)
            work.put_attempt(replace(attempt, drained=True))


def on_fenced(work: Work, event: Fenced) -> None:
    """Tell the leader of condemned attempts that are dead, and refuse the plans that the error had met.

    That is tried again later where it meets an error itself.
    """
    state = work.state
    condemned = state.condemned.get(event.launcher_id)
    if condemned is None:
        return
    if event.survivors:
        again_ms = work.now_ms + FENCE_AGAIN_MS
        state.condemned[event.launcher_id] = replace(condemned, fencing=False, again_ms=again_ms)
        return
    del state.condemned[event.launcher_id]
    for attempt in condemned.attempts:
        work.end(replace(attempt, launcher_id=""), _end(work, condemned.job, condemned.why, dead=True))
    errors: list[Exception] = []
    with contained(errors.append):
        for plan_id in _plans_of(state, condemned.job) & state.aside.keys():
            _refuse_plan(work, plan_id, condemned.why)
    if errors:
        later_ms = work.now_ms + REFUSE_AGAIN_MS
        state.condemned[condemned.job] = Condemned(condemned.job, condemned.why, (), (), later_ms)


def on_broken(work: Work, event: Broken) -> None:
    """The daemon met an error while it dealt with these for the core.

    What commits and brings in commits in the background has ended by it, and is begun anew.
    """
    state = work.state
    for job, (uuid, generation, _) in list(state.commits.items()):
        if uuid == event.job_uuid:
            del state.commits[job]
            work.emit(StopCommit(job, uuid, generation))
    for job, following in list(state.following.items()):
        if following[0] == event.job_uuid:
            del state.following[job]
            work.emit(StopFollowing(*following[:2]))
    if event.launcher_id:
        break_launcher(work, event.launcher_id, event.reason)
    for attempt in list(work.state.attempts.values()):
        about = event.attempt == attempt.id or event.job_uuid == attempt.job_uuid
        if about and attempt.end is None:
            _break(work, attempt, event.reason)


def answer_of(instruction: Instruction, why: str) -> Event | None:
    """The event that tells the core of an instruction's unexpected error; None where no rule waits for it.

    What is safe to do again is asked for again.
    """
    match instruction:
        case Say():
            return Broken(why, launcher_id=instruction.launcher_id)
        case Launch():
            # The launcher may have started it.
            return Broken(why, launcher_id=instruction.launcher_id)
        case Follow() | PrepareOutputs():
            return Broken(why, attempt=instruction.attempt)
        case Commit() | FollowCommits():
            return Broken(why, job_uuid=instruction.job_uuid)
        case Spawn():
            return SpawnFailed(instruction.launcher_id, why)
        case Stage():
            what = (instruction.job, instruction.plan_id, instruction.base)
            return StageDone(*what, Unstaged.UNREADABLE, why)
        case Drain():
            return Drained(instruction.attempt, instruction.look, f"the last save, as {why}")
        case FetchSecrets():
            return SecretsFetched(instruction.attempt, delay=why)
        case BringIn():
            return BroughtIn(instruction.plan_id, why)
        case SetFirewall():
            return FirewallSet(instruction.openings, why)
        case Fence() | ReadSpec() | Write() | Report():
            return _not_now(instruction)
        case _:
            return None


def _not_now(instruction: Fence | ReadSpec | Write | Report) -> Event:
    match instruction:
        case Fence():
            return Fenced(instruction.launcher_id, survivors=1)
        case ReadSpec():
            return SpecRead(instruction.plan_id, None)
        case Write():
            return Written(instruction.tag, ok=False)
        case Report():
            return Reported(instruction.record.attempt, instruction.serial, ok=False)


def break_launcher(work: Work, launcher_id: str, why: str) -> None:
    """Fence a launcher, and end its attempts for this reason; its reservations have failed."""
    launcher = work.state.launchers.get(launcher_id)
    if launcher is None:
        return
    for attempt in work.live_on(launcher_id):
        work.end(attempt, _end(work, launcher.recipe.job, why, dead=False))
    for hold in [each for each in work.state.holds.values() if each.launcher_id == launcher_id]:
        if hold.state is not HoldState.FAILED:
            work.put_hold(replace(hold, state=HoldState.FAILED, failure=f"{WHAT}: {why}", answered=False))
    work.doom(launcher, f"{WHAT}: {why}")


def _break(work: Work, attempt: Attempt, why: str) -> None:
    if attempt.launcher_id in work.state.launchers:
        break_launcher(work, attempt.launcher_id, why)
    else:
        _end_alone(work, attempt.id, why)


def _end_alone(work: Work, attempt_id: AttemptId, why: str) -> None:
    attempt = work.state.attempts.get(attempt_id)
    if attempt is not None:
        work.end(attempt, _end(work, attempt_id.task.job, why, dead=True))


def _end(work: Work, job: str, why: str, *, dead: bool) -> End:
    """Of the attempts that an error ends together, the first is charged, and the others were stopped."""
    detail = f"{WHAT}: {why}"
    ends = [each.end for each in work.state.attempts.values() if each.id.task.job == job]
    charged = any(each and (each.ended_ms, each.detail) == (work.now_ms, detail) for each in ends)
    reason = ExitReason.KILLED if charged else ExitReason.START_FAILED
    return End(reason, None, None, work.now_ms, dead, detail)


def _refuse_plan(work: Work, plan_id: str, why: str) -> None:
    work.note(
        "a plan is refused on this node, after an unexpected error", "warning", plan=plan_id, reason=why
    )
    work.state.aside[plan_id] = why
    for attempt in [each for each in work.state.attempts.values() if each.plan_id == plan_id]:
        if attempt.end is None:
            _break(work, attempt, why)
    view = work.state.view
    for assignment in view.assignments if view is not None else ():
        if assignment.plan_id == plan_id:
            refuse(work, assignment, f"{WHAT}: {why}")


def _forget(work: Work, job: str, why: str) -> None:
    """Fence all that the node has of a job. The leader is told once that is done (`on_fenced`).

    No rule sees it before: what raised the error would raise it again, and the third one ends the agent.
    """
    state = work.state
    work.note(
        "all of a job on this node is killed, after an unexpected error", "warning", job=job, reason=why
    )
    plans = _plans_of(state, job)
    # One that is here again was condemned before, and the error is about what was to be told of it.
    again_ms = work.now_ms + (REFUSE_AGAIN_MS if plans <= state.aside.keys() else 0)
    parts = {job: Condemned(job, why, (), (), again_ms)}
    for launcher in [each for each in state.launchers.values() if each.recipe.job == job]:
        del state.launchers[launcher.launcher_id]
        process = (launcher.pid, launcher.start_ticks)
        parts[launcher.launcher_id] = Condemned(job, why, (process,), (), work.now_ms)
    ends = [
        work.end(each, _end(work, job, why, dead=False))
        for each in list(state.attempts.values())
        if each.id.task.job == job
    ]
    for attempt in ends:
        del state.attempts[attempt.id]
        work.emit(Unfollow(attempt.id))
        name = attempt.launcher_id if attempt.launcher_id in parts else job
        process = (attempt.pid, attempt.start_ticks)
        part = parts[name]
        parts[name] = replace(part, processes=(*part.processes, process), attempts=(*part.attempts, attempt))
    state.condemned.update(parts)
    for hold in [each for each in state.holds.values() if each.job == job]:
        del state.holds[hold.name]
    state.aside.update(dict.fromkeys((*plans, _spares_of(job)), ""))


def _plans_of(state: AgentState, job: str) -> set[str]:
    view = state.view
    return {each.plan_id for each in view.assignments if each.job == job} if view is not None else set()


def _spares_of(job: str) -> str:
    return f"spares {job}"


def _told(state: AgentState, error: BaseException, event: Event) -> list[Subject]:
    """The subjects in the frames of the traceback, the innermost first; a launcher's message leads."""
    found: list[Subject] = []
    taking = False
    for name, values in frames_of(error):
        taking = taking or name == "_take"
        found[:0] = [each for value in values if (each := _subject(value)) is not None]
    return [*_said(state, event), *found] if taking else found


def _said(state: AgentState, event: Event) -> list[Subject]:
    launcher = state.launchers.get(str(getattr(event, "launcher_id", "")))
    return [Subject(launcher.recipe.job, launcher.launcher_id)] if launcher is not None else []


def _subject(value: object) -> Subject | None:
    match value:
        case Attempt():
            return Subject(value.id.task.job, value.launcher_id, value.id)
        case Launcher():
            return Subject(value.recipe.job, value.launcher_id)
        case PortReservation():
            return Subject(value.job, value.launcher_id, plan_id=value.plan_id)
        case Assignment():
            return Subject(value.job, plan_id=value.plan_id)
        case Spare():
            return Subject(value.job, whole=True)
        case _:
            return None
