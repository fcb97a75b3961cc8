"""`supervisorctl delete`: stop a job and remove it from the cluster."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from supervisor.cli import names
from supervisor.cli.jobs.control import print_accepted
from supervisor.cli.jobs.follow import TIMED_OUT
from supervisor.cli.options import Globals, global_options
from supervisor.cli.outage import FOLLOW_DEADLINE_S, until_nothing_is_left
from supervisor.cli.target import find_target
from supervisor.contract.errors import NotFound, UserError
from supervisor.contract.ids import check_name
from supervisor.contract.views.jobs import Accepted

if TYPE_CHECKING:
    from supervisor.api.client import ControlClient


@click.command()
@click.argument("job", shell_complete=names.jobs)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--no-wait", is_flag=True, help="Return at once, before the job is gone.")
@click.option(
    "--timeout", type=click.FloatRange(min=0), help="Seconds to wait at most; without it, for ever."
)
@global_options
def delete(given: Globals, job: str, yes: bool, no_wait: bool, timeout: float | None) -> None:
    """Stop JOB, and have the cluster forget it; return when it has.

    What JOB has in its store stays there: checkpoints, outputs and exports. Its stored logs are removed.
    """
    check_name("job", job)
    if not yes:
        _confirm(job)
    code = asyncio.run(_delete(given, job, timeout, wait=not no_wait))
    if code:
        raise click.exceptions.Exit(code)


def _confirm(job: str) -> None:
    if not sys.stdin.isatty():
        raise UserError(f"`delete` asks whether you mean it; without a terminal say `delete --yes {job}`")
    text = f"Job {job} is stopped, and its history, incidents and list of checkpoints are removed. Go on?"
    click.confirm(text, abort=True, err=True)


async def _delete(given: Globals, job: str, timeout_s: float | None, *, wait: bool) -> int:
    target = find_target(given)
    async with target.client() as client:
        uuid = (await client.status(job)).jobs[0].uuid
        answer = await client.delete(job)
    if not wait:
        print_accepted(given, answer)
        return 0
    async with target.client(FOLLOW_DEADLINE_S) as client:
        look = partial(_left, client, job, uuid)
        if not await until_nothing_is_left(look, timeout_s, shown=not given.json):
            return TIMED_OUT
    print_accepted(
        given, Accepted(job, "it is deleted; what it has in its store stays there, except its logs")
    )
    return 0


async def _left(client: ControlClient, job: str, uuid: str) -> str:
    """The state of a job that is being deleted, and its reason to wait; empty once the job is gone."""
    try:
        view = (await client.status(job)).jobs[0]
    except NotFound:
        return ""
    if view.uuid != uuid:
        return ""  # a new job of this name
    waits = f", waiting for {view.waiting_for}" if view.waiting_for else ""
    return f"{job}: {view.phase.value}{waits}"
