"""Whether the kernel's OOM killer ended a process, as the kernel's log tells it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from agent.inside import clock

KMSG = Path("/dev/kmsg")
_KILLED = re.compile(rb"(?:[Oo]ut of memory: Kill(?:ed)? process |oom-kill:[^\n]*,pid=)(\d+)")
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
_READ_BYTES = 8192
_MOST_READS = 20_000
_REMEMBERED_MS = 600_000


class OomLog:
    """The pids that were killed since this was made. Where the log cannot be read, nobody is said to be.

    The log names pids of the machine, so it says nothing to an agent in a pid namespace of its own.
    """

    def __init__(self, path: Path = KMSG) -> None:
        self._killed: dict[int, int] = {}
        self._fd = -1
        with suppress(OSError):
            if path != KMSG or Path("/proc/self/ns/pid").stat().st_ino == _INITIAL_PID_NAMESPACE:
                self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._fd, 0, os.SEEK_END)

    def killed(self, pid: int) -> bool:
        """Whether it was killed in the last ten minutes, since this was made."""
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
        """Give back the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
