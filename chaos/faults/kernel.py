"""The kernel's view of processes: the evidence for faults, and the places to inject them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from chaos import processes

PROC = Path("/proc")
GONE = "X"


@dataclass(frozen=True, slots=True)
class Life:
    """One process, told from a later one of the same pid by when it started (clock ticks since boot)."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> Life | None:
        """The process that has this pid now; None when there is none, or a zombie."""
        fields = _stat(pid)
        return cls(pid, int(fields[19])) if fields and fields[0] not in "ZX" else None

    @property
    def state(self) -> str:
        """The kernel's letter: R, S, D, T; X when it is gone, or a zombie. Z: threads of it still die."""
        fields = _stat(self.pid)
        if not fields or int(fields[19]) != self.start_ticks:
            return GONE
        return GONE if fields[0] == "Z" and not _threads_left(self.pid) else fields[0]

    @property
    def alive(self) -> bool:
        """Whether it is neither gone nor a zombie."""
        return self.state != GONE

    @property
    def cpu_ticks(self) -> int:
        """Processor time that it has used, all threads together; -1 when it is gone."""
        fields = _stat(self.pid)
        return int(fields[11]) + int(fields[12]) if self.alive and fields else -1

    @property
    def session(self) -> int:
        """Its session, as our own pid namespace names it; -1 when it is gone."""
        fields = _stat(self.pid)
        return int(fields[3]) if self.alive and fields else -1

    @property
    def frozen(self) -> bool:
        """Whether a signal has stopped all of its threads."""
        if not self.alive:
            return False
        try:
            threads = [processes.state(task) for task in (PROC / str(self.pid) / "task").iterdir()]
        except OSError:
            return False
        return bool(threads) and all(each in "TtX" for each in threads)


def _threads_left(pid: int) -> bool:
    """Whether a process whose first thread has ended has others: its parent does not hear of its end yet."""
    try:
        return len(list((PROC / str(pid) / "task").iterdir())) > 1
    except OSError:
        return False


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty when it is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def now_ms() -> float:
    """CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6
