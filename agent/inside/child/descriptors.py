"""Descriptors that are ours in a training program."""

from __future__ import annotations

import fcntl
import os

_HIGH_FD = 900


def raised(fd: int) -> int:
    """The same file under a high number, closed at an exec; `fd` itself is closed.

    A program that closes all foreign descriptors, and then opens its own files, reuses low numbers.
    """
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
    except OSError:
        return fd  # no room for so many: RLIMIT_NOFILE
    os.close(fd)
    return high
