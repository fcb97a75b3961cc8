"""`supervisorctl pool`: agents on machines that belong to another resource manager (docs/engines.md)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli import render
from supervisor.cli.options import Globals, global_options
from supervisor.cli.pool.order import Wanted, pool_of, wanted_options
from supervisor.cli.target import find_target
from supervisor.cli.terminal import neutralise
from supervisor.contract.errors import NotFound, TfSupervisorError

if TYPE_CHECKING:
    from supervisor.contract.views.nodes import NodeView
    from supervisor.engines.engine import Engine, PoolAgent

ENGINES = ("slurm",)
on_option = click.option(
    "--on", type=click.Choice(ENGINES), default=ENGINES[0], show_default=True, help="The engine."
)


@click.group()
def pool() -> None:
    """Run agents on machines of another resource manager, in pools."""


@pool.command()
@click.argument("name")
@on_option
@click.option("--agents", type=int, default=1, show_default=True, help="How many.")
@wanted_options
@global_options
def up(given: Globals, wanted: Wanted, name: str, on: str, agents: int) -> None:
    """Start the pool NAME: agents that join this cluster as soon as the engine has room for each."""
    from supervisor.engines import pools

    engine = _engine(on)
    found = pools.start(engine, pool_of(given, name, wanted), agents)
    if given.json:
        render.emit_json({"pool": name, "agents": found})
        return
    click.echo(f"pool {name}: {len(found)} agents are queued; see `supervisorctl pool status {name}`")


@pool.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True), default=".")
@click.option(
    "--with", "more", multiple=True, metavar="PACKAGE", help="A package of this Python that jobs need, too."
)
@global_options
def pack(given: Globals, directory: Path, more: tuple[str, ...]) -> None:
    """Write this installation into DIRECTORY as an archive that `pool up` brings to machines."""
    from supervisor.engines.installation import archive

    path = archive.pack(directory, more)
    found = archive.read(path)
    if given.json:
        render.emit_json({"path": str(path), "size": path.stat().st_size, "archive": found})
        return
    click.echo(f"{path}: {path.stat().st_size / (1 << 20):.1f} MiB, for Python {found.python} ({found.abi})")


@pool.command()
@click.argument("name")
@on_option
@global_options
def status(given: Globals, name: str, on: str) -> None:
    """Show the agents of the pool NAME: in the engine, and in the cluster."""
    from supervisor.engines.engine import check_pool

    found = _engine(on).agents(check_pool(name))
    if not found:
        raise NotFound(f"there is no pool {name}; see `supervisorctl pool list`")
    nodes, problem = _nodes_of(given, name)
    rows = [(each, nodes.get((each.id, each.place))) for each in found]
    if given.json:
        render.emit_json({"pool": name, "agents": [{"agent": each, "node": node} for each, node in rows]})
        return
    cells = [
        (
            each.id,
            each.word.lower(),
            each.place or "-",
            node.node if node else "-",
            node.state if node else "-",
            each.ends or "-",
            _reason(each, node, problem),
        )
        for each, node in rows
    ]
    render.table(("agent", "state", "place", "node", "node is", "ends", "reason"), cells)


@pool.command()
@click.argument("name")
@click.argument("agents", type=int)
@on_option
@global_options
def scale(given: Globals, name: str, agents: int, on: str) -> None:
    """Give the pool NAME so many AGENTS. Those that go move their tasks away first."""
    from supervisor.engines import pools

    done = pools.scale(_engine(on), name, agents)
    _print(given, name, done)


@pool.command()
@click.argument("name")
@on_option
@click.option("--now", is_flag=True, help="End all agents and their tasks at once.")
@click.option(
    "--within",
    type=click.IntRange(1, 86_400),
    default=60,
    show_default=True,
    help="Seconds after which agents that are left are ended.",
)
@global_options
def down(given: Globals, name: str, on: str, now: bool, within: int) -> None:
    """End the pool NAME; returns when the engine has everything back.

    Agents move their tasks away first, where other nodes have room.
    """
    from supervisor.engines import pools

    say = (lambda _: None) if given.json else _sayer()
    many = pools.end(_engine(on), name, 0 if now else within, say)
    _print(given, name, f"{many} agents have ended; the engine has everything back")


@pool.command("list")
@on_option
@global_options
def list_pools(given: Globals, on: str) -> None:
    """Show all pools."""
    from supervisor.engines import pools
    from supervisor.engines.engine import State

    counts: dict[str, Counter[State]] = {}
    for each in pools.live(_engine(on)):
        counts.setdefault(each.pool, Counter())[each.state] += 1
    if given.json:
        plain = {name: {state.value: number for state, number in of.items()} for name, of in counts.items()}
        render.emit_json({"pools": plain})
        return
    states = (State.RUNNING, State.WAITING, State.LEAVING)
    rows = [(name, on, *(of[state] for state in states)) for name, of in sorted(counts.items())]
    render.table(("pool", "engine", *(state.value for state in states)), rows, "there is no pool")


def _engine(on: str) -> Engine:
    assert on in ENGINES
    from supervisor.engines.slurm import Slurm

    return Slurm()


def _nodes_of(given: Globals, name: str) -> tuple[dict[tuple[str, str], NodeView], str]:
    """The nodes of a pool in the cluster by agent and place, and why they are not known, else empty.

    An agent that was queued again has a node at each of its places.
    """

    async def ask() -> Sequence[NodeView]:
        async with find_target(given).client() as client:
            return (await client.nodes()).nodes

    try:
        nodes = asyncio.run(ask())
    except TfSupervisorError as error:
        return {}, f"the cluster does not say: {error}"
    ours = [each for each in nodes if each.labels.get("pool") == name]
    return {(each.labels.get("agent", ""), each.labels.get("place", "")): each for each in ours}, ""


def _reason(agent: PoolAgent, node: NodeView | None, problem: str) -> str:
    from supervisor.engines import pools
    from supervisor.engines.engine import State

    if agent.state in (State.WAITING, State.LEAVING) or (node is not None and node.state == "ready"):
        return agent.reason
    if agent.state is State.ENDED:
        why = "; ".join(filter(None, (agent.reason, pools.last_words(agent))))
    elif node is None:
        why = problem or "no supervisor knows its node"
    else:
        why = node.reason or f"its node is {node.state}"
    return "; ".join(filter(None, (why, f"see {agent.log}" if agent.log else "")))


def _print(given: Globals, name: str, text: str) -> None:
    if given.json:
        render.emit_json({"pool": name, "detail": text})
    else:
        click.echo(neutralise(f"pool {name}: {text}"))


def _sayer() -> Callable[[str], None]:
    """Prints a line that differs from the one before."""
    last = ""

    def say(text: str) -> None:
        nonlocal last
        if text != last:
            click.echo(text, err=True)
        last = text

    return say
