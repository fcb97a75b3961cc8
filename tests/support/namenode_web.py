"""The HTTP port of a NameNode: with one behind it, or with answers of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WAIT_S = 20.0


class Door(ThreadingHTTPServer):
    """Hands on to `behind`.

    Attributes:
        instead: by method, what is answered without asking it.
        lost: methods whose answers are not handed on.
        asked: method and path, in order.
    """

    daemon_threads = True

    def __init__(self, behind: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Through)
        self.behind = behind
        self.instead: dict[str, tuple[int, bytes]] = {}
        self.lost: set[str] = set()
        self.asked: list[tuple[str, str]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def pass_on(self, method: str, path: str) -> tuple[int, bytes]:
        behind = HTTPConnection(self.behind, timeout=WAIT_S)
        behind.request(method, path)
        came = behind.getresponse()
        body = came.read()
        behind.close()
        return came.status, body


class _Through(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        door = self.server
        assert isinstance(door, Door)
        door.asked.append((self.command, self.path))
        status, body = door.instead.get(self.command) or door.pass_on(self.command, self.path)
        if self.command in door.lost:
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_args: object) -> None:
        """Nothing to say."""


@contextmanager
def opened(behind: str = "") -> Iterator[Door]:
    """A door that is served; also after an error in the block nobody serves it any more."""
    with Door(behind) as door:
        serving = threading.Thread(target=door.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield door
        finally:
            door.shutdown()
            serving.join()
