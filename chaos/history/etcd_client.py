"""A client of etcd that shares nothing with the product's: the JSON gateway of each member, over HTTP."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

EVERYTHING = base64.b64encode(b"\0").decode()


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """The access of a recorder to etcd.

    Attributes:
        endpoints: of each member: `host:port`, or the path of a Unix socket.
        cluster: the product's name for the cluster.
        data: the members' data directories.
        network: entered while a connection is made, for members in another network than ours.
    """

    endpoints: tuple[str, ...]
    cluster: str
    data: tuple[Path, ...] = ()
    certificates: Certificates | None = None
    network: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def prefix(self) -> str:
        """The prefix of the product's keys."""
        return f"/tfsup/{self.cluster}/"


class NoAnswer(OSError):
    """A member does not answer, or not as etcd does."""


def now_ms() -> float:
    """CLOCK_BOOTTIME."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000


def decoded(text: object) -> str:
    """Keys and values travel in base64; what is no UTF-8 (pieces of shipped code) is no record of ours."""
    return base64.b64decode(str(text)).decode(errors="replace") if text else ""


def number(body: dict[str, object], name: str) -> int:
    """Integers travel as strings, and 0 not at all."""
    return int(str(body.get(name, 0)))


def part(body: dict[str, object], name: str) -> dict[str, object]:
    """An object in an answer; empty without it."""
    found = body.get(name, {})
    return found if isinstance(found, dict) else {}


def parts(body: dict[str, object], name: str) -> list[dict[str, object]]:
    """A list of objects in an answer."""
    found = body.get(name, [])
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


class _Connection(http.client.HTTPConnection):
    """To a member, made inside its network."""

    def __init__(self, access: EtcdAccess, endpoint: str, timeout_s: float) -> None:
        self._path = endpoint if endpoint.startswith("/") else ""
        host, _, port = "localhost:80".rpartition(":") if self._path else endpoint.rpartition(":")
        super().__init__(host, int(port), timeout=timeout_s)
        self._access = access

    def connect(self) -> None:
        """Open it. Raises OSError."""
        with self._access.network():
            if self._path:
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.settimeout(self.timeout)
                self.sock.connect(self._path)
            else:
                self.sock = socket.create_connection((self.host, self.port), self.timeout)
        files = self._access.certificates
        if files is not None:
            context = ssl.create_default_context(cafile=str(files.ca))
            context.load_cert_chain(files.certificate, files.key)
            self.sock = context.wrap_socket(self.sock, server_hostname=self.host)


def ask(access: EtcdAccess, endpoint: str, verb: str, body: object, timeout_s: float) -> dict[str, object]:
    """One request, such as `kv/range`. Raises NoAnswer."""
    connection = _Connection(access, endpoint, timeout_s)
    try:
        connection.request("POST", f"/v3/{verb}", json.dumps(body))
        response = connection.getresponse()
        answer: object = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswer(f"{endpoint}: {error}") from error
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK or not isinstance(answer, dict):
        raise NoAnswer(f"{endpoint}: {response.status} {str(answer)[:200]}")
    return answer


class Watch:
    """A watch of every key from a revision on, at one member. `close` may come from another thread."""

    def __init__(self, access: EtcdAccess, endpoint: str, from_revision: int, timeout_s: float) -> None:
        self._connection = _Connection(access, endpoint, timeout_s)
        body = {
            "create_request": {
                "key": EVERYTHING,
                "range_end": EVERYTHING,
                "start_revision": str(from_revision),
                "fragment": True,
            }
        }
        try:
            self._connection.request("POST", "/v3/watch", json.dumps(body))
            # Only what comes after the answer's head may take any time.
            self._response = self._connection.getresponse()
            self._socket().settimeout(None)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise NoAnswer(f"{endpoint}: {error}") from error

    def _socket(self) -> socket.socket:
        found: object = self._connection.sock
        if not isinstance(found, socket.socket):
            raise NoAnswer("the member has closed the watch")
        return found

    def results(self) -> Iterator[dict[str, object]]:
        """Answers until the member ends them, or `close`. Raises NoAnswer."""
        try:
            while line := self._response.readline():
                yield part(json.loads(line), "result")
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            # AttributeError: http.client drops its file under a reader when another thread closes it.
            raise NoAnswer(str(error)) from error

    def close(self) -> None:
        """End it; a reader that waits is woken."""
        found: object = self._connection.sock
        if isinstance(found, socket.socket):
            try:
                found.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already
        self._connection.close()
