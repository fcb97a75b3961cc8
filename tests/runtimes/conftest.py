"""An agent whose tasks run in containers of the tests' dockerd, with an etcd of its own module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from chaos.dockerd import Dockerd
from tests.runtimes.docker_node import DockerNode
from tests.support.etcd_server import EtcdServer


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with EtcdServer() as server:
        yield server.endpoint


@pytest.fixture
async def node(endpoint: str, dockerd: Dockerd) -> AsyncIterator[DockerNode]:
    node = DockerNode(endpoint, dockerd)
    yield node
    await node.close()
