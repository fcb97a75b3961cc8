"""The wait before the program: until its directory is mounted and the tasks of `after` listen.

The holder of a port binds without listening, so a refused connection means that the task is not up yet.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from typing import Optional

from ..clock import now_ms

NEVER_READY = 75
"""Exit code of an attempt whose program was not run because a task of `after` was not up in time."""

NO_DIRECTORY = 74
"""Exit code of an attempt whose program was not run because its checkpoint directory was not mounted in
time."""

_LOOK_AGAIN_S = 0.05
_CONNECT_S = 1.0
_MOST_NAMED = 4


def wait(targets: tuple[str, ...], wait_ms: Optional[int]) -> str:
    """Wait until every target (`ROLE:INDEX=HOST:PORT`) accepts a connection; None waits for ever.

    Returns a sentence that names the targets that did not within `wait_ms`; empty if all are up.
    """
    began = now_ms()
    missing = silent(list(targets))
    if missing:
        os.write(2, f"tf-supervisor: waiting for {_named(missing)} to listen\n".encode())
    while missing:
        if wait_ms is not None and now_ms() - began >= wait_ms:
            return f"never ready: {_named(missing)} did not listen within {wait_ms / 1000:g} s"
        time.sleep(_LOOK_AGAIN_S)
        missing = silent(missing)
    return ""


def wait_to_see(path: str, wait_ms: int) -> str:
    """Wait until the file `path` exists; an empty path needs no wait.

    It is the sign of a mount. Without the mount its directory looks empty, and a program would begin from
    scratch. Returns the failure; empty if the file exists.
    """
    began, told = now_ms(), False
    while path:
        try:
            os.stat(path)
            break
        except OSError as error:
            failure = f"its directory {os.path.dirname(path)} is not mounted: {error.strerror}"
        if now_ms() - began >= wait_ms:
            return failure
        if not told:
            os.write(2, f"tf-supervisor: waiting, as {failure}\n".encode())
            told = True
        time.sleep(_LOOK_AGAIN_S)
    return ""


def silent(targets: list[str]) -> list[str]:
    """The targets that accept no connection now.

    All are tried at the same time, so one that drops packets holds up no other.
    """
    listening = set()
    with selectors.DefaultSelector() as selector:
        for target in targets:
            for sock in _connecting(target):
                selector.register(sock, selectors.EVENT_WRITE, target)
        end = time.monotonic() + _CONNECT_S
        while selector.get_map() and time.monotonic() < end:
            for key, _ in selector.select(max(0, end - time.monotonic())):
                selector.unregister(key.fileobj)
                assert isinstance(key.fileobj, socket.socket)
                if key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    listening.add(key.data)
                key.fileobj.close()
        for key in list(selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
    return [target for target in targets if target not in listening]


def _connecting(target: str) -> list[socket.socket]:
    """Connecting sockets for each address of a target; none if its name is unknown."""
    host, _, port = target.rpartition("=")[2].rpartition(":")
    found = []
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return []
    for family, kind, protocol, _, address in addresses:
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError:
            continue  # a machine without this family
        sock.setblocking(False)
        if sock.connect_ex(address) in (0, errno.EINPROGRESS):
            found.append(sock)
        else:
            sock.close()
    return found


def _named(targets: list[str]) -> str:
    shown = [f"{name} at {address}" for name, _, address in (each.rpartition("=") for each in targets)]
    more = f" and {len(shown) - _MOST_NAMED} more" if len(shown) > _MOST_NAMED else ""
    return ", ".join(shown[:_MOST_NAMED]) + more
