"""One step in progress: a state of its own to change, and the instructions gathered so far."""

from __future__ import annotations

from dataclasses import replace

from agent.core.instructions import Fence, Instruction, Note, Say
from agent.core.saved.record import End
from agent.core.state import AgentState, Attempt, Launcher, PortReservation
from agent.inside import protocol
from supervisor.contract.observed import ExitReason

KILL_AGAIN_MS = 1_000
KILL_TIMES = 3
"""How many times the profile's kill_time a launcher that pulls has for a kill before it is fenced.

A killed process must run once more in order to end, which takes time on a busy machine. Fencing a launcher
costs its warm start, which such a machine needs most. A launcher that cannot kill costs no more than this
delay.
"""
FENCE_AGAIN_MS = 500


class Work:
    """The state while events are worked in. Rules change it through these methods or by `replace`."""

    def __init__(self, state: AgentState, now_ms: int) -> None:
        self.state = state.copy()
        self.now_ms = now_ms
        self.out: list[Instruction] = []

    def emit(self, instruction: Instruction) -> None:
        """Tell the daemon to do something, after what was emitted before."""
        self.out.append(instruction)

    def note(self, event: str, level: str = "info", **fields: str) -> None:
        """Tell the operator."""
        self.out.append(Note(level, event, fields))

    def put_launcher(self, launcher: Launcher) -> Launcher:
        """Store a launcher."""
        self.state.launchers[launcher.launcher_id] = launcher
        return launcher

    def put_hold(self, hold: PortReservation) -> PortReservation:
        """Store a reservation."""
        self.state.holds[hold.name] = hold
        return hold

    def put_attempt(self, attempt: Attempt) -> Attempt:
        """Store an attempt."""
        self.state.attempts[attempt.id] = attempt
        return attempt

    def say(self, launcher_id: str, message: object) -> bool:
        """Send to a launcher that is there to hear it; returns whether it is."""
        launcher = self.state.launchers.get(launcher_id)
        if launcher is None or not launcher.welcomed or launcher.doomed:
            return False
        self.emit(Say(launcher_id, message))
        return True

    def live_on(self, launcher_id: str) -> list[Attempt]:
        """Attempts of a launcher that are not confirmed dead."""
        return [
            each for each in self.state.attempts.values() if each.launcher_id == launcher_id and each.alive
        ]

    def kill(self, attempt: Attempt, reason: str) -> None:
        """See to it that an attempt dies; may be called at every step."""
        if not attempt.alive:
            return
        launcher = self.state.launchers.get(attempt.launcher_id)
        if launcher is None or (not attempt.asked and attempt.end is None):
            self.end(attempt, End(ExitReason.KILLED, None, None, self.now_ms, True, reason))
            return
        if attempt.killed_ms >= 0 and self.now_ms < attempt.killed_ms + KILL_AGAIN_MS:
            return
        said = self.say(launcher.launcher_id, protocol.Kill(str(attempt.id), reason))
        patience_ms = KILL_TIMES * self.state.settings.timing.kill_time_ms
        overdue = attempt.kills * KILL_AGAIN_MS >= patience_ms and attempt.end is None
        self.put_attempt(replace(attempt, killed_ms=self.now_ms, kills=attempt.kills + 1))
        if not said or overdue:
            self.doom(launcher, reason if not said else f"{attempt.id} did not die: {reason}")

    def end(self, attempt: Attempt, end: End) -> Attempt:
        """Record how an attempt ended; the first reason stays, its death may be confirmed later."""
        if attempt.end is not None:
            end = replace(attempt.end, confirmed_dead=attempt.end.confirmed_dead or end.confirmed_dead)
        return self.put_attempt(replace(attempt, end=end))

    def doom(self, launcher: Launcher, reason: str) -> None:
        """Kill a launcher from outside, with all that it started, until nothing is left."""
        if not launcher.doomed:
            launcher = self.put_launcher(replace(launcher, doomed=True))
            level = "info" if launcher.leaving_ms >= 0 else "warning"
            self.note(
                "killing a launcher and all that it started",
                level,
                launcher=launcher.launcher_id,
                reason=reason,
            )
        if launcher.fencing or self.now_ms < launcher.fence_ms + FENCE_AGAIN_MS:
            return
        processes = [(launcher.pid, launcher.start_ticks)]
        processes += [(each.pid, each.start_ticks) for each in self.live_on(launcher.launcher_id)]
        self.put_launcher(replace(launcher, fencing=True, fence_ms=self.now_ms))
        self.emit(Fence(launcher.launcher_id, tuple(each for each in processes if each[0])))
