"""The first process of a node: starts its daemons, collects what ends, takes requests on a Unix socket.

A request is one line of JSON, so is the answer. When this process is killed, the kernel ends all that is in
its namespace of pids: that is how a node loses its power. Standard library alone, for it runs without `site`.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from chaos.machine import kernel, slow_sync

RESTART_S = 0.5
"""A daemon that ends by itself is started again after so long, as systemd would do it."""
_REQUEST_S = 5.0
_MAX_REQUEST = 1 << 20

Request = dict[str, object]


@dataclass(slots=True)
class Child:
    """A daemon of the node. `pid` is 0 when it does not run; pids are those of the node's own namespace.

    Attributes:
        slow: the file of `slow_sync` that says how slow its disk is; empty: it is not.
    """

    name: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    slow: str = ""
    wanted: bool = True
    pid: int = 0
    starts: int = 0
    last_exit: str = ""
    due: float = field(default=0.0, repr=False)


class Init:
    """The loop of a first process."""

    def __init__(self, control: Path) -> None:
        self.children: dict[str, Child] = {}
        self._selector = selectors.DefaultSelector()
        control.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        with kernel.short(control) as path:
            self._listener.bind(path)
        self._listener.listen(16)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, wake_writer = socket.socketpair()
        self._wake.setblocking(False)
        wake_writer.setblocking(False)
        self._wake_writer = wake_writer
        self._selector.register(self._wake, selectors.EVENT_READ)
        signal.set_wakeup_fd(wake_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.verbs: dict[str, Callable[[Request], Request]] = {
            "start": self._start,
            "kill": self._kill,
            "status": self._status,
        }

    def serve(self) -> None:
        """Serve until killed."""
        while True:
            due = [child.due for child in self.children.values() if child.wanted and child.pid == 0]
            timeout = max(0.0, min(due) - time.monotonic()) if due else None
            for key, _ in self._selector.select(timeout):
                if key.fileobj is self._wake:
                    self._wake.recv(4096)
                elif key.fileobj is self._listener:
                    self._answer()
            self._reap()
            for child in self.children.values():
                if child.wanted and child.pid == 0 and time.monotonic() >= child.due:
                    self._spawn(child)

    def close_for_child(self) -> None:
        """In a forked child that shall be a first process of its own: it has nothing of ours."""
        signal.set_wakeup_fd(-1)
        self._listener.close()
        self._selector.close()
        self._wake.close()
        self._wake_writer.close()

    def _answer(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(_REQUEST_S)
            try:
                with connection.makefile("rb") as stream:
                    request = json.loads(stream.readline(_MAX_REQUEST))
                try:
                    reply = self.verbs[request["do"]](request)
                except (KeyError, OSError) as error:
                    reply = {"error": f"{type(error).__name__}: {error}"}
                connection.sendall(json.dumps(reply).encode() + b"\n")
            except (OSError, ValueError) as error:
                print(f"a request was not answered: {error}", file=sys.stderr, flush=True)

    def _start(self, request: Request) -> Request:
        name = str(request["name"])
        self._reap()
        child = self.children.get(name)
        if child is None or child.pid == 0:
            argv, env = request["argv"], request["env"]
            assert isinstance(argv, list)
            assert isinstance(env, dict)
            starts = child.starts if child is not None else 0
            where = str(request["cwd"]), str(request["log"]), str(request.get("slow", ""))
            child = Child(name, argv, env, *where, starts=starts)
            self.children[name] = child
            self._spawn(child)
        return {"pid": child.pid}

    def _kill(self, request: Request) -> Request:
        """`stay`: it is to stay dead if it dies of this."""
        child = self.children[str(request["name"])]
        self._reap()
        if request["stay"]:
            child.wanted = False
        if child.pid:
            os.kill(child.pid, int(str(request["signal"])))
        return {"pid": child.pid}

    def _status(self, _: Request) -> Request:
        self._reap()
        return {
            child.name: {
                "pid": child.pid,
                "starts": child.starts,
                "wanted": child.wanted,
                "last_exit": child.last_exit,
            }
            for child in self.children.values()
        }

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self.children.values():
                if child.pid == pid:
                    code = os.waitstatus_to_exitcode(status)
                    child.pid = 0
                    child.last_exit = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
                    child.due = time.monotonic() + RESTART_S

    def _spawn(self, child: Child) -> None:
        child.starts += 1
        child.pid = forked(partial(_become, child))


def forked(become: Callable[[], None]) -> int:
    """Fork; the child does `become` and ends. Returns its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            become()
        finally:
            # It came back, which is by an error alone.
            traceback.print_exc()
            os._exit(1)
    return pid


def _become(child: Child) -> None:
    """Execute it; it dies with the process that it was forked from."""
    kernel.die_with_parent()
    os.setsid()
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    output = os.open(child.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.closerange(3, 256)
    os.chdir(child.cwd)
    if child.slow:
        slow_sync.become_slow(Path(child.slow))
    os.execve(child.argv[0], child.argv, child.env)
