"""Verbs that change an existing job: stop, start, release, restart, scale, pin, unpin, signal."""

from __future__ import annotations

import asyncio
import re
import signal as signals
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from supervisor.cli import names
from supervisor.cli.options import Globals, global_options
from supervisor.cli.render import emit_json
from supervisor.cli.target import find_target
from supervisor.cli.terminal import neutralise
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import UserError
from supervisor.contract.ids import TaskId, check_name
from supervisor.contract.views.jobs import Accepted

if TYPE_CHECKING:
    from supervisor.api.client import ControlClient

_CHECKPOINT = re.compile(r"(?:g([0-9]{1,8})-s)?([0-9]{1,12})")


@click.command()
@click.argument("job", shell_complete=names.jobs)
@click.option("--save", is_flag=True, help="Send SIGTERM first, and give the program time to save.")
@global_options
def stop(given: Globals, job: str, save: bool) -> None:
    """Stop JOB. Its checkpoints stay; `start` goes on from the newest."""
    print_accepted(given, ask(given, lambda client: client.stop(check_name("job", job), save=save)))


@click.command()
@click.argument("job", shell_complete=names.jobs)
@global_options
def start(given: Globals, job: str) -> None:
    """Start JOB, which has ended, again from its newest checkpoint."""
    print_accepted(given, ask(given, lambda client: client.start(check_name("job", job))))


@click.command()
@click.argument("job", shell_complete=names.jobs)
@global_options
def release(given: Globals, job: str) -> None:
    """Let JOB, which is parked, go on: from its newest checkpoint, if its tasks ran."""
    print_accepted(given, ask(given, lambda client: client.release(check_name("job", job))))


@click.command()
@click.argument("job", shell_complete=names.jobs_and_tasks, metavar="JOB[/ROLE:INDEX]")
@click.option(
    "--from", "checkpoint", metavar="STEP", help="Restart from this checkpoint: its step, or gG-sS."
)
@global_options
def restart(given: Globals, job: str, checkpoint: str | None) -> None:
    """Restart JOB, or one task of it: JOB/ROLE:INDEX."""
    name, member = job, ""
    if "/" in job:
        task = TaskId.parse(job)
        name, member = task.job, task.member
    check_name("job", name)
    ref = parse_checkpoint(checkpoint) if checkpoint is not None else None
    print_accepted(given, ask(given, lambda client: client.restart(name, member, ref)))


@click.command()
@click.argument("job", shell_complete=names.jobs)
@click.argument("sizes", metavar="ROLE=COUNT...", nargs=-1, required=True)
@global_options
def scale(given: Globals, job: str, sizes: tuple[str, ...]) -> None:
    """Change how many tasks a role of JOB has: worker=4.

    A job that runs restarts with them from a checkpoint, right after it has saved one; or workers join and
    leave while the others train on. Those keep the number of workers that they were started with: a program
    that computes with it needs `restart.scope: {worker: all}`. What fails before its first step goes back
    to the size of before.
    """
    check_name("job", job)
    wanted = dict(map(parse_size, sizes))
    if len(wanted) < len(sizes):
        raise UserError("a role is named twice; give each one count")
    print_accepted(given, ask(given, lambda client: client.scale(job, wanted)))


@click.command()
@click.argument("job", shell_complete=names.jobs)
@click.argument("checkpoint", shell_complete=names.checkpoints_of_job, metavar="STEP")
@global_options
def pin(given: Globals, job: str, checkpoint: str) -> None:
    """Keep JOB's checkpoint of STEP (or gG-sS) for good, however many newer ones come."""
    set_pin(given, job, checkpoint, pinned=True)


@click.command()
@click.argument("job", shell_complete=names.jobs)
@click.argument("checkpoint", shell_complete=names.checkpoints_of_job, metavar="STEP")
@global_options
def unpin(given: Globals, job: str, checkpoint: str) -> None:
    """Let JOB's checkpoint of STEP (or gG-sS) be removed when it is old enough."""
    set_pin(given, job, checkpoint, pinned=False)


@click.command()
@click.argument("task", shell_complete=names.tasks, metavar="JOB/ROLE:INDEX")
@click.argument("name", metavar="SIGNAL")
@global_options
def signal(given: Globals, task: str, name: str) -> None:
    """Send SIGNAL (TERM, SIGTERM or 15) to the main process of a task."""
    where, number = str(TaskId.parse(task)), parse_signal(name)
    print_accepted(given, ask(given, lambda client: client.signal(where, number)))


def parse_checkpoint(text: str) -> CheckpointRef:
    """Read `400` (generation 0: any generation with this step) or `g3-s400`; raises UserError."""
    match = _CHECKPOINT.fullmatch(text)
    if match is None:
        raise UserError(f"{text!r} is not a checkpoint: write its step, 400, or g3-s400 from `checkpoints`")
    return CheckpointRef(int(match[1] or 0), int(match[2]))


def parse_size(text: str) -> tuple[str, int]:
    """Read `worker=4`; raises UserError."""
    role, equals, count = text.partition("=")
    if not (role and equals and count.isascii() and count.isdigit() and len(count) < 7):
        raise UserError(f"{text!r} is not a role and its count; write for example worker=4")
    return role, int(count)


def parse_signal(text: str) -> int:
    """A signal by name, with or without SIG, or by number; raises UserError."""
    known = {each.name: each.value for each in signals.Signals}
    number = known.get("SIG" + text.upper().removeprefix("SIG"), 0)
    if text.isascii() and text.isdigit() and len(text) < 4:
        number = int(text)
    if number not in signals.valid_signals():
        raise UserError(f"there is no signal {text!r}; write TERM, SIGTERM or 15, for example")
    return number


def print_accepted(given: Globals, accepted: Accepted) -> None:
    """Print the leader's answer."""
    warn(accepted)
    if given.json:
        emit_json(accepted)
    else:
        about = f"{accepted.job}: " if accepted.job else ""
        click.echo(neutralise(f"{about}{accepted.detail}"))


def warn(accepted: Accepted) -> None:
    """Print warnings about values that may be a mistake, to standard error."""
    for each in accepted.cautions:
        click.echo(neutralise(f"warning: {each}"), err=True)


def set_pin(given: Globals, job: str, checkpoint: str, *, pinned: bool) -> None:
    """Pin a checkpoint, or unpin it."""
    ref = parse_checkpoint(checkpoint)
    print_accepted(given, ask(given, lambda client: client.pin(check_name("job", job), ref, pinned=pinned)))


def ask(given: Globals, question: Callable[[ControlClient], Awaitable[Accepted]]) -> Accepted:
    """Ask the leader of the chosen cluster."""

    async def asking() -> Accepted:
        async with find_target(given).client() as client:
            return await question(client)

    return asyncio.run(asking())
