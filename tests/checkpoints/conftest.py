from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from recovery.stores.local import LocalStore
from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.contract.boundaries import CheckpointStore, Coordination
from tests.checkpoints.world import InlineExecutor, World
from tests.support.etcd_server import EtcdServer


@pytest.fixture(params=["local", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    made: CheckpointStore = MemoryCheckpointStore()
    if request.param == "local":
        made = LocalStore(tmp_path / "store", InlineExecutor())
    await made.prepare()
    return made


@pytest.fixture
async def memory_coordination() -> AsyncIterator[Coordination]:
    client = MemoryCoordination(MemoryStore())
    yield client
    await client.close()


@pytest.fixture
def world(tmp_path: Path, store: CheckpointStore, memory_coordination: Coordination) -> World:
    return World(tmp_path / "parent", store, memory_coordination)


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@pytest.fixture(params=["memory", "etcd"])
async def coordination(
    request: pytest.FixtureRequest, memory_coordination: Coordination
) -> AsyncIterator[Coordination]:
    if request.param == "memory":
        yield memory_coordination
        return
    server: EtcdServer = request.getfixturevalue("etcd")
    client = EtcdCoordination(
        [server.endpoint], cluster=uuid.uuid4().hex, rpc_deadline_ms=20_000, silence_ms=20_000
    )
    yield client
    await client.close()
