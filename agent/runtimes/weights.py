"""What starts comes before what trains (decision 0009), where each task has a cgroup of its own.

The kernel weighs containers against each other by their cgroups alone: the nice values of what is inside, and
the weights of its sessions, count inside only.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from agent.memory import CGROUPS, PROC

SHARES = 1024
WEIGHT = 100
_STEP = 1.25


class Weights:
    """Sets the weight of a container's cgroup, where this agent may; never that of one it is in itself."""

    def __init__(self, proc: Path = PROC, root: Path = CGROUPS) -> None:
        self._proc, self._root = proc, root
        self._own = self._file("self")

    def weigh(self, pid: int, nice: int) -> None:
        """The container of this process counts as if all of it had this nice value."""
        file = self._file(pid)
        if file is None or file == self._own:
            return
        full = SHARES if file.name == "cpu.shares" else WEIGHT
        with suppress(OSError):
            # Without O_CREAT: a cgroup that is gone must not become a file.
            fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, str(max(2, round(full / _STEP**nice))).encode())
            finally:
                os.close(fd)

    def _file(self, pid: int | str) -> Path | None:
        try:
            lines = (self._proc / str(pid) / "cgroup").read_text().splitlines()
        except OSError:
            return None
        for line in lines:
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if "cpu" in controllers.split(","):
                return self._root / controllers / path.lstrip("/") / "cpu.shares"
        for line in lines:
            if line.startswith("0::"):
                return self._root / line[3:].lstrip("/") / "cpu.weight"
        return None
