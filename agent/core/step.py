"""The one door into the agent's state: events in, the next state and instructions out.

A step takes all events that are given to it, in their order. Then all rules are applied once to the whole
state, so that nothing depends on having seen an event: a rule says what should be so, and emits what is
missing. A step of pulls alone applies none: it is answered, and no rule has anything to do because of it
(decision 0058).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent.core import (
    code,
    firewall,
    launcher_events,
    pool,
    prepared,
    promised,
    reporting,
    secrets,
    set_aside,
    tasks,
    warmth,
)
from agent.core.desired import Wants, wants
from agent.core.events import (
    BeatSeen,
    Broken,
    BroughtIn,
    Drained,
    DumpAsked,
    Event,
    Evicted,
    Fenced,
    FirewallSet,
    GpusSeen,
    GpusTold,
    Heard,
    Joined,
    KillRehearsed,
    LauncherGone,
    LauncherLeft,
    LauncherSaid,
    MemoryFree,
    Observed,
    OutputsReady,
    OverDisk,
    Promised,
    Reported,
    SecretsFetched,
    Spawned,
    SpawnFailed,
    SpecRead,
    StageDone,
    TermsSeen,
    Tick,
    Unstaged,
    Written,
)
from agent.core.gpus import report
from agent.core.instructions import Cleared, Instruction, Unfollow
from agent.core.state import ROOM_AGAIN_MS, AgentState, Delay, Full, ReportLevel
from agent.core.step_context import Work
from agent.inside import protocol
from supervisor.contract.containment import contained, place_of, told
from supervisor.contract.desired import LAST_LOOK
from supervisor.contract.errors import InvalidTransition
from supervisor.contract.observed import StageFailure

_TOLD = {None: None, Unstaged.BAD: StageFailure.BAD, Unstaged.UNREADABLE: StageFailure.UNKNOWN}


def step(
    state: AgentState, events: Sequence[Event], now_ms: int
) -> tuple[AgentState, tuple[Instruction, ...]]:
    """Return the state and the instructions that follow from `events` at `now_ms` (CLOCK_BOOTTIME).

    The given state is left as it was.

    If an unexpected error is raised, each event becomes a step of its own. The task, launcher or job of the
    error is set aside, and that step is made again without it. Raises an error that is about nothing of the
    kind or, at one place, about all jobs that are here; and InvalidTransition.
    """
    if len(events) > 1:
        errors: list[Exception] = []
        with contained(errors.append):
            return _step(state, events, now_ms)
    out: list[Instruction] = []
    for event in events:
        state, more = _step_of_one(state, event, now_ms)
        out += more
    return state, tuple(out)


def _step_of_one(state: AgentState, event: Event, now_ms: int) -> tuple[AgentState, tuple[Instruction, ...]]:
    known: list[tuple[set_aside.Subject, str]] = []
    met: dict[str, set[str]] = {}
    taken = [event]
    while True:
        errors: list[Exception] = []
        with contained(errors.append):
            return _step(state, taken, now_ms, known)
        subjects = [each for each, _ in known]
        found = set_aside.subject_of(state, errors[0], event, subjects)
        if found is None and taken and set_aside.is_met_again(errors[0], subjects):
            taken = []
            continue
        if found is None or isinstance(errors[0], InvalidTransition):
            raise errors[0]
        jobs = met.setdefault(place_of(errors[0]), set())
        jobs.add(found.job)
        if len(jobs) > 1 and jobs >= set_aside.jobs_here(state):
            raise errors[0]  # it is not about any one of them
        known = [each for each in known if each[0].job != found.job] + [(found, told(errors[0]))]


def _step(
    state: AgentState,
    events: Sequence[Event],
    now_ms: int,
    known: Sequence[tuple[set_aside.Subject, str]] = (),
) -> tuple[AgentState, tuple[Instruction, ...]]:
    work = Work(state, now_ms)
    for event in events:
        if not any(set_aside.is_about(state, event, subject) for subject, _ in known):
            _take(work, event)
    for subject, why in known:
        set_aside.set_aside(work, subject, why)
    if known or not all(_is_pull(event) for event in events):
        _apply_rules(work)
        work.state = work.state.but(stepped_ms=now_ms)
    return work.state, tuple(work.out)


def _is_pull(event: Event) -> bool:
    return isinstance(event, LauncherSaid) and isinstance(event.message, protocol.Pull)


def _apply_rules(work: Work) -> None:
    pool.watch_over(work)
    if work.state.outcast:
        _clear_out(work)
    elif work.state.me is not None:
        launcher_events.welcome(work)
        _reconcile(work)


def _take(work: Work, event: Event) -> None:
    match event:
        case Tick() | MemoryFree() | KillRehearsed() | OverDisk():
            _on_machine(work, event)
        case LauncherSaid():
            launcher_events.on_said(work, event)
        case Joined() | Evicted() | BeatSeen() | Observed() | Heard():
            _on_membership(work, event)
        case TermsSeen():
            promised.on_terms(work, event)
        case Promised():
            promised.on_promised(work, event)
        case Spawned() | SpawnFailed() | LauncherGone() | LauncherLeft() | Fenced():
            _on_launcher(work, event)
        case DumpAsked():
            tasks.dump(work, event.attempts)
        case SpecRead() | StageDone() | OutputsReady() | Drained() | Written() | Reported() | FirewallSet():
            _on_answer(work, event)
        case Broken():
            set_aside.on_broken(work, event)
        case BroughtIn() | SecretsFetched():
            _on_brought(work, event)
        case GpusSeen() | GpusTold():
            report.on_event(work, event)


def _on_brought(work: Work, event: BroughtIn | SecretsFetched) -> None:
    match event:
        case BroughtIn():
            code.on_unpacked(work, event)
        case SecretsFetched():
            secrets.on_fetched(work, event)


def _on_launcher(work: Work, event: Spawned | SpawnFailed | LauncherGone | LauncherLeft | Fenced) -> None:
    match event:
        case Spawned():
            launcher_events.on_spawned(work, event)
        case SpawnFailed():
            launcher_events.on_spawn_failed(work, event)
        case LauncherGone():
            launcher_events.on_gone(work, event)
        case LauncherLeft():
            launcher_events.on_left(work, event)
        case Fenced():
            launcher_events.on_fenced(work, event)


def _on_machine(work: Work, event: Tick | MemoryFree | KillRehearsed | OverDisk) -> None:
    if isinstance(event, OverDisk):
        tasks.end_over_disk(work, event)
    elif isinstance(event, MemoryFree):
        work.state = work.state.but(free_bytes=event.free_bytes)
    elif isinstance(event, KillRehearsed):
        work.state = state = work.state.but(kill_ms=event.kill_ms)
        timing = state.settings.timing
        if state.reserve_ms > timing.reserve_ms:
            work.note(
                "kills are slow on this node: without etcd its tasks end earlier",
                "warning",
                longest_ms=str(event.kill_ms),
                profile_allows_ms=str(timing.kill_time_ms),
                kept_back_ms=str(state.reserve_ms),
                effect=_of_slow_kills(state),
            )


def _of_slow_kills(state: AgentState) -> str:
    if state.too_slow:
        return f"nothing new starts: {state.too_slow}"
    timing = state.settings.timing
    kill_time_ms = timing.kill_time_for(state.kill_ms)
    if replace(timing, kill_time_ms=kill_time_ms).worst_case_ms <= state.d_ms:
        return "tasks that lose their agent are ended earlier than elsewhere"
    return "tasks are ended so early that a change of etcd's leader, or a restart of this agent, may end them"


def _on_membership(work: Work, event: Joined | Evicted | BeatSeen | Observed | Heard) -> None:
    state = work.state
    match event:
        case Joined():
            _on_joined(work, event)
        case Evicted():
            work.note("this life of the agent is lost; its tasks are ended", "warning", reason=event.reason)
            fresh = state.promises.anew()
            work.state = replace(state, outcast=True, me=None, deadline_ms=None, promises=fresh)
            reporting.leave_checkpoints(work)
        case BeatSeen():
            work.state = state = state.but(read_ms=event.sent_ms)
            # A watch that is silent for D counts as etcd lost, whatever the reads say (rule 3).
            if state.me is not None and work.now_ms - state.heard_ms < state.d_ms:
                deadline = max(state.deadline_ms or 0, event.sent_ms + state.d_ms)
                work.state = state.but(deadline_ms=deadline)
                promised.on_read(work, event.sent_ms)
        case Observed():
            heard_ms = max(state.heard_ms, event.heard_ms)
            # Before this life is registered it may be an etcd that is not to be joined with what runs here.
            seen = event.seen if state.me is not None else state.seen
            work.state = replace(state, view=event, heard_ms=heard_ms, seen=seen)
        case Heard():
            work.state = state.but(heard_ms=max(state.heard_ms, event.heard_ms))


def _on_joined(work: Work, event: Joined) -> None:
    state = work.state
    if not event.adopt and (state.launchers or any(each.alive for each in state.attempts.values())):
        raise InvalidTransition("joined anew while something of an earlier life is not confirmed dead")
    deadline = event.sent_ms + event.d_ms
    work.state = replace(
        state,
        life=event.me.incarnation,
        predecessors=event.me.succeeds,
        me=event.me,
        outcast=False,
        d_ms=event.d_ms,
        deadline_ms=deadline,
        read_ms=event.sent_ms,
        heard_ms=work.now_ms,
        view=None,
        promises=state.promises.anew(),
    )
    if not event.adopt:
        work.state = replace(
            work.state,
            attempts={},
            holds={},
            staging={},
            commits={},
            code={},
            delays={},
            secrets={},
            cold={},
            retried=frozenset(),
            seen=None,
        )
    for launcher in list(work.state.launchers.values()):
        work.put_launcher(replace(launcher, heard_ms=work.now_ms, welcomed=False))


def _on_answer(
    work: Work, event: SpecRead | StageDone | OutputsReady | Drained | Written | Reported | FirewallSet
) -> None:
    state = work.state
    match event:
        case SpecRead():
            if event.spec is not None:
                state.specs[event.plan_id] = event.spec
                state.reading.pop(event.plan_id, None)
        case StageDone():
            _on_staged(work, event)
        case OutputsReady():
            if event.attempt in state.outputs:
                state.outputs[event.attempt] = -1
        case Drained():
            attempt = state.attempts.get(event.attempt)
            if attempt is not None:
                looked = replace(attempt, look=event.look, uncommitted=event.uncommitted)
                work.put_attempt(replace(looked, draining=False, drained=event.look >= LAST_LOOK))
        case Reported():
            _on_reported(work, event)
        case Written():
            _on_written(work, event)
        case FirewallSet():
            firewall.on_set(work, event)


def _on_staged(work: Work, event: StageDone) -> None:
    if event.failure is Unstaged.NO_ROOM:
        work.state = replace(work.state, full=Full(event.detail, work.now_ms + ROOM_AGAIN_MS))
    staging = work.state.staging.get(event.plan_id)
    if staging is not None and staging.base == event.base and not staging.done:
        over = event.failure in {None, Unstaged.BAD}
        told = event.failure in _TOLD
        again_ms = -1 if over else work.now_ms + reporting.STAGE_AGAIN_MS
        work.state.staging[event.plan_id] = replace(staging, done=True, answered=not told, again_ms=again_ms)
        found = _wants(work).stage.get(event.plan_id)
        # Told of the others the leader would take the store for unreadable, and maybe an older base.
        if found is not None and told:
            reporting.staged(work, staging, found[0], _TOLD[event.failure], event.detail)


def _on_written(work: Work, event: Written) -> None:
    state = work.state
    kind, _, name = event.tag.partition("/")
    over = event.ok or event.moot
    hold = work.state.holds.get(name)
    staging = work.state.staging.get(name)
    if kind == "prepared" and hold is not None:
        work.put_hold(replace(hold, answering=False, answered=over))
    elif kind == "delayed" and name in state.delays:
        known = state.delays[name]
        state.delays[name] = Delay(known.reason if over else None, telling=False)
    elif kind == "staged" and staging is not None:
        if over:
            work.state.staging[name] = replace(staging, answered=True)
        else:
            # Staging again is cheap where it is done already, and ends in the same answer.
            del work.state.staging[name]


def _on_reported(work: Work, event: Reported) -> None:
    attempt = work.state.attempts.get(event.attempt)
    if attempt is None:
        return
    told = max(attempt.told, ReportLevel(event.serial)) if event.ok else attempt.told
    work.put_attempt(replace(attempt, told=told, telling=ReportLevel.NOTHING))
    if attempt.told < ReportLevel.DRAINED <= told:
        # Not before: each report is written whole, with the end of the output and the newest step.
        work.emit(Unfollow(attempt.id))
    if attempt.told < ReportLevel.DEAD <= told:
        warmth.learn(work, attempt, event)


def _wants(work: Work) -> Wants:
    view, me = work.state.view, work.state.me
    return Wants() if view is None or me is None else wants(view, me, set_aside.ask_nothing(work.state))


def _reconcile(work: Work) -> None:
    promised.tend(work)
    expired = not work.state.may_run(work.now_ms)
    if expired:
        tasks.stop_all(work, "etcd has not vouched for this node in time")
    set_aside.tend(work)
    reporting.report(work)
    report.tell(work)
    if work.state.view is None:
        return
    wanted = _wants(work)
    tasks.stop_unwanted(work, wanted)
    code.bring_in(work, wanted)
    tasks.hold_ports(work, wanted)
    prepared.answer_plans(work, wanted)
    prepared.tell_delays(work, wanted)
    if not expired:
        tasks.start_wanted(work, wanted)
    tasks.tell_of_moves(work, wanted)
    firewall.tend(work, wanted)
    reporting.stage_bases(work, wanted)
    reporting.commit_and_drain(work, wanted)
    reporting.follow_commits(work, wanted)
    reporting.report(work)
    tasks.forget(work, wanted)
    secrets.forget(work, wanted)
    warmth.forget(work, wanted)
    pool.tend(work, wanted)
    reporting.clean(work, wanted)
    code.keep_used(work)
    code.keep_data(work, wanted)


def _clear_out(work: Work) -> None:
    for launcher in list(work.state.launchers.values()):
        work.doom(launcher, "this node's incarnation is lost")
    if not work.state.launchers:
        for attempt in work.state.attempts:
            work.emit(Unfollow(attempt))
        work.state = replace(work.state, attempts={}, holds={}, staging={}, commits={}, delays={})
        work.emit(Cleared())
