"""For the few tests that must hit a window of less than a second: what a machine that stands still proves."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, Self

P = ParamSpec("P")
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

    def __exit__(self, *_: object) -> None:
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


def on_a_steady_machine(test: Callable[P, None]) -> Callable[P, None]:
    """A test that failed while this process stood still for 0.2 s is run again: that run proves nothing.

    A failure with no such gap is one at once, and so is the eighth. The test must leave nothing behind.
    """

    @functools.wraps(test)
    def tried(*args: P.args, **kwargs: P.kwargs) -> None:
        for left in reversed(range(_TRIES)):
            failure = None
            with Watch() as watch:
                try:
                    test(*args, **kwargs)
                except (AssertionError, OSError) as error:
                    failure = error
            if failure is None:
                break
            if not watch.lost_ms or not left:
                raise failure

    return tried
