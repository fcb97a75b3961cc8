"""An agent leaves its rules out only where they would find nothing (`agent.core.calm`), in whole runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from agent import daemon
from agent.core.events import Event
from agent.core.instructions import Instruction
from agent.core.state import AgentState
from agent.core.step import step
from chaos.sim.gpus import run_gpus
from chaos.sim.outage import run_outage
from chaos.sim.run import Result, run_swarm

Stepped = tuple[AgentState, tuple[Instruction, ...]]


def run_short(seed: int) -> Result:
    return run_swarm(seed, short=True)


def fully(state: AgentState, event: Event, now_ms: int) -> Stepped:
    after, out = step(replace(state, calm_until_ms=-1), event, now_ms)
    return replace(after, calm_until_ms=-1), out


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("run", "seed"), [(run_short, 1), (run_short, 3), (run_short, 64), (run_gpus, 1), (run_outage, 1)]
)
def test_what_is_passed_over_is_what_the_rules_would_not_have_answered(
    run: Callable[[int], Result], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Counter[bool]()

    def beside(state: AgentState, event: Event, now_ms: int) -> Stepped:
        after, out = step(state, event, now_ms)
        seen[now_ms < state.calm_until_ms] += 1
        assert (replace(after, calm_until_ms=-1), out) == fully(state, event, now_ms), event
        return after, out

    monkeypatch.setattr(daemon, "step", beside)
    result = run(seed)
    assert result.ok, result.violations or result.error
    assert seen[True] > seen[False] // 2, "hardly anything was passed over"
