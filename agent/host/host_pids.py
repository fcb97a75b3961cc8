"""Translation of pids from a launcher's pid namespace to this machine's.

All code behind the socket uses this machine's pids: signals, fencing, memory, operators' views.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agent.boundaries import Process
from agent.inside import protocol
from agent.inside.processes import fence

PROC = Path("/proc")


class PidSpace:
    """The pid namespace of the launcher that is `pid` here; the machine's own for a plain process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.levels = pids_of(pid)

    @property
    def nested(self) -> bool:
        """Whether pids there differ from those here."""
        return len(self.levels) > 1

    def here(self, message: object) -> object:
        """The message with this machine's pids; 0 for a process that has ended meanwhile."""
        if not self.nested:
            return message
        match message:
            case protocol.Hello():
                running = message.attempt
                if running is not None:
                    running = replace(running, pid=self._find(running.pid, running.start_ticks))
                return replace(message, pid=self.pid, attempt=running)
            case protocol.Started():
                return replace(message, pid=self._find(message.pid, message.start_ticks))
            case _:
                return message

    def _find(self, pid: int, start_ticks: int) -> int:
        """The pid here of an attempt's main process, which is a child of its launcher."""
        for child in _children(self.pid):
            if self._is(child, pid, start_ticks):
                return child
        # The kernel's list of children may leave some out while others end.
        for each in fence.pids():
            process = fence.read_process(each)
            if process is not None and process.parent == self.pid and self._is(each, pid, start_ticks):
                return each
        return 0

    def _is(self, candidate: int, pid: int, start_ticks: int) -> bool:
        levels = pids_of(candidate)
        if len(levels) != len(self.levels) or levels[-1] != pid:
            return False
        found = fence.read_process(candidate)
        return found is None or found.start_ticks == start_ticks


def peer(pid: int) -> Process | None:
    """The process at the other end of a connection; None if it has ended."""
    found = fence.read_process(pid)
    return Process(pid, found.start_ticks) if found is not None else None


def pids_of(pid: int, proc: Path = PROC) -> tuple[int, ...]:
    """A process's pids in all its namespaces, from ours to its own; empty if it is gone."""
    try:
        text = (proc / str(pid) / "status").read_text()
    except OSError:
        return ()
    for line in text.splitlines():
        if line.startswith("NSpid:"):
            return tuple(map(int, line.split()[1:]))
    return (pid,)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in (PROC / str(pid) / "task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        return found
    return found
