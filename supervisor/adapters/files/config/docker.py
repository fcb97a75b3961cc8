"""The `docker:` section of an agent's configuration."""

from __future__ import annotations

import grp
import os
import pwd
import re
from itertools import chain
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from supervisor.adapters.files.quantities import DurationMs, Text
from supervisor.adapters.files.yaml_file import Strict
from supervisor.contract.errors import UserError
from supervisor.contract.job.container import check_network
from supervisor.contract.job.spec import HOST_NETWORK

_RANGE = re.compile(r"([0-9]{1,10})-([0-9]{1,10})", re.ASCII)
_MOST_UIDS = 1 << 31
SUBORDINATE = (Path("/etc/subuid"), Path("/etc/subgid"))
"""Files with the uids and gids for rootless containers of this machine's users."""


def _absolute(value: str) -> str:
    if os.path.normpath(value) != value or not value.startswith("/"):
        raise ValueError(f"{value!r} is no absolute path without `..`, `//` or a `/` at its end")
    return value


def range_of(user: str) -> tuple[int, int] | None:
    """(lowest, highest) of `LOW-HIGH`; None for any other text."""
    match = _RANGE.fullmatch(user)
    return (int(match[1]), int(match[2])) if match is not None else None


def holder_of(span: tuple[int, int]) -> str:
    """A user or group of this machine with a number in the range; empty if there is none."""
    low, high = span
    users = (f"user {each.pw_name}" for each in pwd.getpwall() if low <= each.pw_uid <= high)
    groups = (f"group {each.gr_name}" for each in grp.getgrall() if low <= each.gr_gid <= high)
    return next(chain(users, groups), "")


def subordinate_of(span: tuple[int, int]) -> str:
    """A line of SUBORDINATE with a number in the range; empty if there is none."""
    low, high = span
    for path in SUBORDINATE:
        for number, line in enumerate(path.read_text().splitlines() if path.exists() else (), 1):
            name, *numbers = line.split(":")
            if len(numbers) != 2 or not all(map(str.isdecimal, numbers)):
                continue
            first, count = map(int, numbers)
            if count and low < first + count and first <= high:
                return f"{path}:{number}: {first}-{first + count - 1} of {name}"
    return ""


def _user(value: str) -> str:
    span = range_of(value)
    if span is not None:
        if not 1000 <= span[0] < span[1] < _MOST_UIDS:
            raise ValueError(
                f"{value!r}: a range of uids is LOW-HIGH, of at least two, from 1000 to {_MOST_UIDS - 1}"
            )
        if span[0] <= 65_535 and span[1] >= 65_534:
            raise ValueError(f"{value!r} holds 65534 or 65535, which are nobody's; take another range")
        return value
    numbers = value.split(":")
    if len(numbers) != 2 or not all(each.isascii() and each.isdecimal() for each in numbers):
        raise ValueError(
            f"{value!r} is no user; write UID:GID, or LOW-HIGH for a uid of its own for each job, as numbers"
        )
    return value


def _network(value: str) -> str:
    try:
        check_network(value)
    except UserError as error:
        raise ValueError(str(error)) from error
    if value == HOST_NETWORK:
        raise ValueError("every job may use the host's network; name networks of docker's alone")
    return value


Network = Annotated[Text, AfterValidator(_network)]
Absolute = Annotated[Text, AfterValidator(_absolute)]
User = Annotated[Text, AfterValidator(_user)]


class DockerMount(Strict):
    """A directory of this machine that containers may mount, with all below it.

    `always`: all of them mount it.
    """

    source: Absolute = Field(description="add `source: /DIRECTORY`")
    read_only: bool = True
    always: bool = False


class DockerConfig(Strict):
    """The options of an agent with `runtime: docker` for containers (docs/docker.md).

    Attributes:
        image: for jobs that name none.
        user: UID:GID of processes in containers, or LOW-HIGH for a uid for each job; None: 1000:1000 if the
            agent is root, else its own.
        python: the interpreter of `image`; empty: the one that the job's command names.
        mounts: the directories that jobs may ask for, their working directories included.
        networks: docker networks that jobs may join beside the host's.
        pids: most processes and threads of a container, unless its job sets a limit.
    """

    socket: Text = "/run/docker.sock"
    image: str = ""
    user: User | None = None
    python: str = ""
    mounts: list[DockerMount] = Field(default_factory=list)
    pull_timeout: DurationMs = Field(default=1_800_000, gt=0)
    pids: int = Field(default=4096, ge=64)
    networks: list[Network] = Field(default_factory=list)
