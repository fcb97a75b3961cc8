"""Blocking work on files in another thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from recovery.io.files import GoOn, mapped_errors
from supervisor.contract.errors import StoreUnreachable

T = TypeVar("T")


async def stoppable(threads: Executor | None, work: Callable[[GoOn], T]) -> T:
    """Run long work, which asks the `GoOn` at each chunk: it stops there once this call is cancelled."""
    abandoned = threading.Event()

    def go_on() -> None:
        if abandoned.is_set():
            raise StoreUnreachable("the caller has gone away")

    try:
        return await asyncio.get_running_loop().run_in_executor(threads, work, go_on)
    except asyncio.CancelledError:
        abandoned.set()
        raise


class Worker:
    """Runs work in threads. An OSError becomes an error of our tree that says what was being done."""

    def __init__(self, threads: Executor | None, doing: str) -> None:
        self._threads = threads
        self._doing = doing

    async def run(self, work: Callable[[], T]) -> T:
        """Run short work to its end."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._mapped, work)

    async def run_stoppable(self, work: Callable[..., T]) -> T:
        """Run long work, which takes `go_on`; see `stoppable`."""
        return await stoppable(self._threads, lambda go_on: self._mapped(partial(work, go_on=go_on)))

    def _mapped(self, work: Callable[[], T]) -> T:
        with mapped_errors(self._doing):
            return work()
