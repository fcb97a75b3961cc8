"""`supervisorctl image`: container images, before a job depends on them."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import click

from supervisor.cli import render
from supervisor.cli.options import Globals, global_options
from supervisor.cli.progress import ProgressLine
from supervisor.cli.terminal import neutralise
from supervisor.contract.errors import UserError

if TYPE_CHECKING:
    from supervisor.cli.image_check import Wish

P = ParamSpec("P")
R = TypeVar("R")
_TASK = ("user", "python", "mounts", "env", "execute")
NO_FIT = 15
"""The exit code for an image that is there and cannot run a job."""


@click.group()
def image() -> None:
    """Look at container images."""


@dataclass(frozen=True, slots=True)
class Task:
    """How a job's tasks would run in the image."""

    user: str
    python: str | None
    mounts: tuple[str, ...]
    env: tuple[str, ...]
    execute: bool

    def wish(self, name: str) -> Wish:
        """The same, checked; raises UserError."""
        from supervisor.cli.engine import Box
        from supervisor.cli.image_check import Wish

        box = Box(self.user, _variables(self.env), _directories(self.mounts))
        pythons = (self.python,) if self.python else ("python3", "python")
        return Wish(name, box, pythons, not self.execute)


def task_options(function: Callable[Concatenate[Task, P], R]) -> Callable[P, R]:
    """Add the options of a Task; the function gets it first."""

    @click.option("--user", default="1000:1000", show_default=True, help="Whom tasks run as, UID:GID.")
    @click.option("--python", help="The interpreter in the image; else python3, then python.")
    @click.option(
        "--mount", "mounts", multiple=True, metavar="DIR[:TARGET]", help="A directory inside, read-only."
    )
    @click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="A variable of the job.")
    @click.option("--exec", "execute", is_flag=True, help="The command is not Python: no TensorFlow needed.")
    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        user, python, mounts, env, execute = (kwargs.pop(name) for name in _TASK)
        assert isinstance(user, str)
        assert python is None or isinstance(python, str)
        assert isinstance(mounts, tuple)
        assert isinstance(env, tuple)
        return function(Task(user, python, mounts, env, bool(execute)), *args, **kwargs)

    return wrapped


@image.command()
@click.argument("name", metavar="IMAGE")
@click.option(
    "--pull", type=click.Choice(["never", "missing", "always"]), default="missing", show_default=True
)
@click.option("--socket", help="Of dockerd; else DOCKER_HOST, else /var/run/docker.sock.")
@global_options
@task_options
@click.pass_context
def check(
    context: click.Context, task: Task, given: Globals, name: str, pull: str, socket: str | None
) -> None:
    """Say whether IMAGE can run jobs on this machine's docker. Exits with 15 when it cannot, 3 without it."""
    from supervisor.cli import findings, image_check
    from supervisor.cli.engine import Engine, address_of
    from supervisor.contract.job import Pull

    wish = task.wish(name)
    # Ended from outside, it still removes its container.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    line = ProgressLine(wanted=not given.json)
    with Engine(address_of(socket)) as engine:
        try:
            found = image_check.get(engine, name, Pull(pull), partial(line.show, f"pulling {name}"))
        finally:
            line.clear()
        report = image_check.check(engine, found, wish)
    if given.json:
        render.emit_json(report)
    else:
        findings.show(report.findings)
        click.echo(neutralise(f"{name}: {'fits' if report.fits else 'cannot run a job'}"))
    context.exit(0 if report.fits else NO_FIT)


def _variables(given: tuple[str, ...]) -> dict[str, str]:
    for each in given:
        if "=" not in each:
            raise UserError(f"--env {each!r}: write NAME=VALUE")
    return {name: value for name, _, value in (each.partition("=") for each in given)}


def _directories(given: tuple[str, ...]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for each in given:
        source, _, target = each.partition(":")
        directory = Path(source).absolute()
        if not directory.is_dir():
            raise UserError(f"--mount {each!r}: {directory} is no directory")
        found[target or str(directory)] = directory
    return found
