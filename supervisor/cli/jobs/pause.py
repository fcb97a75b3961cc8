"""Verbs that hold restarts and moves: pause, resume."""

from __future__ import annotations

import click

from supervisor.cli import names
from supervisor.cli.jobs.control import ask, print_accepted
from supervisor.cli.options import Globals, global_options
from supervisor.contract.ids import check_name


@click.command()
@click.argument("job", shell_complete=names.jobs, required=False)
@click.option("--reason", default="", help="Why, for all who ask.")
@global_options
def pause(given: Globals, job: str | None, reason: str) -> None:
    """Let nothing be restarted or moved by itself, of JOB or of all jobs. What runs goes on."""
    name = _named(job)
    print_accepted(given, ask(given, lambda client: client.pause(name, reason)))


@click.command()
@click.argument("job", shell_complete=names.jobs, required=False)
@global_options
def resume(given: Globals, job: str | None) -> None:
    """End the pause of JOB, or that of all jobs, or the brake."""
    name = _named(job)
    print_accepted(given, ask(given, lambda client: client.resume(name)))


def _named(job: str | None) -> str:
    """The job; empty for all. A name that is empty, as of a variable that is not set, does not mean all."""
    return "" if job is None else check_name("job", job)
