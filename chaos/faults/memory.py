"""A memory cgroup that is too small: cgroups of version 1 and 2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from chaos.cluster import Cluster

CGROUPS = Path("/sys/fs/cgroup")
ROOM_BYTES = 96 << 20


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """A memory cgroup that the tests made."""

    directory: Path

    def kills(self) -> int:
        """The number of processes that the OOM killer has killed in the cgroup."""
        name = "memory.events" if (self.directory / "memory.events").exists() else "memory.oom_control"
        for line in (self.directory / name).read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0


def missing(_: Cluster) -> str | None:
    """Why no memory cgroup can be made here."""
    if os.geteuid() != 0:
        return "a memory cgroup needs root"
    home = _home()
    return None if home is not None else "this machine's cgroups have no memory controller that we may use"


@contextmanager
def limited(pid: int) -> Iterator[MemoryCgroup]:
    """Move a process into a cgroup that gives it little more than it has, and remove that afterwards."""
    home = _home()
    assert home is not None, "look at `missing` first"
    directory = home / f"chaos-oom-{pid}"
    before = _current(pid)
    directory.mkdir()
    try:
        limit = _resident(pid) + ROOM_BYTES
        if home == CGROUPS:
            (directory / "memory.swap.max").write_text("0")
            (directory / "memory.max").write_text(str(limit))
        else:
            (directory / "memory.limit_in_bytes").write_text(str(limit))
        (directory / "cgroup.procs").write_text(str(pid))
        yield MemoryCgroup(directory)
    finally:
        for line in (directory / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (before / "cgroup.procs").write_text(line)
        directory.rmdir()


def _home() -> Path | None:
    if (CGROUPS / "memory" / "memory.limit_in_bytes").exists() and os.access(CGROUPS / "memory", os.W_OK):
        return CGROUPS / "memory"
    control = CGROUPS / "cgroup.subtree_control"
    with suppress(OSError):
        if "memory" not in control.read_text().split():
            control.write_text("+memory")
        return CGROUPS if "memory" in control.read_text().split() else None
    return None


def _current(pid: int) -> Path:
    """The memory cgroup that a process is in."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return CGROUPS / "memory" / path.lstrip("/")
        if not controllers:
            unified = CGROUPS / path.lstrip("/")
            if (unified / "cgroup.controllers").exists():
                return unified
    return CGROUPS


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
