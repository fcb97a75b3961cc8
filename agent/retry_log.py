"""Work that fails for a while: two log lines, and retries with pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from supervisor.adapters.backoff import Backoff
from supervisor.contract.boundaries import Clock, Logger
from supervisor.contract.errors import TfSupervisorError

SILENT_MS = (300, 5_000)
"""The first and the longest pause while there is no answer, short enough to notice a recovery soon."""

PRESSED_S = 0.3
MAX_TEXT = 400


class Trouble:
    """One operation, from its first failure until it works again.

    Args:
        what: a clause about the operation, for the log.
        job: its job.
        refused_ms: the first and the longest pause after a refusal.

    Attributes:
        text: the reason of the present failure; empty while it works.
        since_ms: the time of the first failure, on the clock.
    """

    def __init__(
        self, what: str, job: str, clock: Clock, sink: Logger, refused_ms: tuple[int, int] = SILENT_MS
    ) -> None:
        self._what = what
        self._job = job
        self._clock = clock
        self._sink = sink
        self._silent = Backoff(*SILENT_MS)
        self._refused = Backoff(*refused_ms)
        self._kind: type[TfSupervisorError] | None = None
        self._pressed = False
        self._hurry = asyncio.Event()
        self.text = ""
        self.since_ms = 0

    async def failed(self, error: TfSupervisorError) -> None:
        """Log a new failure, and return when the next try is due."""
        if self._kind is None:
            self.since_ms = self._clock.now_ms()
        if type(error) is not self._kind:
            self._kind = type(error)
            self._sink.warning(f"{self._what}; trying again", job=self._job, reason=str(error))
        self.text = f"{self._what}: {error}"[:MAX_TEXT]
        if self._pressed:
            await asyncio.sleep(PRESSED_S)
            return
        self._hurry.clear()
        await (self._silent if error.retryable else self._refused).wait(self._hurry)

    def over(self) -> None:
        """Note a success; log it if the operation had failed before."""
        if self._kind is not None:
            after_ms = self._clock.now_ms() - self.since_ms
            self._sink.info(f"{self._what}: this is over", job=self._job, after_ms=after_ms)
        self._kind, self.text = None, ""
        self._silent.reset()
        self._refused.reset()

    def press(self, *, pressing: bool) -> None:
        """Set whether time is short: then there are no long pauses, and a present one ends."""
        self._pressed = pressing
        if pressing:
            self._hurry.set()


Tell = Callable[[object, Exception], object]
"""Takes an unexpected error and its subject: an attempt, or a job by its UUID."""


def raise_it(_whose: object, error: Exception) -> None:
    """The `Tell` that raises the error."""
    raise error


def require_sound(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Raise the error that ended one of these tasks: background work must not stop in silence."""
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()
