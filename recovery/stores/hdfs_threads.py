"""Blocking calls of the HDFS library, each in a thread of its own.

A hanging thread holds up no other work.

The library's own asyncio classes are not used: their futures are advanced under the interpreter's lock, and
wait for locks that other threads of the library hold while they want the interpreter's (decision 0018).
"""

from __future__ import annotations

import asyncio
import atexit
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from recovery.stores.hdfs_errors import panics_as_errors

T = TypeVar("T")
MOST_THREADS = 64
IDLE_S = 10.0
EXIT_S = 2.0


class TooManyHang(RuntimeError):
    """All threads wait for answers."""


class Threads:
    """Daemon threads, started on demand and ended when idle."""

    def __init__(self, most: int = MOST_THREADS) -> None:
        self._most = most
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0
        self._free = 0
        atexit.register(self.wait_idle, EXIT_S)

    async def run(
        self,
        work: Callable[[], T],
        limit_s: float,
        late: Callable[[T], object] | None = None,
        progress: Callable[[], int] | None = None,
    ) -> T:
        """The result of `work`. Raises what it raises; TimeoutError; TooManyHang.

        Args:
            work: runs in a thread; it goes on after this call has timed out or was cancelled.
            limit_s: limit for its time, or with `progress`, for a pause of the progress.
            late: called in the thread with a result that comes after this call has ended.
            progress: returns a number that grows while the work makes progress.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        handover = threading.Lock()
        given_up = False

        def give(deliver: Callable[[], None]) -> bool:
            with handover, suppress(RuntimeError):  # the loop is closed
                if not given_up:
                    loop.call_soon_threadsafe(deliver)
                    return True
            return False

        def job() -> None:
            with _Caught() as caught, panics_as_errors():
                result = work()
                if not give(partial(answer.set_result, result)) and late is not None:
                    late(result)
            if caught.error is not None:
                give(partial(answer.set_exception, caught.error))

        self._start(job)
        try:
            await _settled(answer, limit_s, progress)
        finally:
            with handover:
                given_up = True
        return answer.result()

    def wait_idle(self, limit_s: float) -> None:
        """Wait until no call is in progress, at most `limit_s`.

        This is called before the interpreter ends too: a call that returned during its end would abort the
        process.
        """
        end = time.monotonic() + limit_s
        while self._count > self._free and time.monotonic() < end:
            time.sleep(0.005)

    def _start(self, job: Callable[[], None]) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
            elif self._count < self._most:
                self._count += 1
                threading.Thread(target=self._serve, name="hdfs", daemon=True).start()
            else:
                raise TooManyHang(f"{self._most} calls wait for answers that do not come")
        self._jobs.put(job)

    def _serve(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._free:
                        self._free -= 1
                        self._count -= 1
                        return
                continue
            job()
            del job
            with self._lock:
                self._free += 1


class _Caught:
    """Catches any exception of its block. A thread passes it to the waiting call, and serves on."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.error = error
        return True


async def _settled(answer: asyncio.Future[T], limit_s: float, progress: Callable[[], int] | None) -> None:
    """Wait for the answer; raise TimeoutError when `limit_s` pass without it and without progress."""
    seen = -1
    while True:
        done, _ = await asyncio.wait({answer}, timeout=limit_s)
        if done:
            return
        now = progress() if progress is not None else seen
        if now == seen:
            raise TimeoutError
        seen = now
