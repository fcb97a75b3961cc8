"""Waiting before trying again: doubling, bounded, and back to the start after a success."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Backoff:
    """Waits `first_ms`, then twice as long each time, at most `most_ms`.

    `apart_ms`: is added to each wait. Daemons that are many take different ones, so that they do not all come
    back at the same moment. It is not drawn by chance: runs must replay exactly.
    """

    def __init__(self, first_ms: int, most_ms: int, apart_ms: int = 0) -> None:
        assert 0 < first_ms <= most_ms
        self._apart_ms = apart_ms
        self._first_ms = first_ms
        self._most_ms = most_ms
        self._next_ms = first_ms

    def reset(self) -> None:
        """The last try succeeded."""
        self._next_ms = self._first_ms

    async def wait(self, hurry: asyncio.Event | None = None) -> None:
        """Sleep, but not longer than until `hurry` is set, and make the next wait longer."""
        delay_ms, self._next_ms = self._next_ms + self._apart_ms, min(2 * self._next_ms, self._most_ms)
        if hurry is None:
            await asyncio.sleep(delay_ms / 1000)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_ms / 1000):
                await hurry.wait()
