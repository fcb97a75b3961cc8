"""A store for each implementation of `Coordination`: in memory, and every etcd release on this machine."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

import pytest

from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.adapters.etcd.memory_store import Backup
from supervisor.contract.boundaries import Coordination
from tests.support.etcd_server import EtcdServer, etcd_binaries

PATIENCE_MS = 10_000
"""For each call, and for a watch that hears nothing: machines stand still at times."""
RPC_DEADLINE_MS = 1000
SILENCE_MS = 1500
"""The same of hasty clients. Both are waited for in full where etcd is frozen."""

_cluster_numbers = itertools.count()

Servers = Callable[[str], EtcdServer]


@dataclass
class Backend:
    """A store for the contract tests: clients of it, and the faults that every kind can have."""

    connect: Callable[[bool], Coordination]
    compact: Callable[[int], None]
    freeze: Callable[[], None]
    thaw: Callable[[], None]
    lose: Callable[[], None]
    back_up: Callable[[], None]
    restore: Callable[[], None]
    clients: list[Coordination] = field(default_factory=list)

    def client(self, *, hasty: bool = False) -> Coordination:
        """A new client, closed at the end of the test."""
        client = self.connect(hasty)
        self.clients.append(client)
        return client

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """The store answers nothing within the block."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()


@pytest.fixture(scope="session")
def etcd_servers() -> Iterator[Servers]:
    """Starts one server per release, when it is first asked for."""
    running: dict[str, EtcdServer] = {}
    with contextlib.ExitStack() as stack:

        def get(release: str) -> EtcdServer:
            if release not in running:
                running[release] = stack.enter_context(EtcdServer(binary=etcd_binaries()[release]))
            return running[release]

        yield get


@pytest.fixture(params=sorted(etcd_binaries()))
def etcd_server(request: pytest.FixtureRequest, etcd_servers: Servers) -> EtcdServer:
    """A running server of each release, shared by the tests that leave it running."""
    return etcd_servers(request.param)


@pytest.fixture(params=["memory", *sorted(etcd_binaries())])
async def backend(request: pytest.FixtureRequest, etcd_servers: Servers) -> AsyncIterator[Backend]:
    """Each implementation in turn, empty."""
    made = _memory() if request.param == "memory" else _etcd(etcd_servers(request.param))
    yield made
    for client in made.clients:
        await client.close()


def etcd_client(*endpoints: str, cluster: str | None = None, hasty: bool = False) -> EtcdCoordination:
    """A client in a namespace of its own unless `cluster` names one."""
    return EtcdCoordination(
        endpoints,
        cluster or f"test-{next(_cluster_numbers)}",
        rpc_deadline_ms=RPC_DEADLINE_MS if hasty else PATIENCE_MS,
        silence_ms=SILENCE_MS if hasty else PATIENCE_MS,
    )


def _memory() -> Backend:
    store = MemoryStore()
    kept: list[Backup] = []
    return Backend(
        connect=lambda hasty: MemoryCoordination(
            store,
            rpc_deadline_ms=RPC_DEADLINE_MS if hasty else PATIENCE_MS,
            silence_ms=SILENCE_MS if hasty else PATIENCE_MS,
        ),
        compact=store.compact,
        freeze=store.freeze,
        thaw=store.thaw,
        lose=store.lose,
        back_up=lambda: kept.append(store.backup()),
        restore=lambda: store.restore(kept.pop()),
    )


def _etcd(server: EtcdServer) -> Backend:
    cluster = f"test-{next(_cluster_numbers)}"
    return Backend(
        connect=lambda hasty: etcd_client(server.endpoint, cluster=cluster, hasty=hasty),
        compact=server.compact,
        freeze=server.freeze,
        thaw=server.thaw,
        lose=server.lose,
        back_up=server.back_up,
        restore=server.restore,
    )
