"""The local files of a transfer. Each step runs in a thread, and its caller may be cancelled meanwhile."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from recovery.io import files
from supervisor.contract.errors import StoreUnreachable

T = TypeVar("T")


class Steps:
    """Runs the steps of transfers in the threads of `executor`; None for those of the event loop."""

    def __init__(self, executor: Executor | None) -> None:
        self._executor = executor

    def begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Start `work`; it is done even if the returned future is cancelled."""
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and return its result."""
        return await self.begin(work)

    async def opened(self, work: Callable[[], T], close: Callable[[T], object]) -> T:
        """Open something by `work`; if this call is cancelled meanwhile, the result is closed."""
        opening = self.begin(work)

        def let_go(done: asyncio.Future[T]) -> None:
            if not done.cancelled() and done.exception() is None:
                _closing = self.begin(partial(close, done.result()))

        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(let_go)
            raise


class Source:
    """A local file that is read in order: `size` bytes from `start`, or all from there when that is None.

    Every method blocks and may be called from any thread.
    """

    def __init__(self, path: str, start: int = 0, size: int | None = None) -> None:
        self._lock = threading.Lock()
        self._at = start
        self._end = None if size is None else start + size
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size`; empty at the end."""
        with self._lock:
            _require(self._fd)
            wanted = size if self._end is None else min(size, self._end - self._at)
            data = os.pread(self._fd, wanted, self._at)
            self._at += len(data)
            return data

    def close(self) -> None:
        """Close the file, after a read that is still in progress."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)


class NewFile:
    """A new local file of `size` bytes, written in any order; it appears when `finish` returns, or never.

    Every method blocks and may be called from any thread. Raises FileExistsError when the name is taken.
    """

    def __init__(self, target: Path, size: int) -> None:
        self._lock = threading.Lock()
        self._directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._opened = files.new_file(self._directory, target.name, durable=False)
            self._fd = self._opened.__enter__()
        except BaseException:
            os.close(self._directory)
            raise
        try:
            files.reserve(self._fd, size)
        except OSError:
            self.give_up()
            raise

    def write_at(self, offset: int, data: bytes) -> None:
        """Put `data` at `offset`."""
        view = memoryview(data)
        with self._lock:
            _require(self._fd)
            while view:
                written = os.pwrite(self._fd, view, offset)
                offset += written
                view = view[written:]

    def finish(self) -> None:
        """Give the file its name."""
        with self._lock:
            _require(self._fd)
            self._fd = -1
            try:
                self._opened.__exit__(None, None, None)
            finally:
                os.close(self._directory)

    def give_up(self) -> None:
        """Remove the file, after a write that is still in progress; without effect after `finish`."""
        reason = StoreUnreachable("the caller has gone away")
        with self._lock:
            if self._fd < 0:
                return
            self._fd = -1
            try:
                with suppress(StoreUnreachable):
                    self._opened.__exit__(StoreUnreachable, reason, None)
            finally:
                os.close(self._directory)


def _require(fd: int) -> None:
    if fd < 0:
        raise StoreUnreachable("the caller has gone away")
