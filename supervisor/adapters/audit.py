"""The audit log: lines that a thread appends to a file or sends to journald, in the order in which they came.

The event loop never waits for the disk. A caller that needs the line on the disk awaits it, with a deadline.
"""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import socket
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from supervisor.contract.boundaries import Logger
from supervisor.contract.errors import Refused, UserError

if TYPE_CHECKING:
    # Clients of a cluster import this module by way of the wire, and read no configuration of a daemon.
    from supervisor.adapters.files.config.daemon import AuditConfig

JOURNAL = "/run/systemd/journal/socket"
IDENTIFIER = "tfsup-audit"
MOST_WAITING = 10_000
"""Most lines that wait for the thread. Further lines are dropped."""
DEADLINE_S = 5.0
CLOSE_S = 2.0
SEND_S = 1.0
_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""Errors of a disk that end without a change of the configuration, so a daemon starts in spite of them."""


class Lines(Protocol):
    """The destination of lines. Errors are OSError."""

    def write(self, line: bytes, *, durable: bool) -> None:
        """Append one line, given without its end. `durable`: it is on the disk afterwards."""

    def close(self) -> None:
        """Close the destination."""


class FileLines:
    """A file that is only appended to, made with mode 0600. After a rotation a new one is made.

    Attributes:
        problem: the reason why it could not be opened at first, such as a full disk; each line tries again.

    Raises UserError for a path that cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.problem: OSError | None = None
        self._path = path
        self._torn = False
        self._fd = -1
        try:
            self._fd = self._open()
        except OSError as error:
            if error.errno not in _PASSING:
                raise UserError(f"audit.file {path}: cannot be written: {error.strerror}") from error
            self.problem = error

    def write(self, line: bytes, *, durable: bool) -> None:
        """Append one line."""
        self._follow()
        rest = b"\n" * self._torn + line + b"\n"
        self._torn = True
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        self._torn = False
        if durable:
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)

    def _follow(self) -> None:
        """Open the file if it is not open, or was moved away by a rotation."""
        if self._fd < 0:
            self._fd = self._open()
            return
        here = os.fstat(self._fd)
        try:
            there = self._path.stat()
            if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                return
        except FileNotFoundError:
            pass
        fd = self._open()
        os.close(self._fd)
        self._fd, self._torn = fd, False

    def _open(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Without O_NONBLOCK a FIFO that nobody reads would hold up the daemon's start.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(self._path, flags, 0o600)


class JournalLines:
    """journald, by its own protocol: one datagram for each line (systemd's "Native Journal Protocol")."""

    def __init__(self, address: str = JOURNAL) -> None:
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(SEND_S)

    def write(self, line: bytes, *, durable: bool) -> None:
        """Send one line; journald itself says when its disk has it."""
        del durable
        fields = f"SYSLOG_IDENTIFIER={IDENTIFIER}\nPRIORITY=6\n".encode()
        self._socket.sendto(b"MESSAGE=" + line + b"\n" + fields, self._address)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class AuditLog:
    """Writes lines to `lines`.

    Args:
        lines: the destination.
        sink: logs when lines cannot be written, and when they can be again.
        required: a change is refused if its line cannot be written.
        problem: the reason why lines cannot be written for now.
    """

    def __init__(
        self, lines: Lines, sink: Logger, *, required: bool = False, problem: OSError | None = None
    ) -> None:
        self.required = required
        self._lines = lines
        self._sink = sink
        self._failing = False
        if problem is not None:
            self._tell(problem)
        self._queue: queue.Queue[tuple[bytes, Future[None], bool] | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._work, name="audit", daemon=True)
        self._thread.start()

    def note(self, line: bytes, *, durable: bool = False) -> Future[None]:
        """Queue one line. The returned future is done when the line is written, or fails with OSError."""
        done: Future[None] = Future()
        try:
            self._queue.put_nowait((line, done, durable))
        except queue.Full:
            self._tell(OSError(f"{MOST_WAITING} lines wait to be written"))
            done.set_exception(OSError("too many lines wait to be written"))
        return done

    async def must_note(self, line: bytes) -> None:
        """Write the line of a change before it is made; raises Refused if that fails and it is `required`."""
        done = self.note(line, durable=self.required)
        if not self.required:
            return
        try:
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.wrap_future(done)
        except (OSError, TimeoutError) as error:
            why = str(error) or f"not within {DEADLINE_S:.0f} s"
            raise Refused(
                f"the audit log cannot be written ({why}), and this daemon makes no change that it cannot "
                "note there (`audit.required`): nothing was done"
            ) from error

    def close(self) -> None:
        """Write the waiting lines, for a bounded time."""
        try:
            self._queue.put(None, timeout=CLOSE_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            line, done, durable = item
            if not done.set_running_or_notify_cancel():
                continue
            try:
                self._lines.write(line, durable=durable)
            except OSError as error:
                self._tell(error)
                done.set_exception(error)
                continue
            if self._failing:
                self._failing = False
                self._sink.info("the audit log is written again")
            done.set_result(None)
        self._lines.close()

    def _tell(self, error: OSError) -> None:
        if self._failing:
            return
        self._failing = True
        next_ = "changes are refused until it can be" if self.required else "requests are served without it"
        self._sink.error("the audit log cannot be written", reason=str(error), next=next_)


def open_audit(config: AuditConfig, sink: Logger) -> AuditLog | None:
    """The audit log of a configuration; None if it has none. Raises UserError."""
    if config.file is not None:
        lines = FileLines(Path(config.file))
        return AuditLog(lines, sink, required=config.required, problem=lines.problem)
    return AuditLog(JournalLines(), sink, required=config.required) if config.journald else None
