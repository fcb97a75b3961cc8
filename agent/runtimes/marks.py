"""Whose a process is: the mark that a launcher, and so all that it starts, has in its environment.

It is `LAUNCHER_ID#OWNER`. Agents of several nodes and clusters may share a machine and a user, so the owner
is an agent by its cluster, its node and the directory that its launchers have.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from agent.boundaries import Process
from agent.host_pids import peer
from agent.inside import fence


def owner(agent: str, directory: Path) -> str:
    """The agent that is `CLUSTER/NODE`, where its launchers' directory is this one."""
    return f"{agent}@{os.path.realpath(directory)}"


def mark(launcher_id: str, whose: str) -> str:
    """What the launcher takes for its own, so that it can be fenced before it has ever said hello."""
    return f"{launcher_id}#{whose}"


def living(whose: str, believes: Callable[[int], bool]) -> dict[str, tuple[Process, ...]]:
    """Launchers of which something lives, by id, with their processes whose mark one `believes`.

    Blocks: it looks at every process of this machine.
    """
    found: dict[str, list[Process]] = {}
    for pid in fence.pids():
        process = peer(pid)
        launcher_id, _, other = fence.marker_of(pid).partition("#")
        # It is still the process that was looked at.
        if other == whose and process is not None and peer(pid) == process and believes(pid):
            found.setdefault(launcher_id, []).append(process)
    return {launcher_id: tuple(processes) for launcher_id, processes in found.items()}
