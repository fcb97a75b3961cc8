"""The two clocks: the machine's, and an event loop's for runs on virtual time."""

from __future__ import annotations

import asyncio
import time

from supervisor.contract.boundaries import Clock


class BootClock(Clock):
    """CLOCK_BOOTTIME: unlike CLOCK_MONOTONIC it goes on while the machine is suspended (rule 3)."""

    def now_ms(self) -> int:
        """Milliseconds since boot, rounded down."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


class LoopClock(Clock):
    """The time of an event loop; the wall clock is that plus a constant."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wall_base_ms: int = 0) -> None:
        self._loop = loop
        self._wall_base_ms = wall_base_ms

    def now_ms(self) -> int:
        """Milliseconds of `loop.time()`, rounded down."""
        return int(self._loop.time() * 1000)

    def wall_ms(self) -> int:
        """`now_ms` shifted by the base."""
        return self._wall_base_ms + self.now_ms()
