"""For the few tests that must hit a window of less than a second: what a machine that stands still proves."""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
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


class _Try:
    """One run of a test: a failure while nothing happened here is swallowed, but not the last.

    `proved`: the run counts.
    """

    def __init__(self, *, last: bool) -> None:
        self.proved = False
        self._last = last
        self._watch = Watch()

    def __enter__(self) -> None:
        self._watch.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._watch.__exit__(kind, error, trace)
        again = isinstance(error, _FAILURES) and self._watch.lost_ms > 0 and not self._last
        self.proved = not again
        return again


def _tries() -> Iterator[_Try]:
    for number in range(1, _TRIES + 1):
        each = _Try(last=number == _TRIES)
        yield each
        if each.proved:
            return


def on_a_steady_machine(test: T) -> T:
    """A test that failed while this process stood still for 0.2 s is run again: that run proves nothing.

    A failure with no such gap is one at once, and so is the eighth. The test must leave nothing behind that
    stands in its own way; its fixtures stay. It may be a coroutine.
    """

    @functools.wraps(test)
    def tried(*args: object, **kwargs: object) -> None:
        for each in _tries():
            with each:
                test(*args, **kwargs)

    @functools.wraps(test)
    async def tried_async(*args: object, **kwargs: object) -> None:
        for each in _tries():
            with each:
                await cast(Awaitable[object], test(*args, **kwargs))

    return cast(T, tried_async if inspect.iscoroutinefunction(test) else tried)
