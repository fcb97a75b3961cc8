"""The `docker:` section of an agent's configuration."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import AfterValidator, Field

from supervisor.adapters.quantities import DurationMs, Text
from supervisor.adapters.yaml_file import Strict
from supervisor.contract.container import check_network
from supervisor.contract.errors import UserError
from supervisor.contract.job import HOST_NETWORK


def _absolute(value: str) -> str:
    if os.path.normpath(value) != value or not value.startswith("/"):
        raise ValueError(f"{value!r} is no absolute path without `..`, `//` or a `/` at its end")
    return value


def _user(value: str) -> str:
    numbers = value.split(":")
    if len(numbers) != 2 or not all(each.isascii() and each.isdecimal() for each in numbers):
        raise ValueError(f"{value!r} is no user; write UID:GID, as numbers")
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
    """A directory of this machine that containers may have, with all below it. `always`: they all have it."""

    source: Absolute = Field(description="add `source: /DIRECTORY`")
    read_only: bool = True
    always: bool = False


class DockerConfig(Strict):
    """How an agent with `runtime: docker` makes containers (docs/docker.md).

    Attributes:
        image: for jobs that name none.
        user: UID:GID of what runs in containers; None: 1000:1000 where the agent is root, else its own.
        python: the interpreter of `image`; empty: the one that the job's command names.
        mounts: all that jobs may ask for, their working directories included.
        networks: of docker's, those that jobs may join beside the host's.
        pids: processes and threads of a container at most, if its job does not say.
    """

    socket: Text = "/run/docker.sock"
    image: str = ""
    user: User | None = None
    python: str = ""
    mounts: list[DockerMount] = Field(default_factory=list)
    pull_timeout: DurationMs = Field(default=1_800_000, gt=0)
    pids: int = Field(default=4096, ge=64)
    networks: list[Network] = Field(default_factory=list)
