"""Before the program: wait until the tasks that it needs (`after` in the job file) listen.

A port's holder binds without listening, so a refused connection means that the task is not up yet.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Optional

from .clock import now_ms

NEVER_READY = 75
"""Exit code of an attempt whose program was never run, as not all that it waits for was up in time."""

_LOOK_AGAIN_S = 0.05
_CONNECT_S = 1.0
_MOST_NAMED = 4


def wait(targets: tuple[str, ...], wait_ms: Optional[int]) -> str:
    """Wait until every target (`ROLE:INDEX=HOST:PORT`) accepts a connection; None waits for ever.

    Returns a sentence that names those that never did within `wait_ms`; empty when all are up.
    """
    began = now_ms()
    missing = [each for each in targets if not _listens(each)]
    if missing:
        os.write(2, f"tf-supervisor: waiting for {_named(missing)} to listen\n".encode())
    while missing:
        if wait_ms is not None and now_ms() - began >= wait_ms:
            return f"never ready: {_named(missing)} did not listen within {wait_ms / 1000:g} s"
        time.sleep(_LOOK_AGAIN_S)
        missing = [each for each in missing if not _listens(each)]
    return ""


def _listens(target: str) -> bool:
    host, _, port = target.rpartition("=")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, ValueError):
        return False
    return True


def _named(targets: list[str]) -> str:
    shown = [f"{name} at {address}" for name, _, address in (each.rpartition("=") for each in targets)]
    more = f" and {len(shown) - _MOST_NAMED} more" if len(shown) > _MOST_NAMED else ""
    return ", ".join(shown[:_MOST_NAMED]) + more
