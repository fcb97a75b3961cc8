"""`supervisorctl doctor`: checks whether this machine can be a node, with advice for each problem."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli import render
from supervisor.cli.options import Globals, global_options
from supervisor.contract.errors import TfSupervisorError

if TYPE_CHECKING:
    from supervisor.adapters.files.config.agent import AgentConfig
    from supervisor.cli.checks.model import Check
    from supervisor.cli.cluster.findings import Finding


@click.command()
@click.option(
    "--agent-config",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Configuration of this node's agent. Without it, only the machine itself is checked.",
)
@click.option(
    "--socket", help="Socket of dockerd; else the configuration's, DOCKER_HOST, /var/run/docker.sock."
)
@click.option(
    "--image", default="", help="The image that dockerd must have; else the configuration's default."
)
@global_options
@click.pass_context
def doctor(context: click.Context, given: Globals, path: Path | None, socket: str | None, image: str) -> None:
    """Check this machine: one line each, ok, warn or fail, and what to do. Exits with 1 when one fails."""
    from supervisor.cli.checks import model
    from supervisor.cli.cluster import findings

    config, found = _configuration(path)
    scene = model.Scene(
        config,
        _docker(config, socket),
        image or (config.docker.image if config else ""),
        needs_docker=config is not None or socket is not None,
    )
    found += model.run(checks(), scene)
    bad = findings.failed(found)
    if given.json:
        render.emit_json({"ok": not bad, "findings": found})
    else:
        findings.show(found)
    context.exit(1 if bad else 0)


def checks() -> tuple[Check, ...]:
    """Every check, in the order in which they are shown."""
    from supervisor.cli.checks import cluster, containers, durations, gpus, machine

    return (*machine.CHECKS, *durations.CHECKS, *cluster.CHECKS, *containers.CHECKS, *gpus.CHECKS)


def _configuration(path: Path | None) -> tuple[AgentConfig | None, list[Finding]]:
    from supervisor.adapters.files.config.agent import load_agent
    from supervisor.cli.cluster.findings import Finding, State

    if path is None:
        return None, []
    try:
        config = load_agent(path)
    except TfSupervisorError as error:
        return None, [Finding("configuration", State.FAIL, str(error), "mend the file, then ask again")]
    return config, [Finding("configuration", State.OK, str(path))]


def _docker(config: AgentConfig | None, socket: str | None) -> str:
    """The address of dockerd; empty if the configuration wants no container."""
    from supervisor.cli.cluster.engine import address_of

    if config is not None and config.runtime != "docker" and socket is None:
        return ""
    return address_of(socket or (config.docker.socket if config is not None else None))
