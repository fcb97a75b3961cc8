"""The containers of an embedded cluster: their requirements, and their removal."""

from __future__ import annotations

from pathlib import Path

from agent.runtimes.docker_node import HOMES
from supervisor.cli.cluster.engine import Engine, address_of
from supervisor.cli.local.layout import LocalDocker
from supervisor.contract.errors import NotFound, UserError


def check(docker: LocalDocker, state: Path) -> None:
    """Check the requirements.

    Raises Unreachable, Refused without a dockerd, NotFound without the default image, UserError.
    """
    for mount in docker.mounts:
        if state.is_relative_to(mount.source):
            raise UserError(f"--mount {mount.source}: the cluster's own state is in it, {state}; mount less")
    with Engine(address_of(docker.socket)) as engine:
        if docker.image and engine.image(docker.image) is None:
            raise NotFound(
                f"no image {docker.image!r} at {engine.address}; build it (deploy/docker/README.md), "
                "load it with `docker load`, or pull it"
            )


def remove(docker: LocalDocker, state: Path) -> None:
    """End and remove every container of the agents below this directory. Raises Unreachable."""
    with Engine(address_of(docker.socket)) as engine:
        for ident, directory in engine.labelled(HOMES).items():
            if Path(directory).is_relative_to(state):
                engine.remove(ident)
