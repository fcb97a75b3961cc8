"""Agents of a pool that run although its engine has lost them: it does not reach their machines' daemons.

The cluster reaches them. It tells them to end, and their keepers end all that they have started.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from supervisor.cli.options import Globals
from supervisor.cli.target import find_target
from supervisor.contract.errors import Refused, TfSupervisorError, Unreachable
from supervisor.contract.pool.record import pool_of

if TYPE_CHECKING:
    from supervisor.contract.views.nodes import NodeView
    from supervisor.engines.engine import Engine

ENDING_S, LOOK_S = 60, 0.5


def nodes_of(given: Globals, pool: str) -> list[NodeView]:
    """The nodes of a pool that the cluster knows. Raises Unreachable, Refused, NotFound."""

    async def ask() -> Sequence[NodeView]:
        async with find_target(given).client() as client:
            return (await client.nodes()).nodes

    return [each for each in asyncio.run(ask()) if pool == each.labels.get("pool") == pool_of(each.node)]


def among(nodes: Sequence[NodeView], engine: Engine, pool: str) -> list[NodeView]:
    """Those of a pool's nodes whose agents this engine does not have any more, or has elsewhere.

    The nodes were read first: an agent that has come since is in the engine's list alone.
    """
    from supervisor.engines import pools

    there = {each.id: each.place for each in pools.live(engine, pool)} if nodes else {}
    # An agent without a place may be one whose engine has just begun anew.
    return [
        each
        for each in nodes
        if each.pid
        and engine.names(ident := each.labels.get("agent", ""))
        and there.get(ident, "elsewhere") not in ("", each.labels.get("place"))
    ]


def dismiss(given: Globals, nodes: Sequence[NodeView]) -> None:
    """Tell the agents of these nodes to end. Raises Unreachable, Refused."""

    async def ask() -> None:
        async with find_target(given).client() as client:
            for each in nodes:
                await client.dismiss(each.node)

    if nodes:
        asyncio.run(ask())


def end(given: Globals, pool: str, engine: Engine, say: Callable[[str], None]) -> int:
    """End all agents of a pool that its engine has lost, and return how many there were once they are gone.

    Raises Unreachable, Refused if that cannot be done, or cannot be known.
    """
    many, until = 0, time.monotonic() + ENDING_S
    try:
        while left := among(nodes_of(given, pool), engine, pool):
            many = max(many, len(left))
            say(f"{len(left)} agents run that the engine does not know any more; they are told to end")
            if time.monotonic() > until:
                raise Unreachable(
                    f"{', '.join(each.node for each in left)} have not ended within {ENDING_S} s"
                )
            dismiss(given, left)
            time.sleep(LOOK_S)
    except TfSupervisorError as error:
        kind = Refused if isinstance(error, Refused) else Unreachable
        raise kind(
            f"the engine has everything of pool {pool} back; agents that it has lost may run: {error}; "
            f"`supervisorctl pool down {pool}` ends them"
        ) from error
    return many
