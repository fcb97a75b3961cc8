"""An agent's core with one running attempt, whose launcher and etcd answer."""

from __future__ import annotations

from dataclasses import replace

from agent.core.desired import recipe_of
from agent.core.events import Event, Joined, LauncherSaid, Observed, Tick
from agent.core.instructions import FollowCommits, Instruction, Say, StopFollowing
from agent.core.state import AgentState, Attempt, Launcher
from agent.core.step import step
from agent.inside import protocol
from supervisor.contract.desired import Assignment, JobPhase, JobSwitch
from supervisor.contract.timing import FAST
from tests.agent.core import ME, SETTINGS


class RunningCore:
    """An agent's core with one running attempt, under an etcd that always vouches for it."""

    def __init__(self, order: Assignment) -> None:
        self.order = order
        self.now_ms = 100_000
        self.state = AgentState(SETTINGS, "life1", "boot", FAST.d_ms)
        self.state.launchers["L"] = Launcher(
            "L", recipe_of(order, "process"), self.now_ms, order.task.member, pid=5, start_ticks=5
        )
        self.state.attempts[order.attempt_id] = Attempt(
            order.attempt_id, "u", "p1", "L", 20000, "h:20000", warm=True, asked=True, pid=6
        )
        running = protocol.RunningAttempt(str(order.attempt_id), 6, 0, 20000, "life1")
        hello = protocol.Hello(protocol.PROTOCOL, "L", "job", 5, 5, "boot", warm=True, attempt=running)
        self.take(Joined(ME, self.now_ms, adopt=True, d_ms=FAST.d_ms))
        self.take(LauncherSaid("L", hello))
        self.observe(JobSwitch("job", "u", JobPhase.RUNNING, 1, "p1"))

    def take(self, event: Event) -> list[object]:
        """Feed an event; return the messages to the launcher that follow."""
        said: tuple[Instruction, ...]
        self.state, said = step(self.state, [event], self.now_ms)
        return [each.message for each in said if isinstance(each, Say)]

    def suspended(self, switch: JobSwitch) -> list[str]:
        """The attempts that are told to stop where they are."""
        said = self.observe(switch)
        assert all(isinstance(each, protocol.Suspend) for each in said)
        return [each.attempt for each in said if isinstance(each, protocol.Suspend)]

    def observe(self, switch: JobSwitch) -> list[object]:
        return self.take(Observed((self.order,), (switch,), self.now_ms))

    def wait(self, ms: int) -> list[object]:
        """Ticks for so long; everything of interest that was said meanwhile."""
        said: list[object] = []
        for _ in range(ms // 100):
            self.now_ms += 100
            deadline_ms = self.now_ms + FAST.d_ms
            launcher = replace(self.state.launchers["L"], heard_ms=self.now_ms)
            launchers = {"L": launcher}
            self.state = replace(
                self.state, deadline_ms=deadline_ms, heard_ms=self.now_ms, launchers=launchers
            )
            said += self.take(Tick())
        return [each for each in said if isinstance(each, protocol.Kill | protocol.Terminate)]

    def following(self, switch: JobSwitch) -> list[Instruction]:
        """The instructions to follow commits, or to stop it, that a switch leads to."""
        observed = Observed((self.order,), (switch,), self.now_ms)
        self.state, done = step(self.state, [observed], self.now_ms)
        return [each for each in done if isinstance(each, FollowCommits | StopFollowing)]
