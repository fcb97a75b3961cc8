"""Rules look at the time where `agent.core.calm` hears of it; and what is passed over is short of nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from agent.core import calm
from agent.core.events import BeatSeen, Heard, LauncherSaid, MemoryFree, Tick
from agent.core.instructions import Fence, Say
from agent.core.pool import SCARCE_BYTES, silence_ms
from agent.core.state import AgentState, Told
from agent.core.step import step
from agent.core.work import NEVER_MS
from agent.inside import protocol
from supervisor.contract.timing import FAST
from tests.agent.test_silence import ORDER, running

CORE = Path(__file__).resolve().parents[2] / "agent" / "core"
EVENTS = {
    ("gpus.py", "memory_free"),  # it asks for a look, and so is never calm, until it is over
    ("hear.py", "on_spawn_failed"),
    ("promised.py", "on_promised"),
    ("promised.py", "tend"),  # restless where it counts
    ("step.py", "_on_membership"),
}
"""What compares the time by itself, as it is not asked again unless something happens."""
NOW_MS = 100_000


def looks_at_the_time() -> Iterator[tuple[str, str]]:
    for path in sorted(CORE.glob("*.py")):
        if path.name in {"work.py", "calm.py", "state.py", "gpu_health.py"}:
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and any(map(_compares, ast.walk(function))):
                yield path.name, function.name


def _compares(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        counts = name in {"min", "max", "may_start"}
    else:
        counts = isinstance(node, ast.Compare)
    return counts and any(
        isinstance(each, ast.Attribute) and each.attr == "now_ms" for each in ast.walk(node)
    )


def test_rules_compare_the_time_through_past_alone() -> None:
    found = set(looks_at_the_time())
    # What `hear` tells a launcher is told to each of its pulls.
    assert found - {("hear.py", "_on_pull")} == EVENTS


def quiet() -> AgentState:
    """An attempt runs, and there is nothing to do."""
    state = replace(running(FAST, NOW_MS), free_bytes=0)
    told = {
        name: replace(each, told=Told.RUNNING, telling=Told.NOTHING) for name, each in state.attempts.items()
    }
    state, _ = step(replace(state, attempts=told), Tick(), NOW_MS)
    state, out = step(state, Tick(), NOW_MS)
    assert not out
    assert state.calm_until_ms > NOW_MS + 100
    return state


def test_what_only_tells_the_time_is_noted_and_no_more() -> None:
    state = before = quiet()
    for event in (Heard(NOW_MS + 50), BeatSeen(NOW_MS + 40), MemoryFree(SCARCE_BYTES - 1)):
        state, out = step(state, event, NOW_MS + 60)
        assert not out
    assert state == replace(
        before,
        heard_ms=NOW_MS + 50,
        read_ms=NOW_MS + 40,
        deadline_ms=NOW_MS + 40 + FAST.d_ms,
        free_bytes=SCARCE_BYTES - 1,
        stepped_ms=NOW_MS + 60,
    )


def test_a_pull_is_answered_while_nothing_else_happens() -> None:
    state = quiet()
    pull = protocol.Pull(7, "life1", str(ORDER.attempt_id))
    after, out = step(state, LauncherSaid("L", pull), NOW_MS + 50)
    assert out == (Say("L", protocol.Grant(7, FAST.d_ms - 50 - FAST.reserve_ms, "life1")),)
    assert after.launchers["L"].heard_ms == NOW_MS + 50
    assert state.launchers["L"].heard_ms == NOW_MS
    assert after.calm_until_ms == state.calm_until_ms


def test_at_the_first_moment_that_counts_all_rules_look_again() -> None:
    state = quiet()
    assert state.calm_until_ms == NOW_MS + silence_ms(state) + 1
    _, before = step(replace(state, stepped_ms=state.calm_until_ms - 1), Tick(), state.calm_until_ms - 1)
    _, then = step(replace(state, stepped_ms=state.calm_until_ms - 1), Tick(), state.calm_until_ms)
    assert not before
    assert any(isinstance(each, Fence) for each in then)


def test_a_node_that_is_out_of_time_is_not_passed_over_when_it_has_time_again() -> None:
    late_ms = NOW_MS + FAST.d_ms
    state = replace(quiet(), launchers={}, attempts={}, stepped_ms=late_ms, calm_until_ms=NEVER_MS)
    assert not calm.may_pass(state, BeatSeen(late_ms), late_ms)
    assert calm.may_pass(state, Tick(), late_ms)
