"""`supervisorctl image`: container images, before a job depends on them."""

from __future__ import annotations

import functools
import os
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
    from supervisor.adapters.files.config.docker import DockerConfig
    from supervisor.cli.cluster.image_check import Wish

P = ParamSpec("P")
R = TypeVar("R")
_TASK = ("user", "python", "mounts", "env", "execute")
NO_FIT = 15
"""The exit code for an image that exists but cannot run a job."""


@click.group()
def image() -> None:
    """Look at container images."""


@dataclass(frozen=True, slots=True)
class Task:
    """The options of a job's tasks in the image; None: those of the agent's configuration, if one is
    given.
    """

    user: str | None
    python: str | None
    mounts: tuple[str, ...]
    env: tuple[str, ...]
    execute: bool

    def wish(self, name: str, docker: DockerConfig | None) -> Wish:
        """The checked options; raises UserError."""
        from supervisor.adapters.files.config.docker import range_of
        from supervisor.cli.cluster.engine import Box
        from supervisor.cli.cluster.image_check import PYTHONS, Wish

        user, python, mounts = self.user, self.python, _directories(self.mounts)
        if docker is not None:
            span = range_of(docker.user or "")
            user = user or (docker.user if span is None else f"{span[1]}:{span[1]}")
            python = python or (docker.python if name == docker.image else None)
            mounts = {each.source: Path(each.source) for each in docker.mounts if each.always} | mounts
        if user is None:
            user = "1000:1000" if os.geteuid() == 0 else f"{os.geteuid()}:{os.getegid()}"
        box = Box(user, _variables(self.env), mounts)
        return Wish(name, box, (python,) if python else PYTHONS, not self.execute)


def task_options(function: Callable[Concatenate[Task, P], R]) -> Callable[P, R]:
    """Add the options of a Task; the function gets it first."""

    @click.option("--user", help="The user of tasks, UID:GID; else 1000:1000, or yourself without root.")
    @click.option("--python", help="The interpreter in the image; else python3, then python.")
    @click.option(
        "--mount", "mounts", multiple=True, metavar="DIR[:TARGET]", help="A directory inside, read-only."
    )
    @click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="A variable of the job.")
    @click.option("--exec", "execute", is_flag=True, help="The command is not Python: no TensorFlow needed.")
    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        user, python, mounts, env, execute = (kwargs.pop(name) for name in _TASK)
        assert user is None or isinstance(user, str)
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
@click.option(
    "--socket", help="Socket of dockerd; else the configuration's, DOCKER_HOST, /var/run/docker.sock."
)
@click.option(
    "--agent-config",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Configuration of an agent, for its socket, user, interpreter and mounts.",
)
@global_options
@task_options
@click.pass_context
def check(
    context: click.Context,
    task: Task,
    given: Globals,
    name: str,
    pull: str,
    socket: str | None,
    path: Path | None,
) -> None:
    """Say whether IMAGE can run jobs on this machine's docker. Exits with 15 when it cannot, 3 without it."""
    from supervisor.cli.cluster import findings, image_check
    from supervisor.cli.cluster.engine import Engine, address_of
    from supervisor.contract.job.spec import Pull

    docker = _docker(path)
    wish = task.wish(name, docker)
    # Ended from outside, it still removes its container.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    line = ProgressLine(wanted=not given.json)
    with Engine(address_of(socket or (docker.socket if docker else None))) as engine:
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


def _docker(path: Path | None) -> DockerConfig | None:
    from supervisor.adapters.files.config.agent import load_agent

    return load_agent(path).docker if path is not None else None


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
