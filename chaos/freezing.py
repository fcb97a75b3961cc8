"""Stopping a process where it is, and letting it go on: what hangs, as against what is dead."""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STOP_S = 30.0


class Freezable(ABC):
    """A process that can be frozen."""

    __slots__ = ()

    @property
    @abstractmethod
    def pid(self) -> int:
        """Its process id; fails when it does not run."""

    def freeze(self) -> None:
        """SIGSTOP: connections are taken, nothing is answered from the moment that this returns."""
        freeze(self.pid)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze for the duration of a with block."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()


def freeze(pid: int) -> None:
    """SIGSTOP; returns when every thread of the process has stopped."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + STOP_S
    # The signal is sent at once and takes hold of each thread a little later.
    while not all(state(task) in "TZX" for task in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.001)


def state(process: Path) -> str:
    """The letter that /proc has for a process or thread; X where there is none any more."""
    try:
        return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
