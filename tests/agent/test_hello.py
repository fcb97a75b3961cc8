"""The hello of a launcher tells an agent anew about an attempt that it knows."""

from __future__ import annotations

from agent.core.events import LauncherSaid
from agent.core.instructions import Follow
from agent.core.step import step
from agent.inside import protocol
from supervisor.contract.observed import ExitReason
from tests.agent.core import ORDER
from tests.agent.running_core import RunningCore


def test_each_hello_tells_which_tensorflow_runs() -> None:
    """So that the state file need not: the next life of the agent hears it, too."""
    core = RunningCore(ORDER)
    running = protocol.RunningAttempt(str(ORDER.attempt_id), 6, 0, 20000, "life1", "2.99.1")
    hello = protocol.Hello(protocol.PROTOCOL, "L", "job", 5, 5, "boot", warm=True, attempt=running)
    _, said = step(core.state, [LauncherSaid("L", hello)], core.now_ms)
    assert [each.tensorflow for each in said if isinstance(each, Follow)] == ["2.99.1"]


def test_an_attempt_whose_pid_is_gone_while_its_launcher_ends_the_rest_of_it_keeps_its_launcher() -> None:
    """Its pid in a container means nothing here once it has ended; how it ended is told when all is dead."""
    core = RunningCore(ORDER)
    name = str(ORDER.attempt_id)
    running = protocol.RunningAttempt(name, 0, 0, 20000, "life1")
    hello = protocol.Hello(protocol.PROTOCOL, "L", "job", 5, 5, "boot", warm=True, attempt=running)
    core.take(LauncherSaid("L", hello))
    assert not core.state.launchers["L"].doomed
    assert core.state.attempts[ORDER.attempt_id].pid == 6
    exited = protocol.Exited(name, 3, None, core.now_ms, "exit", confirmed_dead=True, survivors=0)
    core.take(LauncherSaid("L", exited))
    end = core.state.attempts[ORDER.attempt_id].end
    assert end is not None
    assert (end.reason, end.code) == (ExitReason.EXIT, 3)
