"""The launcher's end of the socket through which a running program gets the addresses of its cluster."""

from __future__ import annotations

import json
import os
import socket
from typing import Dict, List, Optional, Tuple

ANSWER_MS = 30_000
"""A program whose coordinator is still to be made answers when it is."""
MOST_TEXT = 2000
_MOST_ANSWER_BYTES = 1 << 16
_COLD = "its program was started cold, and takes no addresses while it runs"
_CLOSED = "its program has closed the socket for addresses"


def pair() -> Tuple[int, int]:
    """The descriptors of the launcher and of the program, of a new socket that keeps messages apart."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    # No objects: in the child they would close descriptors that by then are the program's.
    return ours.detach(), theirs.detach()


class Peers:
    """The socket of one attempt: `fd`, or -1 if its program was not forked by this launcher."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._why = _COLD
        self._asked_ms: Optional[int] = None

    def tell(self, cluster: Dict[str, List[str]], now: int) -> str:
        """Send the addresses to the program. Returns why it cannot take them; empty if it may."""
        if self.fd < 0:
            return self._why
        try:
            os.write(self.fd, json.dumps({"cluster": cluster}).encode())
        except OSError as error:
            return f"its program cannot be told: {error.strerror}"
        self._asked_ms = now
        return ""

    def heard(self) -> str:
        """Read an answer. Returns the failure that it tells of, or empty. After the last one `fd` is -1."""
        try:
            raw = os.read(self.fd, _MOST_ANSWER_BYTES)
        except BlockingIOError:
            return ""
        except OSError:
            raw = b""
        waits, self._asked_ms = self._asked_ms is not None, None
        if not raw:
            self.close()
            return self._why if waits else ""
        try:
            failure = json.loads(raw).get("failed", "")
        except (ValueError, AttributeError, RecursionError):
            failure = "its program gave no answer of ours"
        return str(failure)[:MOST_TEXT]

    def overdue(self, now: int) -> str:
        """The failure of a program that has not answered in time; empty if it has, or still may."""
        if self._asked_ms is None or now < self._asked_ms + ANSWER_MS:
            return ""
        self._asked_ms = None
        return f"its program has no coordinator that took the addresses within {ANSWER_MS // 1000} s"

    def close(self) -> None:
        """Close the socket."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd, self._why = -1, _CLOSED
