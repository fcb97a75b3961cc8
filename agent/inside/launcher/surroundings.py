"""The launcher's own environment and output, before it does anything else."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Tuple

from .. import protocol
from ..child import warm
from ..processes import fence


def take(config: protocol.LauncherConfig) -> Tuple[protocol.LauncherConfig, str]:
    """The configuration with the job's whole environment, and our marker."""
    if config.log:
        _write_to(config.log)
    if config.inherits:
        config = replace(config, env={**_inherited(), **config.env})
    return config, _marker(config.launcher_id)


def _write_to(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for fd in (1, 2):
        os.dup2(log, fd)
    os.close(log)


def _inherited() -> dict[str, str]:
    ours = (fence.MARKER_VARIABLE, warm.THREADS_VARIABLE)
    return {name: value for name, value in os.environ.items() if name not in ours}


def _marker(launcher_id: str) -> str:
    """The marker from our agent, by which it finds this process and its children."""
    marker = os.environ.get(fence.MARKER_VARIABLE, "")
    if not marker.startswith(f"{launcher_id}#"):
        raise SystemExit(f"{fence.MARKER_VARIABLE} does not name {launcher_id}: only agents start launchers")
    return marker
