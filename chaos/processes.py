"""Processes of the tests' own: daemons that start, die and end, and what stops where it is and goes on again.

Whatever is started here ends with this process, however that ends.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

STOP_S = 30.0
START_S = 120.0
END_S = 20.0
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Words before a command. Nobody else would end it after a SIGKILL of ours."""


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


class Daemons(ABC):
    """Daemons of a small cluster, each with a name; a context manager. `directory` need not exist."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    @abstractmethod
    def environment(self) -> dict[str, str]:
        """The environment of the daemons, and of programs that use them."""

    @abstractmethod
    def _argv(self, name: str) -> list[str]:
        """The command of a daemon."""

    @abstractmethod
    def _begin(self) -> None:
        """Start all of them, and wait until they serve."""

    def __enter__(self) -> Self:
        self.directory.mkdir(mode=0o755, parents=True)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, name: str) -> None:
        """Start a daemon."""
        with self._output(name).open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                [*DIES_WITH_US, *self._argv(name)],
                env=self.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """SIGKILL a daemon. What it has started may live on."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def pid(self, name: str) -> int:
        """The process of a daemon."""
        return self._daemons[name].pid

    def close(self) -> None:
        """End all daemons, the last one first."""
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(END_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            ended = [name for name, each in self._daemons.items() if each.poll() is not None]
            if ended or time.monotonic() > deadline:
                said = "".join(self._output(name).read_text(errors="replace")[-2000:] for name in ended)
                raise RuntimeError(f"it is not so: {what}; ended: {ended}; {said}")
            time.sleep(0.1)

    def _output(self, name: str) -> Path:
        return self.directory / f"{name}.out"


class Guard:
    """A script that has started a cluster. It clears the cluster away when its standard input ends."""

    def __init__(self, *command: str | Path, environment: Mapping[str, str] = os.environ) -> None:
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            _, said = self._process.communicate(timeout=30)
            raise AssertionError(f"{command} has failed:\n{said}")

    def end(self) -> None:
        """Clear it away; fails if that fails."""
        _, said = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, said


def free_ports(many: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that were free at the same moment."""
    sockets = [socket.create_server((host, 0)) for _ in range(many)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


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
