"""Verbs about nodes: nodes, cordon, uncordon, drain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import click

from supervisor.cli import names, render
from supervisor.cli.jobs.follow import TIMED_OUT
from supervisor.cli.options import Globals, global_options
from supervisor.cli.outage import FOLLOW_DEADLINE_S, until_nothing_is_left
from supervisor.cli.target import find_target
from supervisor.cli.terminal import neutralise
from supervisor.contract.errors import Conflict
from supervisor.contract.ids import check_name
from supervisor.contract.observed import GpuBeat
from supervisor.contract.views.nodes import NodeAnswer

if TYPE_CHECKING:
    from supervisor.api.client import ControlClient

R = TypeVar("R")


@click.command()
@global_options
def nodes(given: Globals) -> None:
    """Show the nodes and what runs on them."""
    document = _ask(given, lambda client: client.nodes())
    if given.json:
        render.emit_json(document)
        return
    rows = [
        (
            node.node,
            node.state,
            node.host,
            node.runtime,
            f"{node.cpus:g}",
            render.size(node.memory_bytes),
            f"{node.gpus_used}/{node.gpus}" if node.gpus else "0",
            " ".join(node.tasks),
            "; ".join(filter(None, (node.reason, *(f"quarantined: {each}" for each in node.quarantined)))),
        )
        for node in document.nodes
    ]
    heads = ("node", "state", "host", "runtime", "cpus", "memory", "gpus", "tasks", "reason")
    render.table(heads, rows, "no agent has registered")


@click.command()
@click.argument("node", shell_complete=names.nodes, required=False, default="")
@global_options
def gpus(given: Globals, node: str) -> None:
    """Show all GPUs, or those of NODE: their health, and the tasks that have them."""
    document = _ask(given, lambda client: client.gpus(check_name("node", node) if node else ""))
    if given.json:
        render.emit_json(document)
        return
    rows = [
        (
            gpu.node,
            gpu.index,
            gpu.uuid,
            f"{gpu.name}, MIG" if gpu.mig else gpu.name,
            render.size(gpu.memory_bytes),
            *_load(gpu.load),
            gpu.state,
            " ".join(gpu.tasks) or "-",
            gpu.reason,
        )
        for gpu in document.gpus
    ]
    heads = ("node", "index", "uuid", "name", "memory", "used", "busy", "heat", "state", "tasks", "reason")
    render.table(heads, rows, "no GPU is known")
    for each in document.nodes:
        if each.problem:
            click.echo(neutralise(f"{each.node}: {each.problem}"))


@click.command()
@click.argument("node", shell_complete=names.nodes)
@click.option("--reason", default="", help="The reason, which `nodes` shows.")
@global_options
def cordon(given: Globals, node: str, reason: str) -> None:
    """Let no new task go to NODE; those that it has stay."""
    check_name("node", node)
    _print(given, _ask(given, lambda client: client.cordon(node, reason)))


@click.command()
@click.argument("node", shell_complete=names.nodes)
@click.option("--gpu", default="", metavar="UUID|INDEX", help="Lift only the quarantine of this GPU.")
@global_options
def uncordon(given: Globals, node: str, gpu: str) -> None:
    """Let tasks go to NODE again, or to one GPU of it."""
    check_name("node", node)
    _print(given, _ask(given, lambda client: client.uncordon(node, gpu)))


@click.command()
@click.argument("node", shell_complete=names.nodes)
@click.option("--reason", default="", help="The reason, which `nodes` shows.")
@click.option("--no-wait", is_flag=True, help="Return at once, before the node is empty.")
@click.option(
    "--timeout", type=click.FloatRange(min=0), help="Seconds to wait at most; without it, for ever."
)
@global_options
def drain(given: Globals, node: str, reason: str, no_wait: bool, timeout: float | None) -> None:
    """Let no new task go to NODE, and move those that it has; return when nothing runs there any more.

    Each job moves by a new generation, from its newest checkpoint, when there is room elsewhere.
    """
    check_name("node", node)
    code = asyncio.run(_drain(given, node, reason, timeout, wait=not no_wait))
    if code:
        raise click.exceptions.Exit(code)


async def _drain(given: Globals, node: str, reason: str, timeout_s: float | None, *, wait: bool) -> int:
    target = find_target(given)
    async with target.client() as client:
        answer = await client.cordon(node, reason, drain=True)
    if not wait:
        _print(given, answer)
        return 0
    async with target.client(FOLLOW_DEADLINE_S) as client:
        if not await until_nothing_is_left(partial(_left, client, node), timeout_s, shown=not given.json):
            return TIMED_OUT
    _print(
        given, NodeAnswer(node, "nothing runs there any more; `supervisorctl uncordon` lets tasks come again")
    )
    return 0


async def _left(client: ControlClient, node: str) -> str:
    """The tasks that still run on a draining node, and the reasons why their jobs wait; empty if none runs.

    Raises Conflict if the drain was lifted.
    """
    listed = {view.node: view for view in (await client.nodes()).nodes}
    view = listed.get(node)
    if view is None or view.state not in ("draining", "drained", "suspected"):
        raise Conflict(
            f"node {node} is {view.state if view else 'gone'} now; it is not being drained any more"
        )
    if not view.tasks:
        return ""
    here = {task.partition("/")[0] for task in view.tasks}
    jobs = [job for job in (await client.status()).jobs if job.name in here and job.waiting_for]
    waits = [f"{job.name} waits: {job.waiting_for}" for job in jobs]
    return "; ".join((f"{node}: {len(view.tasks)} tasks left: {', '.join(view.tasks)}", *waits))


def _load(load: GpuBeat | None) -> tuple[str, str, str]:
    """Three cells about a GPU: memory in use, with the number of foreign processes; utilisation;
    temperature.
    """
    if load is None:
        return "-", "-", "-"
    used = render.size(load.memory_used) if load.memory_used >= 0 else "-"
    strange = f" ({load.others} others' processes)" if load.others else ""
    busy = f"{load.utilisation}%" if load.utilisation >= 0 else "-"
    heat = f"{load.temperature} C" if load.temperature >= 0 else "-"
    return f"{used}{strange}", busy, f"{heat}, throttled" if load.throttle else heat


def _print(given: Globals, answer: NodeAnswer) -> None:
    if given.json:
        render.emit_json(answer)
    else:
        click.echo(neutralise(f"{answer.node}: {answer.detail}"))


def _ask(given: Globals, question: Callable[[ControlClient], Awaitable[R]]) -> R:
    async def ask() -> R:
        async with find_target(given).client() as client:
            return await question(client)

    return asyncio.run(ask())
