"""Optional, for training programs: report the step without printing it.

`step(n)` costs one pwrite. Outside the supervisor it does nothing, so a program can always call it.
"""

from __future__ import annotations

import functools
import os


def step(number: int) -> None:
    """Report that global step `number` is done."""
    path = os.environ.get("TFSUP_STEP_FILE")
    if path:
        os.pwrite(_descriptor(path), b"%20d\n" % number, 0)


@functools.lru_cache(maxsize=1)
def _descriptor(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
