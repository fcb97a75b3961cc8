"""Free memory of this machine and of this process's cgroup, and the kills of the OOM killer in a cgroup."""

from __future__ import annotations

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""Version 1 writes the largest number of pages for no limit."""


def free_bytes(meminfo: Path = MEMINFO) -> int:
    """Free bytes of the machine, or of our cgroup if that has less; -1 if unknown."""
    found = [each for each in (_available(meminfo), _left(Cgroup.of("self"))) if each >= 0]
    return min(found, default=-1)


class Cgroup:
    """The cgroup of a process, version 2 or 1; without one all values are unknown."""

    def __init__(self, directory: Path | None, version: int = 2) -> None:
        self.directory = directory
        self.version = version

    @classmethod
    def of(
        cls, pid: int | str, proc: Path = PROC, root: Path = CGROUPS, controller: str = "memory"
    ) -> Cgroup:
        """The cgroup of a living process, for a controller."""
        try:
            lines = (proc / str(pid) / "cgroup").read_text().splitlines()
        except OSError:
            return cls(None)
        for line in lines:
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controller in controllers.split(","):
                return cls(root / controller / path.lstrip("/"), 1)
        for line in lines:
            if line.startswith("0::"):
                return cls(root / line[3:].lstrip("/"), 2)
        return cls(None)

    def limits(self) -> tuple[int, int]:
        """(bytes allowed, bytes in use that cannot be dropped); -1 where unknown or without limit."""
        most = self._number("memory.max" if self.version == 2 else "memory.limit_in_bytes")
        used = self._number("memory.current" if self.version == 2 else "memory.usage_in_bytes")
        idle = self._field("memory.stat", "inactive_file" if self.version == 2 else "total_inactive_file")
        return most, max(0, used - max(0, idle)) if used >= 0 else -1

    def allowed(self, root: Path) -> int:
        """The lowest limit of memory of this cgroup and of those above it, below `root`; -1 without one."""
        found = []
        directory = self.directory
        while directory is not None and directory != root and root in directory.parents:
            most, _ = Cgroup(directory, self.version).limits()
            found += [most] if 0 <= most < _UNLIMITED else []
            directory = directory.parent
        return min(found, default=-1)

    def oom_kills(self) -> int:
        """The number of its processes that the OOM killer has ended; -1 if unknown."""
        return self._field("memory.events" if self.version == 2 else "memory.oom_control", "oom_kill")

    def pids(self) -> tuple[int, int]:
        """(how often a process or thread was refused, the limit), of a cgroup of `pids`; -1 if unknown."""
        return self._field("pids.events", "max"), self._number("pids.max")

    def _number(self, name: str) -> int:
        text = self._read(name).strip()
        return int(text) if text.isdecimal() else -1

    def _field(self, name: str, field: str) -> int:
        for line in self._read(name).splitlines():
            key, _, value = line.partition(" ")
            if key == field and value.strip().isdecimal():
                return int(value)
        return -1

    def _read(self, name: str) -> str:
        if self.directory is None:
            return ""
        try:
            return (self.directory / name).read_text()
        except OSError:
            return ""


def _available(meminfo: Path) -> int:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return -1
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return -1


def _left(cgroup: Cgroup) -> int:
    most, used = cgroup.limits()
    return max(0, most - used) if most >= 0 and used >= 0 else -1
