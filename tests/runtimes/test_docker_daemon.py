"""dockerd killed, frozen and restarted under a training task: unknown is not gone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agent.inside.processes import fence
from chaos.dockerd import Dockerd
from supervisor.contract.observed import AttemptReport, ExitReason
from tests.agent.cluster import is_alive
from tests.runtimes.docker_node import DockerNode


@pytest.fixture
async def node(endpoint: str, dockerd_of_my_own: Dockerd) -> AsyncIterator[DockerNode]:
    node = DockerNode(endpoint, dockerd_of_my_own)
    yield node
    await node.close()


async def test_a_task_lives_on_while_dockerd_is_killed_and_started_again(node: DockerNode) -> None:
    node.start()
    job = node.job(await node.until_joined())
    running = await job.run()
    container = await node.container()
    await asyncio.to_thread(node.dockerd.kill)
    assert is_alive(running)
    # Its end is told, and the next attempt starts warm, without dockerd.
    os.kill(running.pid, signal.SIGKILL)
    ended = await job.exited()
    assert ended.exit is not None
    assert (ended.exit.reason, ended.exit.signal) == (ExitReason.EXIT, signal.SIGKILL)
    job.assignment = replace(job.assignment, attempt=2)
    await job.write()
    second = await job.running()
    await asyncio.to_thread(node.dockerd.start)
    assert is_alive(second)
    assert await node.container() == container
    # A successor of the agent finds it too.
    first = await node.incarnation()
    assert first is not None
    node.kill()
    node.start()
    await node.until_joined(other_than=first.incarnation)
    assert is_alive(second)
    assert await node.container() == container


async def test_a_frozen_dockerd_holds_nothing_up_but_new_containers(node: DockerNode) -> None:
    node.start()
    me = await node.until_joined()
    job, other = node.job(me), node.job(me)
    running = await job.run()
    with node.dockerd.frozen():
        os.kill(running.pid, signal.SIGKILL)
        assert (await job.exited()).exit is not None
        job.assignment = replace(job.assignment, attempt=2)
        await job.write()
        second = await job.running()
        assert is_alive(second)
        await other.write()
        # The leader knows why.
        assert "does not answer" in await node.until(other.delay, 60)
    # What was asked for meanwhile comes when dockerd does.
    prepared = await node.until(other.prepared, 60)
    assert not prepared.failure
    assert is_alive(second)


async def test_a_launcher_that_is_lost_without_dockerd_is_waited_for_at_its_port(node: DockerNode) -> None:
    node.start()
    job = node.job(await node.until_joined())
    running = await job.run()
    (launcher,) = [each for each in pids_above(running.pid) if each != running.pid]
    await asyncio.to_thread(node.dockerd.kill)
    os.kill(launcher, signal.SIGKILL)
    ended = await job.exited()
    assert ended.exit is not None
    assert ended.exit.reason is ExitReason.LAUNCHER_LOST
    job.assignment = replace(job.assignment, attempt=2)
    await job.write()
    assert "docker.sock does not answer" in await node.until(job.delay, 60)
    assert await job.report("exited") is None, "no attempt is spent on it"
    await asyncio.to_thread(node.dockerd.start)
    second = await job.running()
    assert second.address == running.address

    async def over() -> bool | None:
        return True if await job.delay() is None else None

    await node.until(over)


def pids_above(pid: int) -> list[int]:
    """A process and its parent."""
    found = fence.read_process(pid)
    assert found is not None
    return [pid, found.parent]


async def test_without_live_restore_dockerd_takes_its_containers_along_and_that_is_the_cause(
    node: DockerNode,
) -> None:
    node.dockerd.live_restore = False
    await asyncio.to_thread(node.dockerd.restart)
    node.start()
    job = node.job(await node.until_joined())
    running = await job.run()
    await asyncio.to_thread(node.dockerd.restart)

    async def ended() -> AttemptReport | None:
        return await job.report("exited")

    found = await node.until(ended, 60)
    assert found.exit is not None
    assert found.exit.reason is ExitReason.LAUNCHER_LOST
    assert not is_alive(running)
    assert "docker" in found.exit.detail, found.exit
