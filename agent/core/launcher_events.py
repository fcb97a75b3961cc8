"""Handles the messages of launchers, and their ends."""

from __future__ import annotations

from dataclasses import replace

from agent.core import code, set_aside
from agent.core.events import Fenced, LauncherGone, LauncherLeft, LauncherSaid, Spawned, SpawnFailed
from agent.core.instructions import Fence, Say
from agent.core.saved.record import End
from agent.core.state import ROOM_AGAIN_MS, Attempt, Full, HoldState, Launcher
from agent.core.step_context import Work
from agent.inside import protocol
from supervisor.contract.job.joining import joins_supported
from supervisor.contract.observed import ExitReason

PATIENCE_MS = 60_000
"""The time to wait for a launcher that cannot be made for now, before an attempt in place is given up."""

_REASONS = {
    "exit": ExitReason.EXIT,
    "killed": ExitReason.KILLED,
    "deadline": ExitReason.DEADLINE,
    "start_failed": ExitReason.START_FAILED,
    "lost": ExitReason.LAUNCHER_LOST,
    "devices_lost": ExitReason.DEVICES_LOST,
}
_LAST = (ExitReason.LAUNCHER_LOST, ExitReason.DEVICES_LOST)
"""After an attempt that ended so its launcher leaves."""


def on_spawned(work: Work, event: Spawned) -> None:
    """The launcher that was intended exists."""
    launcher = work.state.launchers.get(event.launcher_id)
    if launcher is None:
        # It was fenced before it was there, as an outcast's launchers are.
        work.emit(Fence(event.launcher_id, ((event.pid, event.start_ticks),)))
        return
    work.put_launcher(replace(launcher, pid=event.pid, start_ticks=event.start_ticks, reach=event.reach))


def on_spawn_failed(work: Work, event: SpawnFailed) -> None:
    """It will never exist: whatever waits for it has failed."""
    if work.state.launchers.pop(event.launcher_id, None) is None:
        return
    work.state = replace(work.state, spawn_failed_ms=work.now_ms)
    if event.full:
        work.state = replace(work.state, full=Full(event.reason, work.now_ms + ROOM_AGAIN_MS))
    work.note("a launcher cannot be started", "warning", launcher=event.launcher_id, reason=event.reason)
    for hold in [each for each in work.state.holds.values() if each.launcher_id == event.launcher_id]:
        since_ms = hold.delayed_ms if hold.delayed_ms >= 0 else work.now_ms
        if event.unknown and hold.plan_id in work.state.code:
            # For want of code, or of docker: it is asked for again when that is here.
            del work.state.holds[hold.name]
            code.not_now(work, hold.plan_id, event.reason)
        elif event.unknown and work.now_ms < since_ms + PATIENCE_MS:
            again_ms = work.now_ms + code.AGAIN_MS
            work.put_hold(replace(hold, delay=event.reason, delayed_ms=since_ms, again_ms=again_ms))
        else:
            failure = event.reason
            if event.unknown:
                failure = f"no launcher for {(work.now_ms - since_ms) / 1000:.0f} s: {failure}"
            work.put_hold(replace(hold, state=HoldState.FAILED, failure=failure))


def on_left(work: Work, event: LauncherLeft) -> None:
    """The connection is gone; the launcher looks for us again, or has died."""
    launcher = work.state.launchers.get(event.launcher_id)
    if launcher is not None and launcher.connected:
        work.put_launcher(replace(launcher, connected=False, welcomed=False, heard_ms=work.now_ms))


def on_gone(work: Work, event: LauncherGone) -> None:
    """The launcher is dead, and its attempt's main process with it; fencing finds what escaped."""
    launcher = work.state.launchers.get(event.launcher_id)
    if launcher is None:
        return
    for exited in event.exits:
        known = find(work, launcher, exited.attempt)
        if known is not None and not known.acked:
            # What it had started beside its main process is confirmed dead by the fencing that follows.
            work.end(known, _end_of(replace(exited, confirmed_dead=False), launcher))
    detail = f"its launcher died: {event.reason}" if event.reason else "its launcher died"
    for attempt in work.live_on(event.launcher_id):
        work.end(attempt, _lost(work, launcher, detail, dead=False))
    if not launcher.member and not launcher.settled:
        # A spare that dies of what it imports would only do so again.
        work.state = replace(work.state, spawn_failed_ms=work.now_ms)
    for hold in [each for each in work.state.holds.values() if each.launcher_id == event.launcher_id]:
        # Of one that this agent killed, the signal says nothing.
        work.put_hold(replace(hold, ended="" if launcher.doomed else event.reason))
    work.doom(launcher, f"it ended: {event.reason}" if event.reason else "it ended")


def on_fenced(work: Work, event: Fenced) -> None:
    """A round of killing is over. With nothing left the launcher and its attempts are history."""
    launcher = work.state.launchers.get(event.launcher_id)
    if launcher is None:
        set_aside.on_fenced(work, event)
        return
    dead = event.survivors == 0
    detail = "its launcher was fenced" if dead else f"{event.survivors} processes do not die"
    for attempt in work.live_on(event.launcher_id):
        work.end(attempt, _lost(work, launcher, detail, dead=dead))
    if dead:
        del work.state.launchers[event.launcher_id]
    else:
        work.put_launcher(replace(launcher, fencing=False))


def on_said(work: Work, event: LauncherSaid) -> None:
    """A message of the launcher protocol."""
    launcher = work.state.launchers.get(event.launcher_id)
    message = event.message
    if launcher is None:
        if isinstance(message, protocol.Hello):
            refusal = protocol.Refuse("this agent knows no such launcher")
            work.emit(Say(event.launcher_id, refusal))
        return
    launcher = work.put_launcher(replace(launcher, heard_ms=work.now_ms))
    match message:
        case protocol.Hello():
            _on_hello(work, launcher, message)
        case protocol.Pull():
            _on_pull(work, launcher, message)
        case protocol.Reserved() | protocol.ReserveFailed():
            _on_reserve(work, launcher, message)
        case protocol.Warm():
            _on_warm(work, launcher, message)
        case protocol.Started():
            _on_started(work, launcher, message)
        case protocol.StartFailed():
            _on_start_failed(work, launcher, message)
        case protocol.Exited():
            _on_exited(work, launcher, message)
        case protocol.PeersFailed():
            _on_peers_failed(work, launcher, message)
        case _:
            pass


def welcome(work: Work) -> None:
    """Serve every launcher that has said hello; only once etcd has our incarnation (rule 12)."""
    for launcher in list(work.state.launchers.values()):
        if launcher.connected and not launcher.welcomed and not launcher.doomed:
            work.put_launcher(replace(launcher, welcomed=True))
            work.say(launcher.launcher_id, protocol.Welcome(protocol.PROTOCOL, work.state.life))


def find(work: Work, launcher: Launcher, text: str) -> Attempt | None:
    """The attempt of this launcher that is written so."""
    for attempt in work.state.attempts.values():
        if str(attempt.id) == text and attempt.launcher_id == launcher.launcher_id:
            return attempt
    return None


def _on_hello(work: Work, launcher: Launcher, hello: protocol.Hello) -> None:
    if launcher.doomed:
        return
    launcher = work.put_launcher(
        replace(
            launcher,
            connected=True,
            welcomed=False,
            pid=hello.pid,
            start_ticks=hello.start_ticks,
            warm=hello.warm,
            settled=launcher.settled or hello.warm,
            adopts=hello.adopts,
            keeps_secrets=hello.keeps_secrets,
            joins=hello.joins,
            adds_workers=hello.adds_workers,
            drops_workers=hello.drops_workers,
        )
    )
    held = {each.reservation: each.port for each in hello.reservations}
    for hold in [each for each in work.state.holds.values() if each.launcher_id == launcher.launcher_id]:
        if hold.name in held:
            work.put_hold(replace(hold, state=HoldState.HELD, port=held[hold.name]))
        elif hold.state is not HoldState.FAILED:
            work.put_hold(replace(hold, state=HoldState.WAITING, reuse=hold.port or hold.reuse))
    for name in held.keys() - work.state.holds.keys():
        work.emit(Say(launcher.launcher_id, protocol.Release(name)))
    for exited in hello.exits:
        _on_exited(work, launcher, exited)
    running = hello.attempt
    if running is not None:
        known = find(work, launcher, running.attempt)
        # Without a pid it has ended, but its launcher still looks for what it has started.
        pid = running.pid or (known.pid if known is not None else 0)
        mismatch = known is None or (
            known.pid and (known.pid, known.start_ticks) != (pid, running.start_ticks)
        )
        if known is None or mismatch:
            work.doom(launcher, f"it runs {running.attempt}, which is not in the state file")
            return
        known = replace(known, tensorflow=running.tensorflow, stays=_why_it_stays(launcher, running))
        _runs(work, known, pid, running.start_ticks, known.started_ms)
    for attempt in work.live_on(launcher.launcher_id):
        if attempt.end is None and (running is None or str(attempt.id) != running.attempt):
            if attempt.pid:
                work.doom(launcher, f"it knows nothing of {attempt.id} any more")
            else:
                work.put_attempt(replace(attempt, asked=False))


def _on_pull(work: Work, launcher: Launcher, pull: protocol.Pull) -> None:
    state = work.state
    until_ms = state.runs_until_ms
    if state.me is None or until_ms is None:
        return
    # Of a promise too no more than D at a time: a successor of this agent knows of none (rule 11).
    remaining = min(until_ms - work.now_ms, state.d_ms) - state.reserve_ms
    if pull.attempt is not None:
        attempt = find(work, launcher, pull.attempt)
        if attempt is None or attempt.end is not None or attempt.killed_ms >= 0:
            remaining = min(remaining, 0)
    work.say(launcher.launcher_id, protocol.Grant(pull.stamp_ms, remaining, state.life))


def _on_warm(work: Work, launcher: Launcher, message: protocol.Warm) -> None:
    work.put_launcher(replace(launcher, warm=message.error is None, settled=True))
    if message.error is not None:
        work.note(
            "the imports of a launcher failed; its tasks start cold",
            "warning",
            launcher=launcher.launcher_id,
            reason=message.error,
        )


def _on_reserve(work: Work, launcher: Launcher, message: protocol.Reserved | protocol.ReserveFailed) -> None:
    hold = work.state.holds.get(message.reservation)
    mine = hold is not None and hold.launcher_id == launcher.launcher_id
    if hold is None or not mine:
        work.say(launcher.launcher_id, protocol.Release(message.reservation))
    elif isinstance(message, protocol.Reserved):
        work.put_hold(
            replace(
                hold,
                state=HoldState.HELD,
                port=message.port,
                warm=launcher.warm,
                delay="",
                delayed_ms=-1,
            )
        )
    elif hold.reuse is not None:
        # Somebody took it while nobody held it. Who was told of it is told of another, or has to start again.
        port, reason = str(hold.reuse), message.reason
        work.note(
            "another process has taken a task's port; the task gets another one",
            "warning",
            reservation=hold.name,
            port=port,
            reason=reason,
        )
        work.put_hold(replace(hold, state=HoldState.WAITING, reuse=None, port=0))
    else:
        work.put_hold(replace(hold, state=HoldState.FAILED, failure=message.reason))


def _on_started(work: Work, launcher: Launcher, message: protocol.Started) -> None:
    attempt = find(work, launcher, message.attempt)
    if attempt is None:
        work.say(launcher.launcher_id, protocol.Kill(message.attempt, "it is not wanted"))
        return
    if attempt.end is None:
        stays = _why_it_stays(launcher, message)
        attempt = replace(attempt, warm=message.warm, tensorflow=message.tensorflow, stays=stays)
        _runs(work, attempt, message.pid, message.start_ticks, message.at_ms)


def _why_it_stays(launcher: Launcher, told: protocol.Started | protocol.RunningAttempt) -> str:
    """Why a program cannot join others that run, or be told that one has joined; empty if it can."""
    if not launcher.joins:
        return "its launcher makes no program join"
    if not told.takes_addresses:
        return "it was started cold, or by a command that is no Python program"
    if not told.tensorflow:
        return "its launcher has imported no TensorFlow"
    known = joins_supported(told.tensorflow)
    return "" if known else f"that was not tried with TensorFlow {told.tensorflow}"


def _runs(work: Work, attempt: Attempt, pid: int, start_ticks: int, started_ms: int) -> None:
    # Whoever says hello anew may not have heard that it is to be stopped.
    # Nor, perhaps, where others have moved.
    attempt = replace(
        attempt, pid=pid, start_ticks=start_ticks, started_ms=started_ms, asked=True, suspended=False, heard=0
    )
    work.put_attempt(attempt)
    work.emit(attempt.follow())


def _on_start_failed(work: Work, launcher: Launcher, message: protocol.StartFailed) -> None:
    attempt = find(work, launcher, message.attempt)
    if attempt is None or attempt.end is not None or attempt.pid:
        return
    if attempt.killed_ms >= 0:
        reason = ExitReason.KILLED
    elif message.reason.startswith("cannot start"):
        reason = ExitReason.START_FAILED
    else:
        # The launcher's own refusals are no fault of the program and must not burn its budget.
        reason = ExitReason.LAUNCHER_LOST
    work.end(attempt, End(reason, None, None, work.now_ms, True, message.reason))


def _on_exited(work: Work, launcher: Launcher, message: protocol.Exited) -> None:
    attempt = find(work, launcher, message.attempt)
    if attempt is None or attempt.acked:
        work.say(launcher.launcher_id, protocol.AckExit(message.attempt))
        return
    end = _end_of(message, launcher)
    if end.reason in _LAST and launcher.usable:
        launcher = work.put_launcher(replace(launcher, leaving_ms=work.now_ms))
    work.end(attempt, end)


def _on_peers_failed(work: Work, launcher: Launcher, message: protocol.PeersFailed) -> None:
    """A program cannot be told where others have moved: it would wait for them for ever."""
    attempt = find(work, launcher, message.attempt)
    if attempt is None or attempt.end is not None:
        return
    reason = f"it cannot be told where a worker has moved: {message.reason}"
    attempt = work.end(attempt, End(ExitReason.KILLED, None, None, work.now_ms, False, reason))
    work.kill(attempt, reason)


def _lost(work: Work, launcher: Launcher, detail: str, *, dead: bool) -> End:
    networked = launcher.recipe.networked
    return End(ExitReason.LAUNCHER_LOST, None, None, work.now_ms, dead, detail, address_lost=networked)


def _end_of(exited: protocol.Exited, launcher: Launcher) -> End:
    reason = _REASONS.get(exited.reason, ExitReason.EXIT)
    return End(
        reason,
        exited.code,
        exited.signal,
        exited.at_ms,
        exited.confirmed_dead,
        exited.detail,
        address_lost=reason in _LAST and launcher.recipe.networked,
    )
