"""Machines of the tests' YARN that are lost and come back, and the processes of its containers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from chaos.yarn import PLACES, YarnCluster
from examples.demo import kernel


def lose(yarn: YarnCluster, place: str, also: Path | None = None) -> int:
    """SIGKILL a NodeManager, then all that its containers have started and that works in `also`.

    Returns when those were killed, on CLOCK_MONOTONIC. A NodeManager that saw them end would tell of it.
    """
    name = f"nodemanager{PLACES.index(place)}"
    yarn.script("kill", name)
    doomed = [ref for pid in containers(yarn, name) if (ref := kernel.process(pid)) is not None]
    doomed += kernel.using(also) if also is not None else ()
    killed_ns = time.monotonic_ns()
    for ref in doomed:
        with suppress(ProcessLookupError):
            os.kill(ref.pid, signal.SIGKILL)
    return killed_ns


def bring_back(yarn: YarnCluster, place: str) -> None:
    """Start a NodeManager again, and wait until the ResourceManager knows it."""
    yarn.script("start", f"nodemanager{PLACES.index(place)}")
    yarn.script("ready")


def containers(yarn: YarnCluster, name: str = "") -> Iterator[int]:
    """The processes that containers of this NodeManager have started, or of all."""
    begin = f"{yarn.directory}/data/{name}"
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and environment_of(int(entry.name)).get("LOCAL_DIRS", "").startswith(begin):
            yield int(entry.name)


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process began with; empty when it is gone."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in raw.split("\0") if "=" in entry)
