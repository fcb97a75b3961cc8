"""For the few tests that must hit a window of less than a second: what a machine that stands still proves."""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar, cast

from supervisor.contract.errors import TfSupervisorError

T = TypeVar("T", bound=Callable[..., object])
_FAILURES = (AssertionError, OSError, TfSupervisorError)
_TICK_S = 0.01
_GAP_S = 0.2
_TRIES = 8


class Watch:
    """Ticks in a thread of its own within the block, and knows for how long it could not.

    `lost_ms`: how long nothing happened here, in all.
    """

    def __init__(self) -> None:
        self.lost_ms = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _tick(self) -> None:
        before = time.monotonic()
        over = False
        while not over:
            over = self._over.wait(_TICK_S)
            now = time.monotonic()
            if now - before >= _GAP_S:
                self.lost_ms += round(1000 * (now - before))
            before = now


def on_a_steady_machine(test: T) -> T:
    """A test that failed while this process stood still for 0.2 s is run again: that run proves nothing.

    A failure with no such gap is one at once, and so is the eighth. The test must leave nothing behind that
    stands in its own way; its fixtures stay. It may be a coroutine.
    """

    @functools.wraps(test)
    def tried(*args: object, **kwargs: object) -> None:
        for left in reversed(range(_TRIES)):
            failure = None
            with Watch() as watch:
                try:
                    test(*args, **kwargs)
                except _FAILURES as error:
                    failure = error
            if _settled(failure, watch, left):
                break

    @functools.wraps(test)
    async def tried_async(*args: object, **kwargs: object) -> None:
        for left in reversed(range(_TRIES)):
            failure = None
            with Watch() as watch:
                try:
                    await cast(Awaitable[object], test(*args, **kwargs))
                except _FAILURES as error:
                    failure = error
            if _settled(failure, watch, left):
                break

    return cast(T, tried_async if inspect.iscoroutinefunction(test) else tried)


def _settled(failure: Exception | None, watch: Watch, left: int) -> bool:
    """Whether a run proves something; raises its failure if it is one."""
    if failure is not None and (not watch.lost_ms or not left):
        raise failure
    return failure is None
