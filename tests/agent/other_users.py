"""Users that own tasks in tests: numbers of their own, and an interpreter that they can run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_APART, _PROCESSES = 10_000, 100_000


def open_python() -> str:
    """An interpreter that other users can reach: that of the tests may be in somebody's home."""
    above = Path(sys.executable).resolve().parents
    return sys.executable if all(each.stat().st_mode & 0o001 for each in above) else "/usr/bin/python3"


def own_uid(first: int) -> int:
    """A number for `first`, below 65,536, that no test in another process has, of this suite or another.

    What has the uid of a job is killed, whoever has started it.
    """
    return first + _APART * (1 + os.getpid() % _PROCESSES)
