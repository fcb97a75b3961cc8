"""Names that a shell completes: jobs, their tasks, and nodes, as the leader knows them now.

A shell shows nothing where the cluster does not answer within a second, or refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import click

from supervisor.cli.options import Globals
from supervisor.cli.target import find_target
from supervisor.cli.terminal import one_line
from supervisor.contract.errors import TfSupervisorError

if TYPE_CHECKING:
    from supervisor.api.client import ControlClient

COMPLETE_S = 1.0


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of jobs."""
    del param

    async def ask(client: ControlClient) -> Iterable[str]:
        return [job.name for job in (await client.status()).jobs]

    return _ask(ctx, ask, incomplete)


def tasks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Tasks as `JOB/ROLE:INDEX`."""
    del param

    async def ask(client: ControlClient) -> Iterable[str]:
        return [task.task for job in (await client.status()).jobs for task in job.tasks]

    return _ask(ctx, ask, incomplete)


def jobs_and_tasks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Jobs, and their tasks once a job's name is there."""
    return (tasks if "/" in incomplete else jobs)(ctx, param, incomplete)


def tasks_of_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Tasks of the job that stands before, as `ROLE:INDEX`."""
    del param

    async def ask(client: ControlClient) -> Iterable[str]:
        (job,) = (await client.status(_job(ctx))).jobs
        return [f"{task.role}:{task.index}" for task in job.tasks]

    return _ask(ctx, ask, incomplete)


def roles_of_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Roles of the job that stands before."""
    return sorted({task.partition(":")[0] for task in tasks_of_job(ctx, param, incomplete)})


def checkpoints_of_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Checkpoints of the job that stands before, as `g3-s400`."""
    del param

    async def ask(client: ControlClient) -> Iterable[str]:
        return [str(each.ref) for each in (await client.checkpoints(_job(ctx))).checkpoints]

    return _ask(ctx, ask, incomplete)


def nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of nodes."""
    del param

    async def ask(client: ControlClient) -> Iterable[str]:
        return [node.node for node in (await client.nodes()).nodes]

    return _ask(ctx, ask, incomplete)


def _ask(
    ctx: click.Context, ask: Callable[[ControlClient], Awaitable[Iterable[str]]], incomplete: str
) -> list[str]:
    async def call() -> Iterable[str]:
        async with find_target(_given(ctx)).client(COMPLETE_S) as client:
            return await ask(client)

    try:
        found = asyncio.run(call())
    except TfSupervisorError:
        return []
    return sorted(one_line(each) for each in found if each.startswith(incomplete))


def _job(ctx: click.Context | None) -> str:
    """The job that the words before name: of this verb, or of one above it."""
    while ctx is not None and not ctx.params.get("job"):
        ctx = ctx.parent
    return str(ctx.params["job"]).partition("/")[0] if ctx is not None else ""


def _given(ctx: click.Context | None) -> Globals:
    """The cluster that the words before name."""
    found = Globals()
    while ctx is not None:
        found = found.over(Globals(ctx.params.get("state"), ctx.params.get("config")))
        ctx = ctx.parent
    return found
