"""Asking the first process of a node or machine, from outside."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

from chaos.machine import kernel

_REQUEST_S = 10.0


def ask(control: Path, **request: object) -> dict[str, object]:
    """One request, one answer.

    Raises:
        OSError: nobody listens, or it does not answer (it is frozen); or what the request led to.
    """
    with _connected(control) as connection:
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as stream:
            line = stream.readline()
    if not line:
        raise ConnectionResetError(f"{control} closed the connection")
    reply = json.loads(line)
    assert isinstance(reply, dict)
    if "error" in reply:
        raise OSError(f"{control}: {reply['error']}")
    return reply


def wait_for(control: Path, deadline_s: float, ended: Callable[[], object] = lambda: None) -> int:
    """Wait until somebody listens; its process id, as we see it.

    Raises:
        OSError: nobody does at the deadline, or `ended` says something else than None before.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            with _connected(control) as connection:
                size = struct.calcsize("3i")
                pid, _, _ = struct.unpack(
                    "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
                )
                return int(pid)
        except OSError:
            if time.monotonic() > deadline or ended() is not None:
                raise
            time.sleep(0.002)


def _connected(control: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_REQUEST_S)
    try:
        with kernel.short(control) as path:
            connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection
