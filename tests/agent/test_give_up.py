"""Launchers that never get ready are given up, and the leader is told what to try (Hold.tries)."""

from __future__ import annotations

from agent.core.events import Fenced, Joined, LauncherGone, Observed, Spawned, Tick
from agent.core.instructions import Fence, Instruction, Spawn, Write
from agent.core.state import AgentState
from agent.core.step import step
from agent.core.tasks import MOST_TRIES
from supervisor.contract.desired import Assignment, JobPhase, JobSwitch
from supervisor.contract.observed import Prepared
from supervisor.contract.timing import FAST
from tests.agent.core import ME, SETTINGS

ORDER = Assignment(
    "job", "u", "worker", 0, 1, "p1", "n1", "life1", 1, ("python", "x.py"), "/", preload=("tensorflow",)
)


def test_a_launcher_that_always_dies_while_it_gets_ready_is_given_up() -> None:
    now_ms = 100_000
    state = AgentState(SETTINGS, "life1", "boot", FAST.d_ms)
    state, _ = step(state, [Joined(ME, now_ms, adopt=True, d_ms=FAST.d_ms)], now_ms)
    switch = JobSwitch("job", "u", JobPhase.WAITING, 0)
    queue: list[Instruction] = []
    spawned, answers = 0, []
    state, done = step(state, [Observed((ORDER,), (switch,), now_ms)], now_ms)
    queue += done
    for _ in range(50):
        now_ms += 100
        state, done = step(state, [Tick()], now_ms)
        queue += done
        while queue:
            each = queue.pop(0)
            if isinstance(each, Spawn):
                spawned += 1
                state, done = step(state, [Spawned(each.launcher_id, 100 + spawned, 1)], now_ms)
                queue += done
                state, done = step(state, [LauncherGone(each.launcher_id)], now_ms)
                queue += done
            elif isinstance(each, Fence):
                state, done = step(state, [Fenced(each.launcher_id, 0)], now_ms)
                queue += done
            elif isinstance(each, Write):
                answers.append(each.record)
    (answer,) = answers
    assert isinstance(answer, Prepared)
    assert spawned == MOST_TRIES + 1, "the first, and so many more"
    assert f"{MOST_TRIES} launchers ended before they were ready" in answer.failure
    assert "`python -c 'import tensorflow'`" in answer.failure
