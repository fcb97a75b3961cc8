"""`supervisorctl pool`: agents on machines that belong to another resource manager (docs/engines.md)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli import render
from supervisor.cli.options import Globals, global_options
from supervisor.cli.pool import left_behind, tokens
from supervisor.cli.pool.order import LASTING, Wanted, pool_of, wanted_options
from supervisor.cli.pool.tokens import Token
from supervisor.cli.target import find_target
from supervisor.cli.terminal import neutralise
from supervisor.contract.errors import Conflict, NotFound, TfSupervisorError, UserError
from supervisor.contract.pool.record import check_pool

if TYPE_CHECKING:
    from supervisor.contract.pool.requests import PoolView
    from supervisor.contract.views.nodes import NodeView
    from supervisor.engines.engine import Engine, Pool, PoolAgent

SPARK = "spark"
ENGINES = ("slurm", "yarn", SPARK)
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
    origin = engine.origin()
    asked = pool_of(given, name, wanted, origin)
    if asked.token:
        found = _start(given, engine, asked, agents, Token(Path(asked.token), wanted.token_for, origin))
    else:
        found = pools.start(engine, asked, agents)
    if given.json:
        render.emit_json({"pool": name, "agents": found})
        return
    click.echo(f"pool {name}: {len(found)} agents are queued; see `supervisorctl pool status {name}`")


def _start(given: Globals, engine: Engine, asked: Pool, agents: int, token: Token) -> Sequence[PoolAgent]:
    """Start a pool whose agents the supervisors certify.

    The engine knows its agents before there is a token (decision 0099). An agent that begins waits for it.
    """
    from supervisor.engines import pools

    tokens.check(given, asked.name, token)
    found = pools.start(engine, asked, agents)
    try:
        tokens.obtain(given, asked.name, token)
    except BaseException:
        engine.cancel([each.id for each in found])
        raise
    return found


@pool.command()
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--token-for", default=LASTING, show_default=True, help="How long it is valid.")
@global_options
def token(given: Globals, name: str, file: Path, token_for: str) -> None:
    """Make another token for the pool NAME in FILE, in place of one that ends, or that was lost.

    FILE is the one that `pool up` has told: agents that begin later read it. Those that run need none.
    """
    made = tokens.obtain(given, check_pool(name), Token(file.expanduser().absolute(), token_for))
    _print(
        given, name, f"{file} is its token until {tokens.shown(made.ends_wall_ms)}; former ones are refused"
    )


@pool.command()
@click.argument("name")
@click.argument("node", default="")
@global_options
def revoke(given: Globals, name: str, node: str) -> None:
    """Refuse the agents and the token of the pool NAME from now on, or the agent of one NODE of it."""

    async def ask() -> str:
        async with find_target(given).client() as client:
            return (await client.revoke_pool(check_pool(name), node)).detail

    _print(given, name, asyncio.run(ask()))


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
    check_pool(name)
    known, problem = _nodes_of(given, name)
    engine = _engine(on)
    found = engine.agents(name)
    if not found:
        raise NotFound(f"there is no pool {name}; see `supervisorctl pool list`")
    lost = left_behind.among(known, found, origin := engine.origin())
    # An agent that was queued again has a node at each of its places.
    nodes = {
        (each.labels.get("agent", ""), each.labels.get("place", "")): each
        for each in known
        if left_behind.is_from(each, origin)
    }
    rows = [(each, nodes.get((each.id, each.place))) for each in found]
    certified = next(iter(_certified(given, name)), None) if not problem else None
    if given.json:
        shown = [{"agent": each, "node": node} for each, node in rows]
        render.emit_json({"pool": name, "agents": shown, "lost": lost, "certificates": certified})
        return
    cells = [
        (
            each.id,
            each.word.lower(),
            each.place or "-",
            node.node if node else "-",
            node.state if node else "-",
            each.ends or "-",
            _reason(each, node, problem, certified),
        )
        for each, node in rows
    ]
    still = "the engine has lost it, and it runs: `pool down` and `pool scale` end it"
    for each in lost:
        ident, place = (each.labels.get(name, "-") for name in ("agent", "place"))
        cells.append((ident, "lost", place, each.node, each.state, "-", still))
    render.table(("agent", "state", "place", "node", "node is", "ends", "reason"), cells)
    if certified is not None:
        click.echo(neutralise(tokens.told(certified)))


@pool.command()
@click.argument("name")
@click.argument("agents", type=int)
@on_option
@global_options
def scale(given: Globals, name: str, agents: int, on: str) -> None:
    """Give the pool NAME so many AGENTS. Those that go move their tasks away first."""
    from supervisor.engines import pools

    engine, (nodes, _) = _engine(on), _nodes_of(given, name)
    done = pools.scale(engine, name, agents)
    left_behind.dismiss(given, lost := left_behind.among(nodes, engine.agents(name), engine.origin()))
    gone = [f"{len(lost)} more are ended, which the engine has lost"] if lost else []
    expired = [tokens.told(each) for each in _certified(given, name) if tokens.is_over(each)]
    _print(given, name, "; ".join((done, *gone, *expired)))


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
    """End the pool NAME; returns when the engine has everything back, and no agent runs that it has lost.

    Agents move their tasks away first, where other nodes have room.
    """
    from supervisor.engines import pools

    say = (lambda _: None) if given.json else _sayer()
    engine = _engine(on)
    ours = {each.id for each in engine.agents(check_pool(name))}
    ended = pools.end(engine, name, 0 if now else within, say)
    lost, others = left_behind.end(given, name, engine, ours, say)
    if others:
        certificates = _not_ours(given, name, on, others)
    else:
        certificates = tokens.revoke(given, name, partial(_kept, engine, name))
    if not ended and not lost and certificates not in ("", tokens.REVOKED):
        raise Conflict(f"nothing of pool {name} has ended on {on}: {certificates}")
    _forget(engine, name)
    if not ended and not lost and not certificates:
        raise pools.unknown(name)
    told = (
        f"{ended} agents have ended; the engine has everything back" if ended else "",
        f"{lost} agents have ended that the engine had lost" if lost else "",
        "" if ended or lost else f"it had no agents on {on} any more",
        certificates,
    )
    _print(given, name, "; ".join(filter(None, told)))


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
    certified = _certified(given)
    if given.json:
        plain = {name: {state.value: number for state, number in of.items()} for name, of in counts.items()}
        render.emit_json({"pools": plain, "certificates": certified})
        return
    states = (State.RUNNING, State.WAITING, State.LEAVING)
    rows = [(name, on, *(of[state] for state in states)) for name, of in sorted(counts.items())]
    render.table(("pool", "engine", *(state.value for state in states)), rows, "there is no pool")
    for view in certified:
        click.echo(neutralise(f"pool {view.pool} of {view.owner} has certificates: {tokens.told(view)}"))


def _engine(on: str) -> Engine:
    assert on in ENGINES
    if on == SPARK:
        raise UserError(
            "a pool on Spark lives as long as the application that runs its agents, so the driver starts and "
            "ends it: `with TrainingPool(spark, agents=3)` of the module tfsup_spark (docs/spark.md)"
        )
    if on == "yarn":
        from supervisor.engines.yarn.yarn import Yarn

        return Yarn()
    from supervisor.engines.slurm import Slurm

    return Slurm()


def _not_ours(given: Globals, name: str, on: str, others: Sequence[str]) -> str:
    """The remedies for agents of a pool that an engine does not list as this caller's."""
    owner = "".join(f" {each.owner} made its certificates." for each in _certified(given, name))
    return (
        f"{', '.join(others[:5])} are there, and {on} does not list their agents as yours, so certificates "
        f"of this name stay.{owner} Those of another engine: "
        "name it by --on. Another user's: that user ends them. Those that the engine has forgotten: end "
        f"their keepers on their machines, by SIGTERM. `supervisorctl pool revoke {name}` shuts out all "
        "that have certificates"
    )


def _kept(engine: Engine, name: str, view: PoolView) -> str:
    """Why the certificates of a token stay; empty once its pool has ended.

    Those of another queue may be for agents that wait there, and so have no node that tells of them.
    """
    from supervisor.engines import pools

    if pools.live(engine, name):
        return tokens.ANOTHER
    if view.origin == engine.origin() or tokens.is_over(view):
        return ""
    where = view.origin or "a queue that is not known"
    return (
        f"its certificates stay, as they are for agents of {where}, which may wait for their turn: end them "
        f"there. If there are none, `supervisorctl pool revoke {name}` revokes the certificates"
    )


def _forget(engine: Engine, name: str) -> None:
    """Have an engine remove what it keeps of a pool that has ended; nothing else waits for that."""
    try:
        engine.forget(name)
    except TfSupervisorError as error:
        told = f"pool {name}: its files are not removed, which another `pool down` does: {error}"
        click.echo(neutralise(told), err=True)


def _nodes_of(given: Globals, name: str) -> tuple[list[NodeView], str]:
    """The nodes of a pool in the cluster, and why they are not known, else empty."""
    try:
        return left_behind.nodes_of(given, name), ""
    except TfSupervisorError as error:
        return [], f"the cluster does not say: {error}"


def _certified(given: Globals, name: str = "") -> Sequence[PoolView]:
    """The pools that supervisors certify, or one of them, as far as the cluster says that."""
    try:
        return tokens.known(given, name)
    except TfSupervisorError as error:
        click.echo(f"the cluster does not say which pools have certificates: {error}", err=True)
        return ()


def _reason(agent: PoolAgent, node: NodeView | None, problem: str, certified: PoolView | None = None) -> str:
    from supervisor.engines import pools
    from supervisor.engines.engine import State

    if agent.state in (State.WAITING, State.LEAVING) or (node is not None and node.state == "ready"):
        return agent.reason
    if agent.state is State.ENDED:
        why = "; ".join(filter(None, (agent.reason, pools.last_words(agent)))) if agent.reason else ""
    elif node is None:
        why = problem or _unknown(agent, certified)
    else:
        why = node.reason or f"its node is {node.state}"
    return "; ".join(filter(None, (why, f"see {agent.log}" if agent.log else "")))


def _unknown(agent: PoolAgent, certified: PoolView | None) -> str:
    """Why no supervisor knows the node of an agent that runs."""
    if certified is None:
        return "no supervisor knows its node"
    first = f"{certified.pool}.{agent.place}"
    if any(each == first or each.startswith(f"{first}.") for each in certified.certified):
        return "it has a certificate, and no supervisor knows its node: it may not reach etcd"
    if tokens.is_over(certified):
        return "it gets no certificate, as the pool's token has expired"
    return "the supervisor that leads has given it no certificate: its machine may reach none"


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
