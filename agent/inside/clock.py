"""This machine's time and boot id, in the form of the protocol."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds on CLOCK_BOOTTIME, which counts suspension."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def boot_id() -> str:
    """The id of this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
