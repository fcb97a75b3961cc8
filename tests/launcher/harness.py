"""A small agent for real launchers: it serves the socket in a thread, records all, answers pulls as told."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from agent.inside import protocol
from agent.inside.child import warm
from agent.inside.clock import now_ms
from agent.inside.processes import fence

INSIDE = Path(protocol.__file__).parent
T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T | None], timeout_s: float = 30.0) -> T:
    """The first truthy value of `condition`; fails loudly after `timeout_s`."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        time.sleep(0.002)
    raise AssertionError(f"no {what} within {timeout_s} s")


def of(attempt: str) -> Callable[[protocol.Started | protocol.Exited], bool]:
    """Matches what is said of one attempt."""
    return lambda message: message.attempt == attempt


def port_of(answer: object) -> int:
    assert isinstance(answer, protocol.Reserved), answer
    return answer.port


class Agent:
    """Listens on `path` as incarnation `name`; `grant_ms` None means that pulls are not answered.

    `deadlines_ms`: what each answer gave. By default it is enough for a machine that stands still at times.
    """

    def __init__(
        self, path: Path, name: str = "inc1", grant_ms: int | None = 60_000, *, refuse: bool = False
    ) -> None:
        self.name = name
        self.grant_ms = grant_ms
        self.refuse = refuse
        self.messages: list[tuple[int, object]] = []
        self.deadlines_ms: list[int] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Bound beside and renamed, as a successor takes over the path.
        fresh = path.with_suffix(f".{name}")
        self._listener.bind(str(fresh))
        self._listener.listen()
        fresh.rename(path)
        self._peer: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Die: the listener and the connection go at once."""
        for sock in (self._listener, self._peer):
            if sock is not None:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                sock.close()
        self._thread.join(5)

    def send(self, message: object) -> None:
        peer = wait_for("connection", lambda: self._peer)
        peer.sendall(protocol.encode(message))

    def all(self, kind: type[T]) -> list[T]:
        return [message for _, message in list(self.messages) if isinstance(message, kind)]

    def expect(
        self, kind: type[T], which: Callable[[T], bool] = lambda _: True, timeout_s: float = 30.0
    ) -> T:
        """The newest message of `kind` for which `which` holds, when there is one."""

        def newest() -> T | None:
            return next((each for each in reversed(self.all(kind)) if which(each)), None)

        return wait_for(kind.__name__, newest, timeout_s)

    def received_ms(self, message: object) -> int:
        return next(at for at, each in self.messages if each is message)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer:
                self._talk(peer)

    def _talk(self, peer: socket.socket) -> None:
        buffer = protocol.LineBuffer()
        while True:
            try:
                data = peer.recv(1 << 16)
            except OSError:
                return
            if not data:
                return
            for line in buffer.feed(data):
                message = protocol.decode(line)
                self.messages.append((now_ms(), message))
                self._answer(peer, message)

    def _answer(self, peer: socket.socket, message: object) -> None:
        reply: object | None = None
        deadlines_ms = []
        if isinstance(message, protocol.Hello):
            reply = protocol.Refuse("no") if self.refuse else protocol.Welcome(protocol.PROTOCOL, self.name)
        elif isinstance(message, protocol.Pull) and self.grant_ms is not None:
            reply = protocol.Grant(message.stamp_ms, self.grant_ms, self.name)
            deadlines_ms = [message.stamp_ms + reply.remaining_ms]
        if reply is not None:
            try:
                peer.sendall(protocol.encode(reply))
                self._peer = peer  # the test may talk only after the welcome
                self.deadlines_ms += deadlines_ms
            except OSError:
                pass


class Rig:
    """One launcher process, its directories, and shorthands for what an agent tells it."""

    def __init__(self, root: Path, process: subprocess.Popen[bytes]) -> None:
        self.root = root
        self.process = process
        self._count = 0

    @property
    def socket_path(self) -> Path:
        return self.root / "agent.sock"

    def write(self, name: str, source: str) -> Path:
        path = self.root / name
        path.write_text(source)
        return path

    def start(self, agent: Agent, *argv: str, attempt: str | None = None, **options: object) -> str:
        self._count += 1
        name = attempt or f"digits/worker:0@1.{self._count}"
        fields: dict[str, object] = {
            "attempt": name,
            "incarnation": agent.name,
            "argv": argv,
            "cwd": str(self.root),
            "attempt_dir": str(self.root / "logs" / str(self._count)),
            **options,
        }
        agent.send(protocol.from_plain(protocol.Start, json.loads(json.dumps(fields))))
        return name

    def log(self, number: int | None = None) -> bytes:
        return (self.root / "logs" / str(number or self._count) / "output.log").read_bytes()

    def logged(self, text: str, timeout_s: float = 30.0) -> bytes:
        """The log, when `text` is in it."""

        def read() -> bytes | None:
            try:
                content = self.log()
            except FileNotFoundError:
                return None
            return content if text.encode() in content else None

        return wait_for(f"{text!r} in the log", read, timeout_s)

    def run(self, agent: Agent, *argv: str, **options: object) -> protocol.Exited:
        """Start, wait for the confirmed exit, acknowledge it."""
        name = self.start(agent, *argv, attempt=None, **options)
        exited = agent.expect(protocol.Exited, lambda each: each.attempt == name and each.confirmed_dead)
        agent.send(protocol.AckExit(name))
        return exited

    def reserve(self, agent: Agent, name: str, low: int, high: int, **options: object) -> object:
        fields = {"lock_dir": str(self.root / "locks"), **options}
        (self.root / "locks").mkdir(exist_ok=True)
        body = {"reservation": name, "low": low, "high": high, **fields}
        before = len(agent.messages)
        agent.send(protocol.from_plain(protocol.Reserve, json.loads(json.dumps(body))))

        def answer() -> object | None:
            for _, message in list(agent.messages[before:]):
                if isinstance(message, protocol.Reserved | protocol.ReserveFailed):
                    return message
            return None

        return wait_for("answer to reserve", answer)


def marked(launcher_id: str, env: object) -> dict[str, str]:
    """The environment that an agent starts this launcher in."""
    assert isinstance(env, dict)
    return {**warm.launcher_environment(env), fence.MARKER_VARIABLE: f"{launcher_id}#test"}


@contextmanager
def launcher(python: str = sys.executable, **overrides: object) -> Iterator[Rig]:
    """A launcher in a fresh directory, killed with all that it started when the block ends."""
    root = Path(tempfile.mkdtemp(prefix="launcher-"))
    config: dict[str, object] = {
        "protocol": protocol.PROTOCOL,
        "launcher_id": root.name,
        "job": "digits",
        "socket": str(root / "agent.sock"),
        "state_dir": str(root / "state"),
        # `python` is this interpreter, whatever the caller's PATH has first.
        "env": {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(root),
            "LANG": "C.UTF-8",
        },
        "pull_ms": 50,
        "idle_pull_ms": 100,
        **overrides,
    }
    path = root / "config.json"
    path.write_text(json.dumps(config))
    with (root / "launcher.err").open("wb") as errors:
        process = subprocess.Popen(
            [python, str(INSIDE), str(path)],
            stdout=errors,
            stderr=errors,
            env=marked(root.name, config["env"]),
            start_new_session=True,
        )
    rig = Rig(root, process)
    try:
        yield rig
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        assert fence.fence(f"{root.name}#").confirmed_dead
        complaints = (root / "launcher.err").read_text()
        shutil.rmtree(root, ignore_errors=True)
        assert "Traceback" not in complaints, complaints
