"""Launchers that never get ready are given up, and the leader is told what to try (Hold.tries)."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agent.core.events import BeatSeen, Fenced, Joined, LauncherGone, Observed, Spawned, Tick
from agent.core.instructions import Fence, Instruction, Spawn, Write
from agent.core.pool import HELLO_MS
from agent.core.state import AgentState
from agent.core.step import step
from agent.core.tasks import MOST_TRIES
from agent.inside.processes import fence
from supervisor.contract.desired import Assignment, JobPhase, JobSwitch
from supervisor.contract.observed import Prepared
from supervisor.contract.timing import FAST
from tests.agent.cluster import PATIENT, Job, Node
from tests.agent.core import ME, SETTINGS, WAITING, Core, only
from tests.support.etcd_server import EtcdServer

NUMBERS = itertools.count(1)
ORDER = Assignment(
    "job", "u", "worker", 0, 1, "p1", "n1", "life1", 1, ("python", "x.py"), "/", preload=("tensorflow",)
)


@pytest.fixture
async def node(etcd: EtcdServer) -> AsyncIterator[Node]:
    """Its tasks live until a successor is there, however busy the machine is."""
    started = Node(etcd.endpoint, f"g{next(NUMBERS)}", None, PATIENT, "default")
    started.start()
    yield started
    await started.close()


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
    assert f"no launcher became ready in {MOST_TRIES} more tries" in answer.failure
    assert "`python -c 'import tensorflow'`" in answer.failure


def test_of_launchers_that_the_agent_itself_kills_no_signal_is_told() -> None:
    core = Core()
    core.see(WAITING, replace(ORDER, argv=("python", "x.py"), preload=("tensorflow",)))
    for _ in range(MOST_TRIES + 1):
        (launcher,) = core.state.launchers.values()
        while not launcher.doomed and core.now_ms < launcher.heard_ms + 2 * HELLO_MS:
            core.later(100, BeatSeen(core.now_ms), Tick())
            launcher = core.state.launchers[launcher.launcher_id]
        assert launcher.doomed, "it does not come"
        core.feed(LauncherGone(launcher.launcher_id, code=-signal.SIGKILL), Fenced(launcher.launcher_id, 0))
    (answer,) = [each.record for each in only(Write, core.said) if isinstance(each.record, Prepared)]
    assert answer.failure == (
        f"no launcher became ready in {MOST_TRIES} more tries; "
        "try `python -c 'import tensorflow'` on this node"
    )


@pytest.mark.parametrize(
    ("source", "how"),
    [
        ("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV (signal 11); it wrote nothing"),
        ("import os; os.write(2, b'no licence\\n'); os._exit(3)", "exit code 3; it wrote: no licence"),
    ],
)
async def test_how_launchers_ended_is_in_the_agents_log_and_in_its_answer(
    node: Node, source: str, how: str
) -> None:
    """A launcher that died by SIGSEGV 10 ms after each start was looked for without one word."""
    (node.root / "ends.py").write_text(source)
    job = Job(node, await node.until_joined(), f"job-{node.name}")
    path = {"PYTHONPATH": str(node.root)}
    job.assignment = replace(job.assignment, preload=("ends",), env=path)
    failure = (await job.prepare()).failure
    advice = f"try `{sys.executable} -c 'import ends'` on this node"
    assert failure == (
        f"no launcher became ready in {MOST_TRIES} more tries; the last one ended so: {how}; {advice}"
    )
    assert node.log.count(f"it ended: {how}") == MOST_TRIES + 1


async def test_a_launcher_that_outlived_an_agent_is_told_of_as_far_as_it_is_known(node: Node) -> None:
    me = await node.until_joined()
    job = Job(node, me, f"job-{node.name}")
    report = await job.run()
    found = fence.read_process(report.pid)
    assert found is not None
    node.kill()
    node.start()
    await node.until_joined(other_than=me.incarnation)
    os.kill(found.parent, signal.SIGSEGV)
    end = (await job.exited()).exit
    assert end is not None
    assert end.detail == (
        "its launcher died: how it ended is not known, as an earlier process of this agent had started it; "
        "it wrote nothing"
    )
