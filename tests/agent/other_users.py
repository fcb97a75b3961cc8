"""Users that own tasks in tests: numbers of their own, and an interpreter that they can run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def open_python() -> str:
    """An interpreter that other users can reach: that of the tests may be in somebody's home."""
    above = Path(sys.executable).resolve().parents
    return sys.executable if all(each.stat().st_mode & 0o001 for each in above) else "/usr/bin/python3"


def own_uid(first: int) -> int:
    """`first` in the first process of a suite, another number in each of the others."""
    return first + 1000 * (_WORKER % 4)
