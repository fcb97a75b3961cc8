"""Dumps of the stacks of a warm program that may hang: Python's own dump, on a signal from the agent."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal

SIGNAL = signal.SIGRTMAX - 7
"""A real-time signal that no library known to us uses."""

FILE = "stacks.txt"
_HIGH_FD = 900


def register(directory: str) -> None:
    """Make SIGNAL append the Python stacks of all threads to FILE in `directory`.

    It works even while the interpreter's lock is held for ever, and costs nothing before. The descriptor is a
    high one: a program that closes all foreign descriptors, and then opens its own files, reuses low ones.
    """
    path = os.path.join(directory, FILE)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
    except OSError:
        return  # a full disk stops no training
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
    except OSError:
        high = fd  # no room for so many: RLIMIT_NOFILE
    else:
        os.close(fd)
    faulthandler.register(SIGNAL, file=high, all_threads=True, chain=False)
