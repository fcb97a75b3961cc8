"""Tests whose time passes at once, and exactly: nothing in them waits for the world."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import ParamSpec

from chaos.sim.cluster.loop import VirtualLoop

P = ParamSpec("P")


def in_virtual_time(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Runs a coroutine on the simulator's loop. It may use no I/O, and no fixture that needs another loop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = VirtualLoop()
        try:
            loop.run_until_complete(test(*args, **kwargs))
        finally:
            loop.close()

    return run
