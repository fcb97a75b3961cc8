"""Launchers that say nothing, as an agent sees them that runs no oftener than its timing profile has it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.core.desired import recipe_of
from agent.core.events import BeatSeen, Heard, Joined, LauncherSaid, Observed
from agent.core.instructions import Fence, Instruction
from agent.core.pool import silence_ms
from agent.core.state import AgentState, Attempt, Launcher
from agent.core.step import step
from agent.inside import protocol
from agent.settings import AgentSettings
from supervisor.contract.desired import JobPhase, JobSwitch
from supervisor.contract.observed import Incarnation, NodeResources
from supervisor.contract.timing import DEFAULT, FAST, Timing
from tests.agent.core import ORDER

LATE_MS = 50
"""So much later than asked for is an agent on a busy machine woken."""


def running(timing: Timing, now_ms: int) -> AgentState:
    """An attempt that its launcher has told of."""
    resources = NodeResources(1.0, 1)
    settings = AgentSettings("n1", "h", "h:1", 20000, 20100, "/locks", timing, resources)
    me = Incarnation("n1", "life1", "boot", timing.d_ms, "h", "h:1", 20000, 20100, 1, resources)
    recipe, name = recipe_of(ORDER, "process"), ORDER.attempt_id
    launcher = Launcher("L", recipe, now_ms, ORDER.task.member, pid=5, start_ticks=5)
    attempt = Attempt(name, "u", "p1", "L", 20000, "h:20000", warm=True, asked=True, pid=6)
    state = AgentState(settings, "life1", "boot", timing.d_ms)
    state = replace(state, launchers={"L": launcher}, attempts={name: attempt})
    told = protocol.RunningAttempt(str(name), 6, 0, 20000, "life1")
    hello = protocol.Hello(protocol.PROTOCOL, "L", "job", 5, 5, "boot", warm=True, attempt=told)
    switch = JobSwitch("job", "u", JobPhase.RUNNING, 1, "p1")
    for event in (
        Joined(me, now_ms, adopt=True, d_ms=timing.d_ms),
        LauncherSaid("L", hello),
        Observed((ORDER,), (switch,), now_ms),
    ):
        state, _ = step(state, [event], now_ms)
    return state


@pytest.mark.parametrize("timing", [FAST, DEFAULT], ids=lambda timing: timing.profile)
def test_a_silent_launcher_is_killed_in_time_though_the_agent_is_woken_late(timing: Timing) -> None:
    began_ms = now_ms = 100_000
    state = running(timing, now_ms)
    done: list[Instruction] = []
    tick_ms = 2 * timing.tick_ms + LATE_MS
    while not any(isinstance(each, Fence) for each in done):
        now_ms += tick_ms
        assert now_ms - began_ms <= silence_ms(state) + 2 * tick_ms, "nobody kills what it has started"
        state, first = step(state, [Heard(now_ms)], now_ms)
        state, then = step(state, [BeatSeen(now_ms)], now_ms)
        done += (*first, *then)
    assert now_ms - began_ms > silence_ms(state)
