"""`supervisorctl top`: the cluster on one screen, drawn anew each second."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import click

from supervisor.cli.options import Globals, global_options
from supervisor.cli.target import find_target
from supervisor.cli.terminal import on_terminal
from supervisor.contract.errors import UserError


@click.command()
@click.option(
    "--every",
    type=click.FloatRange(min=0.2, max=3600),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@global_options
def top(given: Globals, every: float) -> None:
    """Show jobs, nodes and events on one screen, as they change; Ctrl-C ends it.

    Jobs that do not run and nodes in trouble come first. It needs a terminal.
    """
    if given.json:
        raise UserError("top draws a screen; for programs use `status --output json` and `events -f`")
    if not on_terminal():
        raise UserError("top needs a terminal; elsewhere use `supervisorctl status` and `events -f`")
    from supervisor.cli.cluster.screen import show

    with suppress(KeyboardInterrupt):
        asyncio.run(show(find_target(given), every))
