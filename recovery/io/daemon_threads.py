"""Threads that their process does not wait for when it ends."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
IDLE_S = 60.0
"""A thread without work ends after so long."""


class DaemonThreads(Executor):
    """At most so many threads, for calls that may hang for ever.

    A `ThreadPoolExecutor` would keep a daemon from its end, and so from its restart, until they return. Work
    in progress ends with the process, as by a crash. `nice`: of the threads.
    """

    def __init__(self, most: int, name: str, nice: int = 0) -> None:
        self._most = most
        self._name = name
        self._nice = nice
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._count = 0
        self._lock = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `Executor`."""
        future: Future[T] = Future()
        self._calls.put(partial(_settle, future, partial(fn, *args, **kwargs)))
        with self._lock:
            if self._count < self._most:
                self._count += 1
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        return future

    def _serve(self) -> None:
        if self._nice:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._nice)
        while True:
            try:
                call = self._calls.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    # A call that was put before this look would else wait for the next one.
                    if self._calls.empty():
                        self._count -= 1
                        return
            else:
                call()


def _settle(future: Future[T], work: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        with _Failing(future):
            future.set_result(work())


class _Failing:
    """Gives an exception of its block to the future, and lets the thread serve on."""

    def __init__(self, future: Future[T]) -> None:
        self._fail = future.set_exception

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self._fail(error)
        return True
