"""Detection of kills by the kernel's OOM killer: of a process by the kernel's log, of others by its
cgroup.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from agent.boundaries import Beside
from agent.host.memory import CGROUPS, PROC, Cgroup
from agent.inside import clock
from supervisor.contract.observed import Exit

K = TypeVar("K")
V = TypeVar("V")
KMSG = Path("/dev/kmsg")
_KILLED = re.compile(rb"(?:[Oo]ut of memory: Kill(?:ed)? process |oom-kill:[^\n]*,pid=)(\d+)")
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
_READ_BYTES = 8192
_MOST_READS = 20_000
_REMEMBERED_MS = 600_000
_MOST_KNOWN = 1_000


def with_oom(end: Exit, *, killed: bool, beside: Beside) -> Exit:
    """The end of a failed attempt, with the part of the OOM killer in it.

    `killed`: it ended the main process. An end that followed from the loss of a child is attributed to it
    too.
    """
    if killed:
        detail = "; ".join(filter(None, (end.detail, "the OOM killer ended it")))
        return replace(end, oom=True, detail=detail)
    said = {
        Beside.OURS: "the OOM killer ended one of its processes",
        Beside.SOMEBODY: "meanwhile the OOM killer struck among the tasks of this node",
    }.get(beside, "")
    detail = "; ".join(filter(None, (end.detail, said)))
    return replace(end, oom=beside is Beside.OURS, detail=detail)


class OomNearby:
    """The counts of OOM kills, and of refused processes and threads, in the cgroups of attempts.

    A cgroup that is also the agent's, or that is unknown, gives no count for an attempt.
    """

    def __init__(self, proc: Path = PROC, root: Path = CGROUPS) -> None:
        self._proc, self._root = proc, root
        self._own = Cgroup.of("self", proc, root)
        self._known: dict[int, tuple[Cgroup, int]] = {}
        self._launched: dict[Path | None, int] = {}
        self._refused: dict[int, tuple[Cgroup, int]] = {}

    def launching(self, launcher: int) -> None:
        """Begin to count for an attempt that starts alone in its launcher's cgroup: it may lose a child
        before `began`.
        """
        cgroup = Cgroup.of(launcher, self._proc, self._root)
        if cgroup.directory != self._own.directory:
            self._launched[cgroup.directory] = cgroup.oom_kills()
            _forget_the_oldest(self._launched)

    def began(self, pid: int) -> None:
        """Begin to count from now on. The process must be alive, as a dead one has no cgroup."""
        cgroup = Cgroup.of(pid, self._proc, self._root)
        self._known[pid] = (cgroup, self._launched.pop(cgroup.directory, cgroup.oom_kills()))
        _forget_the_oldest(self._known)
        pids = Cgroup.of(pid, self._proc, self._root, "pids")
        if pids.directory != Cgroup.of("self", self._proc, self._root, "pids").directory:
            self._refused[pid] = (pids, pids.pids()[0])
            _forget_the_oldest(self._refused)

    def limit_met(self, pid: int) -> str:
        """The limit of its own cgroup that it has met since `began`, for people; empty if none."""
        cgroup, _ = self._known.get(pid, (Cgroup(None), -1))
        allowed = cgroup.allowed(self._root)
        if allowed >= 0 and self.struck(pid) is Beside.OURS:
            return f"its memory limit of {allowed >> 20} MiB was reached"
        pids, before = self._refused.get(pid, (Cgroup(None), -1))
        refused, most = pids.pids()
        return f"the pids limit of {most} was reached" if 0 <= before < refused else ""

    def struck(self, pid: int) -> Beside:
        """The kills since `began`, even after the process has ended."""
        cgroup, before = self._known.get(pid, (Cgroup(None), -1))
        if before < 0 or cgroup.oom_kills() <= before:
            return Beside.NOBODY
        return Beside.SOMEBODY if cgroup.directory == self._own.directory else Beside.OURS


class OomLog:
    """The pids that were killed since its construction; none if the log cannot be read.

    The log has pids of the machine, so it is of no use to an agent in a pid namespace of its own.
    """

    def __init__(self, path: Path = KMSG) -> None:
        self._killed: dict[int, int] = {}
        self._fd = -1
        with suppress(OSError):
            if path != KMSG or Path("/proc/self/ns/pid").stat().st_ino == _INITIAL_PID_NAMESPACE:
                self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._fd, 0, os.SEEK_END)

    def killed(self, pid: int) -> bool:
        """Whether a process was killed in the last ten minutes, since the log's construction."""
        for _ in range(_MOST_READS if self._fd >= 0 else 0):
            try:
                record = os.read(self._fd, _READ_BYTES)
            except BrokenPipeError:
                continue  # the kernel has overwritten what was to be read next
            except OSError:
                break
            if not record:
                break
            for found in _KILLED.findall(record):
                self._killed[int(found)] = clock.now_ms()
        # Its pid may become another's.
        old_ms = clock.now_ms() - _REMEMBERED_MS
        self._killed = {each: at_ms for each, at_ms in self._killed.items() if at_ms > old_ms}
        return pid in self._killed

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _forget_the_oldest(known: dict[K, V]) -> None:
    while len(known) > _MOST_KNOWN:
        del known[next(iter(known))]
