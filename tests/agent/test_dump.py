"""The leader asks for dumps in its answers; an attempt is dumped once for each time that it is suspected."""

from __future__ import annotations

from agent.core.events import DumpAsked
from agent.core.instructions import Dump
from agent.core.saved.record import End
from agent.core.state import AgentState, Attempt
from agent.core.step import step
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.observed import ExitReason
from supervisor.contract.timing import FAST
from tests.agent.core import SETTINGS

RUNS = AttemptId(TaskId("job", "worker", 0), 1, 1)
ENDED = AttemptId(TaskId("job", "worker", 1), 1, 1)


def test_an_attempt_that_runs_is_dumped_once_for_each_suspicion() -> None:
    state = AgentState(SETTINGS, "life", "boot", FAST.d_ms)
    end = End(ExitReason.EXIT, 0, None, 5, confirmed_dead=True)
    state.attempts[RUNS] = Attempt(RUNS, "u", "p", "l1", 1, "h:1", warm=True, pid=7)
    state.attempts[ENDED] = Attempt(ENDED, "u", "p", "l2", 2, "h:2", warm=True, pid=8, end=end)
    asked = DumpAsked((str(RUNS), str(ENDED), "job/worker:9@1.1"))
    state, instructions = step(state, [asked], 10)
    assert [each for each in instructions if isinstance(each, Dump)] == [Dump(RUNS)]
    state, again = step(state, [asked], 20)
    assert not [each for each in again if isinstance(each, Dump)]
    state, nothing = step(state, [DumpAsked(())], 30)
    assert not [each for each in nothing if isinstance(each, Dump)]
    _, anew = step(state, [asked], 40)
    assert [each for each in anew if isinstance(each, Dump)] == [Dump(RUNS)], "it is suspected once more"
