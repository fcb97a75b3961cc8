"""The launcher's own environment and output, before it does anything else."""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import replace
from typing import Tuple

from . import fence, protocol, warm
from .failpoints import effect


def take(config: protocol.LauncherConfig, config_path: str) -> Tuple[protocol.LauncherConfig, str]:
    """The configuration with the job's whole environment, and our marker. May exec this process anew."""
    if config.log:
        _write_to(config.log)
    if config.inherits:
        config = replace(config, env={**_inherited(), **config.env})
    return config, _ensure_environment(config, config_path)


def _write_to(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for fd in (1, 2):
        os.dup2(log, fd)
    os.close(log)


def _inherited() -> dict[str, str]:
    ours = (fence.MARKER_VARIABLE, warm.THREADS_VARIABLE)
    return {name: value for name, value in os.environ.items() if name not in ours}


def _ensure_environment(config: protocol.LauncherConfig, config_path: str) -> str:
    """Exec once more, so that loader, interpreter and /proc see the job's environment and our marker."""
    marker = os.environ.get(fence.MARKER_VARIABLE, "")
    if marker.startswith(f"{config.launcher_id}#"):
        return marker
    marker = f"{config.launcher_id}#{secrets.token_hex(8)}"
    env = {**warm.launcher_environment(config.env), fence.MARKER_VARIABLE: marker}
    here = os.path.dirname(os.path.abspath(__file__))
    with effect("launcher.become_marked"):
        os.execve(sys.executable, [sys.executable, here, os.path.abspath(config_path)], env)
    raise AssertionError("exec does not return")
