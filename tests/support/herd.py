"""Tasks of TensorFlow beside a launcher: one process imports it, and forks each of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.launcher.harness import wait_for

_SHEPHERD = """
import json, os, signal, sys
import tensorflow, tensorflow.compat.v1
from tensorflow.python.training import session_manager
init = session_manager.SessionManager.__init__
init.__defaults__ = tuple(0.1 if each == 30 else each for each in init.__defaults__)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        fd = os.open(order["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.environ.update(order["env"])
        sys.argv = order["argv"]
        try:
            exec(compile(open(sys.argv[0]).read(), sys.argv[0], "exec"), {"__name__": "__main__"})
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(0)
    print(pid, flush=True)
"""


class Herd:
    """Tasks by name, each with a log."""

    def __init__(self, root: Path, process: subprocess.Popen[str]) -> None:
        self.root = root
        self._process = process
        self._pids: dict[str, int] = {}

    def start(self, name: str, source: str, *arguments: str, env: dict[str, str]) -> None:
        """Run a program in a fork. One with the name of an earlier one begins its log anew."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        program = self.root / f"{name}.py"
        program.write_text(source)
        log = self.root / f"{name}.log"
        log.write_text("")
        order = {"argv": [str(program), *arguments], "env": env, "log": str(log)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self._pids[name] = int(self._process.stdout.readline())

    def signal(self, name: str, number: int) -> None:
        os.kill(self._pids[name], number)

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text()

    def logged(self, name: str, text: str, timeout_s: float = 60) -> str:
        """The log, when `text` is in it."""

        def read() -> str | None:
            found = self.log(name)
            return found if text in found else None

        try:
            return wait_for(f"{text!r} in the log of {name}", read, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.log(name)[-2000:]}") from None

    def close(self) -> None:
        """Kill all of them."""
        for pid in self._pids.values():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._pids.clear()


@contextmanager
def addresses(*names: str) -> Iterator[dict[str, str]]:
    """Addresses at which tasks with `TF_GRPC_REUSE_PORT` may listen until the block ends, by name."""
    with ExitStack() as held:
        found = {}
        for name in names:
            sock = held.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(("127.0.0.1", 0))
            found[name] = f"127.0.0.1:{sock.getsockname()[1]}"
        yield found


@contextmanager
def herd(env: dict[str, str]) -> Iterator[Herd]:
    """A herd in a fresh directory, killed when the block ends."""
    with tempfile.TemporaryDirectory() as root:
        process = subprocess.Popen(
            [sys.executable, "-c", _SHEPHERD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**env, "OMP_NUM_THREADS": "1"},
        )
        found = Herd(Path(root), process)
        try:
            with process:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                yield found
                found.close()
                process.kill()
        finally:
            found.close()
            process.kill()
