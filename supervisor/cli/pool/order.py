"""The options of `pool up`, and the pool that they ask for."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

from supervisor.cli.local.layout import POOL, Layout
from supervisor.cli.options import Globals
from supervisor.cli.target import find_target, place_of
from supervisor.contract.errors import NotFound, UserError
from supervisor.contract.pool.record import check_pool

if TYPE_CHECKING:
    from supervisor.engines.agent_file import Shared
    from supervisor.engines.engine import Pool

P = ParamSpec("P")
R = TypeVar("R")
LEAST_NOTICE_S, MOST_NOTICE_S = 20, 65_535
"""Slurm takes no longer one."""
INSTALLATIONS = "installations/{host}"
"""A directory beside those of the nodes, whose names have a dot. Each machine has its own, also where they
share the directory above: locks do not always reach from one machine to another.
"""
LASTING = "7d"
"""How long a token is valid by default. Agents that wait in a queue need it until they begin."""
_GPUS = re.compile(r"(?:[A-Za-z0-9_.-]{1,40}:)?[1-9][0-9]{0,3}")
_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,-]{0,200}")
_CONSTRAINT = re.compile(r"[A-Za-z0-9!(\[][A-Za-z0-9_.:,&|!*()\[\]=/-]{0,199}")
_TIME = re.compile(r"(?:[0-9]{1,4}-)?[0-9]{1,6}(?::[0-9]{1,2}){0,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The options of `pool up` about each agent, as they were given."""

    cpus: int
    memory: str
    gpus: str
    queue: str
    time: str
    notice: int
    requeue: bool
    python: str
    archive: Path | None
    agent_config: Path | None
    logs: Path
    token: Path | None = None
    token_for: str = LASTING
    constraint: str = ""


def wanted_options(function: Callable[Concatenate[Wanted, P], R]) -> Callable[P, R]:
    """Add the options; the function gets them first, as one value."""

    @click.option("--cpus", type=click.IntRange(1, 4096), default=1, show_default=True, help="Of each agent.")
    @click.option("--memory", default="", metavar="SIZE", help="Of each agent, as 16GiB.")
    @click.option("--gpus", default="", metavar="[TYPE:]N", help="Of each agent.")
    @click.option("--queue", default="", help="The engine's queue; of Slurm, a partition.")
    @click.option(
        "--constraint",
        default="",
        metavar="EXPR",
        help="What its machine must have: features of Slurm, a node label of YARN.",
    )
    @click.option("--time", default="", metavar="[D-]H:M:S", help="The time limit of each agent.")
    @click.option(
        "--notice",
        type=click.IntRange(LEAST_NOTICE_S, MOST_NOTICE_S),
        default=60,
        show_default=True,
        help="Seconds that an agent has to move its tasks away before it ends.",
    )
    @click.option("--requeue", is_flag=True, help="Queue an agent again at the end of its time limit.")
    @click.option(
        "--archive",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The agents' installation, made by `pool pack`.",
    )
    @click.option(
        "--python",
        default="",
        help="The Python of the machines, by default this one; with --archive any of its version.",
    )
    @click.option(
        "--agent-config",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The configuration that all agents share; an embedded cluster has one.",
    )
    @click.option(
        "--logs",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path(),
        help="The directory for the agents' output; by default this one.",
    )
    @click.option(
        "--token",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The file for the pool's token, where supervisors certify agents; by default POOL.token beside "
        "--agent-config.",
    )
    @click.option("--token-for", default=LASTING, show_default=True, help="How long the token is valid.")
    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        values: dict[str, Any] = {each.name: kwargs.pop(each.name) for each in fields(Wanted)}
        return function(Wanted(**values), *args, **kwargs)

    return wrapped


def pool_of(given: Globals, name: str, wanted: Wanted, origin: str) -> Pool:
    """The pool that the options ask for, checked, for the queue `origin`. Raises UserError, NotFound."""
    from supervisor.adapters.files.quantities import size_bytes
    from supervisor.engines.engine import Pool

    check_pool(name)
    for option, value, form, example in (
        ("--gpus", wanted.gpus, _GPUS, "1, or a100:2"),
        ("--queue", wanted.queue, _QUEUE, "gpu"),
        ("--constraint", wanted.constraint, _CONSTRAINT, "gpu, or of Slurm fast&large"),
        ("--time", wanted.time, _TIME, "12:00:00, or 2-00:00:00 for two days"),
    ):
        if value and not form.fullmatch(value):
            raise UserError(f"{option} {value!r}: write it as {example}")
    if wanted.time and 0 < _seconds(wanted.time) <= wanted.notice:
        raise UserError(
            f"--time {wanted.time} is {_seconds(wanted.time)} s: an agent would leave as soon as it begins, "
            f"as --notice is {wanted.notice} s; write three hours as 3:00:00"
        )
    try:
        memory = size_bytes(wanted.memory) if wanted.memory else 0
    except ValueError as error:
        raise UserError(f"--memory: {error}") from error
    file, shared = shared_file(given, name, wanted.agent_config)
    option, place = place_of(given)
    program, archive = _program(wanted, shared.state_dir)
    token = _path("--token", str(wanted.token or file.parent / f"{name}.token")) if shared.certified else ""
    command = (
        *program,
        *("-P", "-m", "supervisor.engines.keeper"),
        *("--pool", name),
        *("--agent-config", _path("--agent-config", str(file))),
        *(option, _path(option, str(place))),
        *("--label", f"origin={origin}"),
        *("--cpus", str(wanted.cpus)),
        *(("--memory", str(memory)) if memory else ()),
        *("--notice", str(wanted.notice)),
        *(("--token", token) if token else ()),
    )
    return Pool(
        name=name,
        command=command,
        directory=_path("--logs", str(wanted.logs)),
        archive=archive,
        cpus=wanted.cpus,
        memory_mib=-(-memory // (1 << 20)),
        gpus=wanted.gpus,
        queue=wanted.queue,
        constraint=wanted.constraint,
        time=wanted.time,
        notice_s=wanted.notice,
        requeue=wanted.requeue,
        token=token,
    )


def _seconds(time: str) -> int:
    """The length of a time limit as Slurm reads it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; 0 is none."""
    days, dash, rest = time.rpartition("-")
    parts = [int(each) for each in rest.split(":")]
    if not dash and len(parts) < 3:
        parts.insert(0, 0)
    hours, minutes, seconds = [*parts, 0, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _program(wanted: Wanted, state_dir: str) -> tuple[tuple[str, ...], str]:
    """The words that run a Python with tf-supervisor, and the archive that brings it, else empty."""
    from importlib import metadata

    from supervisor.engines.installation import archive, bootstrap

    if wanted.archive is None:
        python = _path("--python", wanted.python or sys.executable)
        if not os.access(python, os.X_OK):
            raise UserError(f"--python {python}: no program is there")
        return (python,), ""
    if "{node}" in state_dir:
        raise UserError(
            f"--archive: it is unpacked below `state_dir`, {state_dir}, before the node has a name; leave "
            "{node} out there, as each node has a directory of its own below it"
        )
    found = archive.read(wanted.archive)
    if found.version != (own := metadata.version(archive.OWN)):
        raise UserError(
            f"--archive {wanted.archive}: it was packed by version {found.version}, and this is {own}, whose "
            "agents may take other options; pack it again with `supervisorctl pool pack`"
        )
    python = wanted.python or f"python{found.python}"
    path = _path("--archive", str(wanted.archive))
    return (
        *(_path("--python", python) if "/" in python else python, "-I", "-c", inspect.getsource(bootstrap)),
        *(path, found.sha256, found.abi, f"{state_dir}/{INSTALLATIONS}"),
    ), path


def shared_file(given: Globals, pool: str, wanted: Path | None) -> tuple[Path, Shared]:
    """The file that all agents of a pool share, and what it says: the wanted one, or that of an embedded
    cluster.

    Raises UserError with its wrong lines, NotFound.
    """
    from supervisor.engines import agent_file

    find_target(given)
    option, place = place_of(given)
    file = wanted or (Layout.of(place).config(POOL) if option == "--state" else None)
    if file is None:
        raise UserError(
            "--agent-config FILE is needed: the configuration that all agents share (docs/engines.md)"
        )
    if not file.is_file():
        again = "; run `supervisorctl local up` again, which makes it" if wanted is None else ""
        raise NotFound(f"{file}: no such file{again}")
    return file, agent_file.check(file, pool)


def _path(option: str, text: str) -> str:
    """An absolute path. Links stay: they may lead elsewhere on other machines, and a venv's Python is one."""
    if not text.isprintable():
        raise UserError(f"{option} {text!r}: choose a path without control characters")
    return str(Path(text).expanduser().absolute())
