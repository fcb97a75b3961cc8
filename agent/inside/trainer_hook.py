"""Optional, for training programs: report the step without printing it, and ask when to save.

`step(n)` costs one pwrite. Outside the supervisor it does nothing, so a program can always call it.
"""

from __future__ import annotations

import functools
import os
import sys
import time

_last_s = [time.monotonic()]


def step(number: int) -> None:
    """Report that global step `number` is done."""
    path = os.environ.get("TFSUP_STEP_FILE")
    if path:
        os.pwrite(_descriptor(path), b"%20d\n" % number, 0)


def should_save(every_s: float = 600.0) -> bool:
    """Whether a loop that saves by itself is to save now. It then saves before it asks again.

    It asks at each step, in the one process that saves. Where nobody can tell (outside the supervisor, or
    with `checkpoint.cadence: off`) the answer is True every `every_s` seconds.
    """
    ask = getattr(sys, "_tfsup_should_save", None)
    if ask is not None:
        return bool(ask())
    now_s = time.monotonic()
    if now_s < _last_s[0] + every_s:
        return False
    _last_s[0] = now_s
    return True


@functools.lru_cache(maxsize=1)
def _descriptor(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
