"""Ports that a test has to itself: tests that run beside it, in other processes, are given others."""

from __future__ import annotations

import fcntl
import functools
import os
import random
import socket
import tempfile
from pathlib import Path

LOW, HIGH = 10_000, 18_999
"""No connection of this machine begins at one of these by itself, and no agent gives one to a task."""

_own: set[int] = set()


def free_ports(count: int) -> int:
    """The first of so many ports in a row at which nobody listens. They are this process's until it ends."""
    begins = range(LOW, HIGH + 2 - count)
    for low in random.sample(begins, len(begins)):
        wanted = set(range(low, low + count))
        if wanted & _own:
            continue
        try:
            fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, count, low)
        except OSError:
            continue
        _own.update(wanted)
        if all(map(_is_free, wanted)):
            return low
    raise AssertionError(f"no {count} free ports in a row in {LOW}-{HIGH}")


def free_port() -> int:
    """A port at which nobody listens. It is this process's until it ends."""
    return free_ports(1)


@functools.cache
def _locks() -> int:
    """A file with a byte for each port. The kernel gives the locks of a process back when it ends."""
    path = Path(tempfile.gettempdir()) / f"tfsup-test-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
