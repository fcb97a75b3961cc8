"""An agent's core, driven by hand: events in, instructions out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from agent.core.events import (
    Event,
    Joined,
    LauncherSaid,
    Observed,
    Reported,
    Spawned,
    SpecRead,
)
from agent.core.instructions import (
    Instruction,
    Report,
    Say,
)
from agent.core.state import AgentState, Attempt
from agent.core.step import step
from agent.inside import protocol
from agent.settings import AgentSettings
from supervisor.contract.desired import Assignment, ClusterSpec, JobPhase, JobSwitch, RoleAddresses
from supervisor.contract.observed import Incarnation, NodeResources
from supervisor.contract.timing import FAST

T = TypeVar("T")
SETTINGS = AgentSettings("n1", "h", "h:1", 20000, 20100, "/locks", FAST, NodeResources(1.0, 1))
NO_SPARES = replace(SETTINGS, spare_launchers=0)
ME = Incarnation(
    "n1", "life1", "boot", FAST.d_ms, "h", "h:1", 20000, 20100, 1, NodeResources(1.0, 1), ("life0",)
)
ORDER = Assignment("job", "u", "worker", 0, 1, "p1", "n1", "life1", 1, ("x",), "/")
WAITING = JobSwitch("job", "u", JobPhase.WAITING, 0)
RUNNING = JobSwitch("job", "u", JobPhase.RUNNING, 1, "p1")
SAVES = replace(RUNNING, saver="worker.0")
SPEC = ClusterSpec("job", 1, "p1", (RoleAddresses("worker", ("h:20000",)),))


class Core:
    """An agent's core, driven by hand; `said` are all its instructions so far."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.state = AgentState(NO_SPARES, "life1", "boot", FAST.d_ms)
        self.said: list[Instruction] = []
        self.feed(Joined(ME, self.now_ms, adopt=False, d_ms=FAST.d_ms))

    def feed(self, *events: Event) -> list[Instruction]:
        out: list[Instruction] = []
        for event in events:
            self.state, instructions = step(self.state, [event], self.now_ms)
            out += instructions
        self.said += out
        return out

    def together(self, *events: Event) -> list[Instruction]:
        """All of them in one step."""
        self.state, instructions = step(self.state, events, self.now_ms)
        self.said += instructions
        return list(instructions)

    def see(self, switch: JobSwitch, *orders: Assignment) -> list[Instruction]:
        return self.feed(Observed(orders, (switch,), self.now_ms))

    def hear(self, message: object) -> list[Instruction]:
        return self.feed(LauncherSaid(self.launcher_id, message))

    def later(self, ms: int, *events: Event) -> list[Instruction]:
        self.now_ms += ms
        return self.feed(*events)

    @property
    def launcher_id(self) -> str:
        (launcher,) = self.state.launchers
        return launcher

    @property
    def attempt(self) -> Attempt:
        return self.state.attempts[ORDER.attempt_id]

    def prepared(self, order: Assignment = ORDER) -> Core:
        """A launcher that holds a port for the task of a plan."""
        self.see(WAITING, order)
        self.feed(Spawned(self.launcher_id, 100, 1))
        self.hear(protocol.Hello(1, self.launcher_id, "job", 100, 1, "boot", True))
        self.hear(protocol.Reserved("p1.worker.0", 20000))
        return self

    def running(self) -> Core:
        """Its first attempt runs and is told of."""
        self.prepared()
        self.see(RUNNING, ORDER)
        self.feed(SpecRead("p1", SPEC))
        self.hear(protocol.Started(str(ORDER.attempt_id), 101, 1, self.now_ms, True))
        assert self.attempt.pid == 101
        told = only(Report, self.said)
        self.feed(Reported(ORDER.attempt_id, told[-1].serial, True))
        return self

    def granted_ms(self, stamp_ms: int) -> int:
        """The time that the agent grants for a pull with this stamp."""
        out = self.hear(protocol.Pull(stamp_ms, "life1", str(ORDER.attempt_id)))
        (grant,) = [each.message for each in only(Say, out) if isinstance(each.message, protocol.Grant)]
        assert grant.stamp_ms == stamp_ms
        return grant.remaining_ms


def only(kind: type[T], instructions: Iterable[object]) -> list[T]:
    return [each for each in instructions if isinstance(each, kind)]


def kills(instructions: Iterable[object]) -> list[str]:
    said = [each.message for each in only(Say, instructions)]
    return [each.attempt for each in said if isinstance(each, protocol.Kill)]
