"""An operator's command beside a task in a container: in it, as the task's user, and dead with its caller."""

from __future__ import annotations

import base64
import sys
from contextlib import aclosing

from agent.core.events import Observed
from agent.core.state import AgentState, Attempt
from agent.inside.processes import fence
from agent.logs.task_logs import AttemptFiles
from agent.operate import Operator
from agent.runtimes.docker_node import container_name
from agent.settings import AgentSettings
from supervisor.adapters.clock import BootClock
from supervisor.contract.observed import AttemptReport, NodeResources
from supervisor.contract.timing import FAST
from supervisor.contract.views.jobs import ExecChunk, ExecRequest
from tests.runtimes.docker_node import DockerNode
from tests.support.sinks import ListSink


def operator(node: DockerNode, report: AttemptReport) -> Operator:
    """One of the agent's, for its one attempt."""
    homes = node.root / node.name / "launchers"
    (home,) = (each for each in homes.iterdir() if (each / "environ.json").exists())
    settings = AgentSettings(node.name, "h", "h:1", 20000, 20100, "/locks", FAST, NodeResources(1.0, 1))
    state = AgentState(settings, "life", "boot", FAST.d_ms, view=Observed((), (), 1))
    state.attempts[report.attempt] = Attempt(
        report.attempt,
        "u",
        "p",
        home.name,
        1,
        "h:1",
        warm=True,
        pid=report.pid,
        start_ticks=report.start_ticks,
    )

    def inside(launcher_id: str) -> tuple[str, ...]:
        client = (sys.executable, "-m", "agent.runtimes.docker_exec", str(node.dockerd.socket))
        return (*client, container_name(node.name, launcher_id))

    return Operator(
        homes, AttemptFiles(node.root, ListSink()), lambda: state, BootClock(), ListSink(), inside
    )


async def run(operator: Operator, report: AttemptReport, *argv: str) -> tuple[int | None, str, str]:
    chunks: list[ExecChunk] = []
    async with aclosing(operator.run(ExecRequest(str(report.attempt.task), argv, 60_000))) as found:
        chunks = [chunk async for chunk in found]
    said = {
        stream: b"".join(base64.b64decode(each.data) for each in chunks if each.stream == stream).decode()
        for stream in ("out", "err")
    }
    return chunks[-1].code, said["out"], said["err"]


async def test_a_command_runs_in_the_container_with_the_tasks_environment(node: DockerNode) -> None:
    node.start()
    running = await node.job(await node.until_joined()).run()
    await node.until_printed("step")
    beside = operator(node, running)
    script = 'id -u; echo "$TFSUP_TASK"; pwd; cat /proc/1/comm; echo oops >&2; exit 7'
    code, out, err = await run(beside, running, "sh", "-c", script)
    assert (code, err) == (7, "oops\n")
    assert out.split() == ["1000", str(running.attempt.task), str(node.root / "work"), "python3"]
    assert (await run(beside, running, "no-such-program"))[0] == 127


async def test_a_command_dies_with_its_caller(node: DockerNode) -> None:
    node.start()
    running = await node.job(await node.until_joined()).run()
    await node.until_printed("step")
    request = ExecRequest(
        str(running.attempt.task), ("sh", "-c", "echo begun; sleep 600 & sleep 600"), 60_000
    )

    def sleepers() -> list[int]:
        return [pid for pid in fence.pids() if fence.shows(pid, "TFSUP_TASK", str(running.attempt.task))]

    before = sleepers()
    async with aclosing(operator(node, running).run(request)) as chunks:
        async for chunk in chunks:
            if chunk.data:
                break
        assert len(sleepers()) > len(before)

    async def gone() -> bool | None:
        return sleepers() == before or None

    await node.until(gone, 30)
