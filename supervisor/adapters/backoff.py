"""Trying again: how long to wait (doubling, bounded, from the start after a success), and what to log."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from supervisor.contract.boundaries import Clock, Logger
from supervisor.contract.errors import TfSupervisorError

SAY_AGAIN_MS = 60_000
"""How long a reason that was logged is not logged again."""


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


class Retries:
    """The log lines about work that is tried again until it succeeds, however often that is.

    A failure is logged at once, and once a minute while its reason lasts. The success after it is logged too,
    with the time since the first failure and the number of failures.

    Attributes:
        trouble: the reason of the last failure; empty after a success.
    """

    def __init__(self, clock: Clock, sink: Logger) -> None:
        self._clock = clock
        self._sink = sink
        self._since_ms: int | None = None
        self._failures = 0
        self._said: dict[tuple[str, str], int] = {}
        self.trouble = ""

    def failed(self, event: str, error: TfSupervisorError, **fields: object) -> None:
        """Log a failure, unless the last minute has a line about it."""
        now_ms, line = self._clock.now_ms(), (event, str(error))
        self.trouble = line[1]
        if self._since_ms is None:
            self._since_ms, self._failures = now_ms, 0
        self._failures += 1
        # Members of etcd that fail in turns have different reasons.
        self._said = {each: at for each, at in self._said.items() if now_ms - at < SAY_AGAIN_MS}
        if line not in self._said:
            self._said[line] = now_ms
            self._sink.warning(event, **fields, reason=line[1])

    def over(self, event: str, **fields: object) -> None:
        """Log a success, if it follows a failure."""
        if self._since_ms is not None:
            after_ms = self._clock.now_ms() - self._since_ms
            self._sink.info(event, **fields, after_ms=after_ms, failures=self._failures)
            self._since_ms = None
            self._said.clear()
            self.trouble = ""
