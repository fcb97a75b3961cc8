"""Starting and dying tasks come before training ones (decisions 0009, 0046), by the cgroup of each task.

The kernel weighs containers against each other by their cgroups alone. Nice values and weights of sessions
inside a container count only inside it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from agent.host.memory import CGROUPS, PROC
from agent.inside import protocol

SHARES = 1024
WEIGHT = 100
MOST = {"cpu.shares": 262_144, "cpu.weight": 10_000}
"""The largest value that the kernel accepts."""
_STEP = 1.25


class Weights:
    """Sets the weight of a container's cgroup, if this agent may; never that of the agent's own cgroup."""

    def __init__(self, proc: Path = PROC, root: Path = CGROUPS) -> None:
        self._proc, self._root = proc, root
        self._own = self._file("self")

    def weigh(self, pid: int, nice: int) -> None:
        """Weigh the container of this process as if all its processes had this nice value."""
        file = self._own_of(pid)
        if file is not None:
            _write(file, max(2, round(_full(file) / _STEP**nice)))

    def hasten(self, pid: int) -> None:
        """Give the container of this process precedence over all others beside it."""
        file = self._own_of(pid)
        if file is not None:
            _write(file, MOST[file.name])

    def lend(self, pid: int) -> tuple[int, protocol.Weight] | None:
        """A descriptor by which a launcher gives its own container precedence; the caller closes it."""
        file = self._own_of(pid)
        if file is None:
            return None
        try:
            fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return None
        return fd, protocol.Weight(first=MOST[file.name], usual=_full(file))

    def _own_of(self, pid: int) -> Path | None:
        file = self._file(pid)
        return None if file == self._own else file

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


def _full(file: Path) -> int:
    return SHARES if file.name == "cpu.shares" else WEIGHT


def _write(file: Path, value: int) -> None:
    with suppress(OSError):
        # Without O_CREAT: a cgroup that is gone must not become a file.
        fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)
