"""Limits around awaited work, measured on our clock: a deadline, or a longest time without progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from supervisor.contract.boundaries import Clock
from supervisor.contract.errors import StoreUnreachable


class Motion:
    """A `Moved` that keeps the time of the last progress. It may be called in any thread.

    Attributes:
        moved_ms: the time of the last call, on the clock; at first the time of its construction.
        total: bytes so far.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.moved_ms = clock.now_ms()
        self.total = 0

    def __call__(self, more_bytes: int = 0) -> None:
        """Note progress, possibly of 0 bytes."""
        self.total += more_bytes
        self.moved_ms = self._clock.now_ms()


@asynccontextmanager
async def within(limit_s: float, reason: str) -> AsyncIterator[None]:
    """Cancel the block after `limit_s`; raise StoreUnreachable with this reason: its outcome is unknown."""
    scope = asyncio.timeout(limit_s)
    try:
        async with scope:
            yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise StoreUnreachable(reason) from error


@asynccontextmanager
async def until(clock: Clock, deadline_ms: int, doing: str) -> AsyncIterator[None]:
    """Cancel the block at `deadline_ms` of `clock`; raise StoreUnreachable: its outcome is unknown."""
    async with within((deadline_ms - clock.now_ms()) / 1000, f"{doing} did not end by its deadline"):
        yield


@asynccontextmanager
async def while_moving(motion: Motion, clock: Clock, quiet_ms: int, doing: str) -> AsyncIterator[None]:
    """Cancel the block once `motion` was not called for `quiet_ms`; raise StoreUnreachable.

    Work of any size on a store of any speed goes on while it makes progress.
    """
    loop = asyncio.get_running_loop()
    scope = asyncio.timeout(None)
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        left_ms = motion.moved_ms + quiet_ms - clock.now_ms()
        if left_ms <= 0:
            scope.reschedule(loop.time())
        else:
            timer = loop.call_later(left_ms / 1000, look)

    motion()
    timer = loop.call_later(quiet_ms / 1000, look)
    try:
        async with scope:
            yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise StoreUnreachable(f"{doing} has not moved for {quiet_ms / 1000:g} s") from error
    finally:
        if timer is not None:
            timer.cancel()
