"""The connection to the agent that serves the node's socket. It never blocks, and reconnects by itself."""

from __future__ import annotations

import array
import os
import socket

from .. import protocol

_FIRST_PAUSE_MS = 50
_LONGEST_PAUSE_MS = 250
_BACKLOG_BYTES = 4 << 20
_LONGEST_ADDRESS = 100
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * 4)


class Link:
    """A non-blocking client of the Unix socket at `path`. `sock` is None while no agent is connected."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.sock: socket.socket | None = None
        self._retry_ms = 0
        self._pause_ms = _FIRST_PAUSE_MS
        self._incoming = protocol.LineBuffer()
        self._outgoing = bytearray()
        self._descriptor = -1

    @property
    def retry_ms(self) -> int | None:
        """The time of the next connection; None while connected."""
        return self._retry_ms if self.sock is None else None

    @property
    def backlog(self) -> int:
        """Bytes that the agent has not read yet."""
        return len(self._outgoing)

    def connect(self, now_ms: int) -> bool:
        """Try to connect once. After a failure `retry_ms` is the time of the next try."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            _connect(sock, self._path)
        except OSError:
            sock.close()
            self._retry_ms = now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, _LONGEST_PAUSE_MS)
            return False
        self.sock = sock
        self._incoming = protocol.LineBuffer()
        self._outgoing = bytearray()
        return True

    def welcomed(self) -> None:
        """Note that the agent serves us: if it disconnects, a successor is looked for at once."""
        self._pause_ms = _FIRST_PAUSE_MS

    def send(self, message: object) -> None:
        """Queue a message and send as much as the socket takes; it is dropped while there is no agent."""
        if self.sock is not None:
            self._outgoing += protocol.encode(message)
            self.flush()

    def flush(self) -> bool:
        """Send as much as the socket takes. False if the connection is dead or the agent reads nothing."""
        try:
            while self.sock is not None and self._outgoing:
                del self._outgoing[: self.sock.send(self._outgoing)]
        except BlockingIOError:
            return len(self._outgoing) <= _BACKLOG_BYTES
        except OSError:
            return False
        return True

    def receive(self) -> list[object] | None:
        """The received messages; None if the connection has ended or the peer breaks the protocol."""
        assert self.sock is not None
        try:
            data, extra, _, _ = self.sock.recvmsg(1 << 16, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return []
        except OSError:
            return None
        self._keep_descriptors(extra)
        if not data:
            return None
        try:
            messages = [protocol.decode(line) for line in self._incoming.feed(data)]
        except protocol.ProtocolError:
            return None
        return [message for message in messages if message is not None]

    def take_descriptor(self) -> int:
        """The newest received descriptor, which the caller owns then; -1 without one."""
        taken, self._descriptor = self._descriptor, -1
        return taken

    def _keep_descriptors(self, extra: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i", data[: len(data) - len(data) % 4])
                for fd in fds:
                    self._drop_descriptor()
                    self._descriptor = fd

    def _drop_descriptor(self) -> None:
        fd = self.take_descriptor()
        if fd >= 0:
            os.close(fd)

    def close(self, now_ms: int) -> None:
        """Close the connection; the next try follows after a pause."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None
            self._drop_descriptor()
            self._retry_ms = now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, _LONGEST_PAUSE_MS)


def _connect(sock: socket.socket, path: str) -> None:
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        sock.connect(path)
        return
    # A Unix address has room for 107 bytes; through a descriptor of the directory any path is short.
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    finally:
        os.close(directory)
