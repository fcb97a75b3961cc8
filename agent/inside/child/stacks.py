"""Dumps of the stacks of a warm program that may hang: Python's own dump, on a signal from the agent."""

from __future__ import annotations

import faulthandler
import os
import signal

from . import descriptors

SIGNAL = signal.SIGRTMAX - 7
"""A real-time signal that no library known to us uses."""

FILE = "stacks.txt"


def register(directory: str) -> None:
    """Make SIGNAL append the Python stacks of all threads to FILE in `directory`.

    It works even while the interpreter's lock is held for ever, and costs nothing before.
    """
    path = os.path.join(directory, FILE)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
    except OSError:
        return  # a full disk stops no training
    faulthandler.register(SIGNAL, file=descriptors.raised(fd), all_threads=True, chain=False)
