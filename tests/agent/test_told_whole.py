"""Each report of an ended attempt is whole: its output is followed until the last one is in etcd."""

from __future__ import annotations

from dataclasses import replace

from agent.core.desired import recipe_of
from agent.core.events import Drained, Event, Joined, LauncherSaid, Observed, Reported
from agent.core.instructions import Drain, Instruction, Report, Unfollow
from agent.core.state import AgentState, Attempt, Launcher, ReportLevel
from agent.core.step import step
from agent.inside import protocol
from supervisor.contract.desired import LAST_LOOK, Assignment, JobPhase, JobSwitch
from supervisor.contract.timing import FAST
from tests.agent.core import ME, SETTINGS

ORDER = Assignment("job", "u", "chief", 0, 1, "p1", "n1", "life1", 1, ("x",), "/")
NOW_MS = 100_000


def test_the_output_of_a_saver_is_followed_until_its_last_commit_is_told_of() -> None:
    attempt = ORDER.attempt_id
    state = AgentState(SETTINGS, "life1", "boot", FAST.d_ms)
    state.launchers["L"] = Launcher("L", recipe_of(ORDER, "process"), NOW_MS, "chief.0", pid=5, start_ticks=5)
    state.attempts[attempt] = Attempt(attempt, "u", "p1", "L", 20000, "h:20000", warm=True, asked=True, pid=6)
    done: list[Instruction] = []

    def take(*events: Event) -> None:
        nonlocal state
        for event in events:
            state, said = step(state, [event], NOW_MS)
            done.extend(said)

    running = protocol.RunningAttempt(str(attempt), 6, 0, 20000, "life1")
    hello = protocol.Hello(protocol.PROTOCOL, "L", "job", 5, 5, "boot", warm=True, attempt=running)
    take(Joined(ME, NOW_MS, adopt=True, d_ms=FAST.d_ms), LauncherSaid("L", hello))
    running_switch = JobSwitch("job", "u", JobPhase.RUNNING, 1, "p1", saver="chief.0")
    take(Observed((ORDER,), (running_switch,), NOW_MS))
    take(Reported(attempt, int(ReportLevel.RUNNING), True))
    exited = protocol.Exited(str(attempt), 1, None, NOW_MS, "exit", confirmed_dead=True)
    take(LauncherSaid("L", exited))
    assert [each.serial for each in done if isinstance(each, Report)][-1] == ReportLevel.DEAD
    take(Reported(attempt, int(ReportLevel.DEAD), True, stepped=True))
    last = replace(running_switch, phase=JobPhase.FINISHING, look=LAST_LOOK)
    take(Observed((ORDER,), (last,), NOW_MS))
    assert [each.look for each in done if isinstance(each, Drain)] == [LAST_LOOK]
    take(Drained(attempt, LAST_LOOK))
    assert [each.serial for each in done if isinstance(each, Report)][-1] == ReportLevel.DRAINED
    assert not [each for each in done if isinstance(each, Unfollow)], "the second report needs its output too"
    take(Reported(attempt, int(ReportLevel.DRAINED), True, stepped=True))
    assert [each for each in done if isinstance(each, Unfollow)] == [Unfollow(attempt)]
    assert state.attempts[attempt].settled
