"""What an agent that knows of an attempt learns anew from its launcher."""

from __future__ import annotations

from agent.core.events import LauncherSaid
from agent.core.instructions import Follow
from agent.core.step import step
from agent.inside import protocol
from tests.agent.test_ending import ORDER, Core


def test_each_hello_tells_which_tensorflow_runs() -> None:
    """So that the state file need not: the next life of the agent hears it, too."""
    core = Core(ORDER)
    running = protocol.RunningAttempt(str(ORDER.attempt_id), 6, 0, 20000, "life1", "2.99.1")
    hello = protocol.Hello(protocol.PROTOCOL, "L", "job", 5, 5, "boot", warm=True, attempt=running)
    _, said = step(core.state, LauncherSaid("L", hello), core.now_ms)
    assert [each.tensorflow for each in said if isinstance(each, Follow)] == ["2.99.1"]
