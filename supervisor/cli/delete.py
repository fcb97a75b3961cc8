"""`supervisorctl delete`: stop a job and have the cluster forget it."""

from __future__ import annotations

import asyncio
import sys
import time

import click

from supervisor.cli.control import print_accepted
from supervisor.cli.follow import TIMED_OUT
from supervisor.cli.options import Globals, global_options
from supervisor.cli.outage import AGAIN_S, FOLLOW_DEADLINE_S, Outage
from supervisor.cli.progress import RewrittenLine
from supervisor.cli.target import find_target
from supervisor.cli.terminal import neutralise
from supervisor.contract.errors import NotFound, Unreachable, UserError
from supervisor.contract.ids import check_name
from supervisor.contract.views import Accepted


@click.command()
@click.argument("job")
@click.option("--yes", is_flag=True, help="Do not ask whether that is meant.")
@click.option("--no-wait", is_flag=True, help="Return as soon as it is asked for.")
@click.option("--timeout", type=click.FloatRange(min=0), help="Wait so many seconds at most.")
@global_options
def delete(given: Globals, job: str, yes: bool, no_wait: bool, timeout: float | None) -> None:
    """Stop JOB, and have the cluster forget it; return when it has.

    What JOB has in its store stays there: checkpoints, outputs and exports.
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
    end_s = time.monotonic() + timeout_s if timeout_s is not None else None
    line, outage = RewrittenLine(wanted=not given.json), Outage()
    async with target.client(FOLLOW_DEADLINE_S) as client:
        while True:
            left = "the cluster does not answer"
            try:
                view = (await client.status(job)).jobs[0]
                outage.over()
                if view.uuid != uuid:
                    break  # a new job of this name
                left = f"{job}: {view.phase.value}"
                left += f", waiting for {view.waiting_for}" if view.waiting_for else ""
            except NotFound:
                break
            except Unreachable as error:
                outage.failed(error)
            line.write(left)
            if end_s is not None and time.monotonic() >= end_s:
                line.clear()
                click.echo(neutralise(left), err=True)
                return TIMED_OUT
            await asyncio.sleep(AGAIN_S)
    line.clear()
    print_accepted(given, Accepted(job, "it is deleted; what it has in its store stays there"))
    return 0
