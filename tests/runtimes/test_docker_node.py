"""An agent whose launchers are containers of a real dockerd, driven through a real etcd."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from agent.host_pids import pids_of
from supervisor.contract.observed import ExitReason
from tests.agent.cluster import Job, Node, is_alive
from tests.support.container_image import IMAGE
from tests.support.dockerd import Dockerd
from tests.support.etcd_server import EtcdServer

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with EtcdServer() as server:
        yield server.endpoint


@pytest.fixture
async def node(endpoint: str, dockerd: Dockerd) -> AsyncIterator[Node]:
    node = docker_node(endpoint, dockerd)
    yield node
    await close(node, dockerd)


def docker_node(endpoint: str, dockerd: Dockerd) -> Node:
    node = Node(endpoint, f"n{os.urandom(3).hex()}")
    mounts = [{"source": str(node.root / "work")}]
    node.more = {
        "runtime": "docker",
        "docker": {"socket": str(dockerd.socket), "image": IMAGE, "mounts": mounts},
    }
    (node.root / "prog.py").rename(node.root / "work" / "prog.py")
    return node


async def close(node: Node, dockerd: Dockerd) -> None:
    node.kill()
    for container in await containers(node, dockerd):
        await asyncio.to_thread(dockerd.cli, "rm", "-f", "-v", container)
    await node.close()


async def containers(node: Node, dockerd: Dockerd) -> list[str]:
    wanted = f"label=tfsup.node={node.name}"
    return (await asyncio.to_thread(dockerd.cli, "ps", "-aq", "--no-trunc", "--filter", wanted)).split()


async def test_a_task_runs_in_a_container_and_its_end_is_told(node: Node, dockerd: Dockerd) -> None:
    node.start()
    me = await node.until_joined()
    assert me.resources.runtime == "docker"
    job = Job(node, me, f"job-{node.name}", ("python3", "prog.py"))
    running = await job.run()
    assert is_alive(running)
    levels = pids_of(running.pid)
    assert len(levels) == 2
    assert levels[0] == running.pid
    await node.until(lambda: stepping(node))
    os.kill(running.pid, signal.SIGKILL)
    ended = await job.exited()
    assert ended.exit is not None
    assert (ended.exit.reason, ended.exit.signal) == (ExitReason.EXIT, signal.SIGKILL)
    assert ended.last_step >= 0


async def stepping(node: Node) -> bool | None:
    logs = list(node.root.glob(f"{node.name}/attempts/*/*/output.log"))
    return any(b"step" in each.read_bytes() for each in logs) or None
