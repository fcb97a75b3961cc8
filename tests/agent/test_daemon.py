"""The agent on real parts: etcd, launchers, and a program that prints steps."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from supervisor.contract.observed import ExitReason
from tests.agent.cluster import Job, Node, is_alive
from tests.support.etcd_server import EtcdServer


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@pytest.fixture
async def node(etcd: EtcdServer, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    node = Node(etcd.endpoint, name=f"n{abs(hash(request.node.name)) % 10**6}")
    yield node
    await node.close()


async def test_prepare_flip_run_kill_report(node: Node) -> None:
    node.start()
    me = await node.until_joined()
    job = Job(node, me, name=f"job-{node.name}")
    running = await job.run()
    assert is_alive(running)
    os.kill(running.pid, signal.SIGKILL)
    ended = await job.exited()
    assert ended.exit is not None
    assert (ended.exit.reason, ended.exit.signal, ended.exit.code) == (ExitReason.EXIT, signal.SIGKILL, None)
    assert ended.last_step >= 0
    assert "step" in ended.exit.tail
