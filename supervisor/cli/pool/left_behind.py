"""Agents of a pool that run although its engine has lost them: it does not reach their machines' daemons.

The cluster reaches them. It tells them to end, and their keepers end all that they have started.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from supervisor.cli.options import Globals
from supervisor.cli.target import find_target
from supervisor.contract.errors import Conflict, Refused, TfSupervisorError, Unreachable
from supervisor.contract.pool.record import pool_of

if TYPE_CHECKING:
    from supervisor.contract.views.nodes import NodeView
    from supervisor.engines.engine import Engine, PoolAgent

ENDING_S, LOOK_S = 60, 0.5
NOWHERE = "(nowhere)"
"""Where an engine has an agent that has ended: no machine has this name."""


def nodes_of(given: Globals, pool: str) -> list[NodeView]:
    """The nodes of a pool that the cluster knows. Raises Unreachable, Refused, NotFound."""

    async def ask() -> Sequence[NodeView]:
        async with find_target(given).client() as client:
            return (await client.nodes()).nodes

    return [each for each in asyncio.run(ask()) if pool == each.labels.get("pool") == pool_of(each.node)]


def among(
    nodes: Sequence[NodeView], agents: Sequence[PoolAgent], origin: str, ours: Collection[str] = ()
) -> list[NodeView]:
    """Those of a pool's nodes whose agents the engine has elsewhere by now, or has ended.

    An agent that it does not list is another user's or another engine's, for all that is known here: it is
    not among them.

    Args:
        nodes: read before `agents`, so that no agent is among them that has come since.
        agents: this caller's agents of the pool, as the engine lists them.
        origin: the engine's. Another queue may have given the same ids.
        ours: ids that it has listed before. Those that it lists no more have ended.
    """
    from supervisor.engines.engine import State

    places = dict.fromkeys(ours, NOWHERE)
    places |= {each.id: NOWHERE if each.state is State.ENDED else each.place for each in agents}
    # An agent without a place may be one whose engine has just begun anew.
    return [
        each
        for each in nodes
        if each.pid
        and is_from(each, origin)
        and places.get(each.labels.get("agent", ""), "") not in ("", each.labels.get("place"))
    ]


def is_from(node: NodeView, origin: str) -> bool:
    """Whether an agent may be of this queue. One of an earlier release does not tell."""
    return node.labels.get("origin", origin) == origin


def dismiss(given: Globals, nodes: Sequence[NodeView]) -> None:
    """Tell these lives of nodes to end.

    Raises Unreachable, Refused, and Conflict where one changes at that moment.
    """

    async def ask() -> None:
        async with find_target(given).client() as client:
            for each in nodes:
                await client.dismiss(each.node, each.incarnation)

    if nodes:
        asyncio.run(ask())


def end(
    given: Globals, pool: str, engine: Engine, ours: Collection[str], say: Callable[[str], None]
) -> tuple[int, list[str]]:
    """End all agents of a pool that its engine has lost.

    Returns how many there were, once they are gone, and the nodes whose agents run and that the engine does
    not list as this caller's.
    `ours` are the ids that the engine listed when the pool was to end: it may have forgotten some since.
    Raises Unreachable, Refused if that cannot be done, or cannot be known.
    """
    many, until = 0, time.monotonic() + ENDING_S
    try:
        origin = engine.origin()
        while True:
            nodes, agents = nodes_of(given, pool), engine.agents(pool)
            if not (left := among(nodes, agents, origin, ours)):
                known = {*ours, *(each.id for each in agents)}
                there = [each for each in nodes if each.pid and each.state not in ("lost", "gone")]
                others = [each for each in there if not is_from(each, origin)]
                others += [each for each in there if each.labels.get("agent") not in known]
                return many, sorted({each.node for each in others})
            many = max(many, len(left))
            say(f"{len(left)} agents run that the engine has lost; they are told to end")
            if time.monotonic() > until:
                raise Unreachable(
                    f"{', '.join(each.node for each in left)} have not ended within {ENDING_S} s"
                )
            with suppress(Conflict):  # the next look tells what came of it
                dismiss(given, left)
            time.sleep(LOOK_S)
    except TfSupervisorError as error:
        kind = Refused if isinstance(error, Refused) else Unreachable
        raise kind(
            f"the engine has everything of pool {pool} back; agents that it has lost may run: {error}; "
            f"`supervisorctl pool down {pool}` ends them"
        ) from error
