"""Commands and signals of operators beside an attempt, on the agent's side."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sys
import time
from contextlib import AsyncExitStack, aclosing
from itertools import pairwise
from pathlib import Path

import pytest

from agent import operate
from agent.core.events import Observed
from agent.core.state import AgentState, Attempt
from agent.inside.launcher import environ
from agent.inside.processes import fence
from agent.logs.task_logs import AttemptFiles
from agent.operate import MOST_COMMANDS, Operator
from agent.settings import AgentSettings
from supervisor.adapters.clock import BootClock
from supervisor.contract.errors import NotFound, Refused, UserError
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.observed import NodeResources
from supervisor.contract.timing import FAST
from supervisor.contract.views.jobs import ExecChunk, ExecRequest
from tests.support.sinks import ListSink

RUNS = AttemptId(TaskId("job", "worker", 0), 1, 1)


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    """Its one attempt is this process."""
    own = fence.read_process(os.getpid())
    assert own is not None
    settings = AgentSettings("n1", "h", "h:1", 20000, 20100, "/locks", FAST, NodeResources(1.0, 1))
    state = AgentState(settings, "life", "boot", FAST.d_ms, view=Observed((), (), 1))
    state.attempts[RUNS] = Attempt(
        RUNS, "u", "p", "l1", 1, "h:1", warm=True, pid=own.pid, start_ticks=own.start_ticks
    )
    (tmp_path / "l1").mkdir()
    environ.keep(
        str(tmp_path / "l1"),
        str(RUNS),
        str(tmp_path),
        {"PATH": os.defpath, "SECRET": "of-the-operators-test"},
    )
    return Operator(tmp_path, AttemptFiles(tmp_path, ListSink()), lambda: state, BootClock(), ListSink())


async def run(operator: Operator, *argv: str) -> list[ExecChunk]:
    request = ExecRequest(str(RUNS.task), argv, 20_000)
    async with aclosing(operator.run(request)) as chunks:
        return [chunk async for chunk in chunks]


async def test_a_command_tells_its_code(operator: Operator) -> None:
    assert (await run(operator, sys.executable, "-c", "raise SystemExit(7)"))[-1].code == 7


async def test_nothing_that_carries_a_command_shows_its_words(operator: Operator) -> None:
    script = 'cat /proc/$PPID/cmdline; echo; printf %s "$0"'
    chunks = await run(operator, "sh", "-c", script, "of the operator\nalone: \u00e9")
    printed = b"".join(base64.b64decode(each.data) for each in chunks if each.stream == "out").decode()
    carrier, _, word = printed.partition("\0\n")
    assert "--beside" in carrier
    assert "alone" not in carrier
    assert word == "of the operator\nalone: \u00e9"


@pytest.mark.parametrize("argument", ["x" * 200_000, "NUL: \0", "half a character: \ud800"])
async def test_words_that_the_kernel_does_not_take_are_the_callers_mistake(
    operator: Operator, argument: str
) -> None:
    with pytest.raises(UserError, match="cannot run the command"):
        await run(operator, "echo", argument)


@pytest.mark.parametrize("planted", ["a pipe", "a link", "nothing of ours"])
async def test_a_tasks_own_file_holds_no_operator_up(
    operator: Operator, tmp_path: Path, planted: str
) -> None:
    """In a container its surroundings are told by a file that the task itself can replace."""
    file, other = tmp_path / "l1" / environ.FILE, tmp_path / "other"
    file.rename(other)
    if planted == "a pipe":
        os.mkfifo(file)
    elif planted == "a link":
        file.symlink_to(other)
    else:
        file.write_text('["secret"]')
    with pytest.raises(NotFound, match="not known on this node"):
        await run(operator, "true")


async def test_only_so_many_commands_run_at_once(operator: Operator) -> None:
    request = ExecRequest(str(RUNS.task), ("sleep", "60"), 60_000)
    async with AsyncExitStack() as stack:
        for _ in range(MOST_COMMANDS):
            chunks = await stack.enter_async_context(aclosing(operator.run(request)))
            await anext(chunks)
        with pytest.raises(Refused, match="16 commands run on this node already"):
            await run(operator, "true")
    assert (await run(operator, "true"))[-1].code == 0


async def test_what_a_command_started_dies_though_its_guard_was_killed(operator: Operator) -> None:
    source = (
        "import os, time\nprint(os.getppid(), flush=True)\nif os.fork() == 0: os.setsid()\ntime.sleep(60)"
    )
    request = ExecRequest(str(RUNS.task), (sys.executable, "-c", source), 60_000)
    printed, chunk = b"", ExecChunk()
    async with aclosing(operator.run(request)) as chunks:
        async for chunk in chunks:
            printed += base64.b64decode(chunk.data)
            if printed.endswith(b"\n"):
                os.kill(int(printed), signal.SIGKILL)
                printed = b""
    assert chunk.code == 128 + signal.SIGKILL
    assert not [pid for pid in fence.pids() if fence.shows(pid, "SECRET", "of-the-operators-test")]


async def test_a_guard_that_stands_still_is_killed_when_the_time_is_over_and_nobody_hears_silence(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operate, "SIGN_OF_LIFE_S", 0.1)
    monkeypatch.setattr(operate, "KILL_S", 1.0)
    request = ExecRequest(str(RUNS.task), ("sh", "-c", "kill -STOP $PPID; sleep 600 & wait"), 200)
    async with asyncio.timeout(30), aclosing(operator.run(request)) as chunks:
        heard = [(time.monotonic(), chunk) async for chunk in chunks]
    assert (heard[-1][1].code, heard[-1][1].timed_out) == (128 + signal.SIGKILL, True)
    assert max(after - before for (before, _), (after, _) in pairwise(heard)) < operate.KILL_S
    assert not [pid for pid in fence.pids() if fence.shows(pid, "SECRET", "of-the-operators-test")]
