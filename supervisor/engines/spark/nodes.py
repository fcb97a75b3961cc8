"""The nodes of a pool in the cluster, as the driver that runs its agents looks after them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

from supervisor.api.client import ControlClient
from supervisor.contract.errors import NotFound, TfSupervisorError, Unreachable
from supervisor.contract.pool.record import pool_of
from supervisor.contract.views.jobs import SAVE_S
from supervisor.contract.views.nodes import NodeView

LOOK_S = 0.5
LEAST_S = SAVE_S + 15.0
"""How long a drain may take at least: the leader waits for a save, and 5 s more for a silent agent."""
_AWAY = ("gone", "lost")


class PoolNodes:
    """Calls are for one event loop. Each raises what the cluster's client raises.

    `ids`: the beginnings of the labels `agent`, one for each agent.
    """

    def __init__(self, client: Callable[[], ControlClient], pool: str, ids: Sequence[str]) -> None:
        self._client = client
        self._pool = pool
        self._ids = ids
        self._drains = f"pool {pool}: "
        self._drained: set[str] = set()
        self._seen = 0
        """The revision of etcd at the last look at the nodes."""

    async def by_agent(self) -> dict[str, NodeView]:
        """The live nodes, by the agents' ids."""
        nodes = [node for node in await self._all() if node.state not in _AWAY]
        return {ident: node for node in nodes for ident in self._ids if _is_of(node, ident)}

    async def others(self) -> list[str]:
        """The names of live nodes of this pool with agents of other drivers."""
        nodes = [node for node in await self._all() if node.state not in _AWAY]
        ours = [node for node in nodes if any(_is_of(node, ident) for ident in self._ids)]
        return [node.node for node in nodes if pool_of(node.node) == self._pool and node not in ours]

    async def drain(self, nodes: Collection[NodeView], why: str, within_s: float) -> None:
        """Move the tasks of nodes away, after a save; returns when that is done, or the time is over.

        Those that found no room near its end save again: they have trained on. A leader that does not answer
        is not waited for longer, but each save may take its time. A node whose drain somebody else lifts
        meanwhile is not drained again. Raises an error if no node is drained.
        """
        since = self._seen
        names = {node.node for node in nodes}
        began = time.monotonic()
        end = began + within_s
        until = end - min(SAVE_S, within_s / 3)
        self._drained |= names
        errors = await self._cordon(names, why, since, max(until - began, LEAST_S))
        if errors and len(errors) == len(names):
            raise errors[0]
        while names and time.monotonic() < until:
            await asyncio.sleep(LOOK_S)
            names = {node.node for node in await self._all() if node.node in names and node.tasks}
        await self._cordon(names, why, since, max(end - time.monotonic(), SAVE_S))

    async def _cordon(
        self, names: Collection[str], why: str, since: int, within_s: float
    ) -> list[TfSupervisorError]:
        """Have jobs with tasks on these nodes save, and drain the nodes; returns why some are not drained."""
        reason = f"{self._drains}{why}"
        # At once: a save serves all nodes of a job.
        told = await asyncio.gather(*(self._cordon_one(name, reason, since, within_s) for name in names))
        return [error for error in told if error is not None]

    async def _cordon_one(
        self, name: str, reason: str, since: int, within_s: float
    ) -> TfSupervisorError | None:
        """Drain a node by a connection of its own, which no other call closes; a node that is gone is."""
        try:
            async with asyncio.timeout(within_s), self._client() as client:
                await client.cordon(name, reason, drain=True, since=since)
        except TimeoutError:
            return Unreachable(
                f"node {name} is not drained, as the leader has not answered in {within_s:.1f} s"
            )
        except NotFound:
            return None
        except TfSupervisorError as error:
            return error
        return None

    async def lift(self, nodes: Collection[NodeView]) -> None:
        """Lift those drains of nodes that this driver has asked for, or a former one of this pool.

        The next agent there takes tasks again.
        """
        async with self._client() as client:
            for node in nodes:
                if node.node in self._drained or node.reason.startswith(self._drains):
                    await client.uncordon(node.node)
                    self._drained.discard(node.node)

    async def left(self, nodes: Collection[NodeView], within_s: float) -> list[str]:
        """Wait until the agents of nodes are gone; returns the names of those that are not."""
        lives = {node.incarnation for node in nodes}
        until = time.monotonic() + within_s
        while True:
            there = [node for node in await self._all() if node.incarnation in lives]
            left = [node.node for node in there if node.state not in _AWAY]
            if not left or time.monotonic() > until:
                return left
            await asyncio.sleep(LOOK_S)

    async def _all(self) -> tuple[NodeView, ...]:
        async with self._client() as client:
            found = await client.nodes()
        self._seen = found.revision
        return found.nodes


def _is_of(node: NodeView, ident: str) -> bool:
    return node.labels.get("agent", "").startswith(ident)
