"""The machine's clock."""

from __future__ import annotations

import time
from pathlib import Path

from supervisor.contract.boundaries import Clock


class BootClock(Clock):
    """CLOCK_BOOTTIME: unlike CLOCK_MONOTONIC it goes on while the machine is suspended (rule 3)."""

    def now_ms(self) -> int:
        """Milliseconds since boot, rounded down."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


def boot_id() -> str:
    """The machine's boot id. Times on CLOCK_BOOTTIME can be compared only within one boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
