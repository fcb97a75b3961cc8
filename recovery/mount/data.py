"""The file system of a job's data: a directory of a store, to be read alone.

Attributes and listings are kept for `KEPT_S`, here and by the kernel. Pages of a file that were read are kept
while its size and time stay the same. Every failure is an OSError.
"""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recovery.mount.backends.backend import Backend, Entry
from recovery.mount.filesystem import Stat, as_os_errors, stat_of, wait_for
from recovery.mount.layout import SIGN
from recovery.mount.reading import ChunkedReader, ChunkPool
from recovery.mount.record import MountAnswer, Trouble
from supervisor.contract.boundaries import Logger
from supervisor.contract.errors import NotFound, TfSupervisorError

if TYPE_CHECKING:
    import asyncio

KEPT_S = 30.0
"""Seconds for which attributes and listings are kept."""

FAILED_S, HURRY_S = 10.0, 1.0
"""Seconds after a failed read in which further ones of the same opening wait for `HURRY_S` alone."""

MOST_CHUNKS = 48
"""Chunks of all open files together that stay in memory."""

MOST_ENTRIES = 50_000
"""Entries of which attributes are kept. A longer listing is read anew each time."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """One opening of a file."""

    name: str
    reader: ChunkedReader
    stat: Stat


class DataFiles:
    """The directory of a backend as a file system. `read` may be called from any thread but the loop's; all
    else on the loop.
    """

    def __init__(self, backend: Backend, loop: asyncio.AbstractEventLoop, sink: Logger) -> None:
        self._backend = backend
        self._loop = loop
        self._sink = sink
        self._numbers = itertools.count(1)
        self._opened: dict[int, _Opened] = {}
        self._failed: dict[int, float] = {}
        self._pool = ChunkPool(MOST_CHUNKS)
        self._entries: OrderedDict[str, tuple[float, Entry]] = OrderedDict()
        self._listings: dict[str, tuple[float, tuple[Entry, ...]]] = {}

    async def answer(self, asked_ms: int) -> MountAnswer:
        """Whether the source is a directory that can be listed."""
        try:
            entry = await self._backend.info("")
            if entry is None:
                return MountAnswer(asked_ms, Trouble.ABSENT, "does not exist")
            if not entry.directory:
                return MountAnswer(asked_ms, Trouble.ABSENT, "is a file; name its directory")
            await self._backend.probe("")
        except TfSupervisorError as error:
            return MountAnswer(asked_ms, Trouble.AWAY if error.retryable else Trouble.REFUSED, str(error))
        return MountAnswer(asked_ms)

    async def stat(self, name: str, number: int | None = None) -> Stat:
        """The status of a file, by its opening if there is one, else by name. Raises OSError."""
        opened = self._opened.get(number) if number is not None else None
        if opened is not None:
            return opened.stat
        with as_os_errors(self._sink, f"look at {name}"):
            if name == SIGN:
                # Not from memory: it shows while the store answers.
                await self._found("")
                return Stat(directory=False, size=0, mtime_ns=0)
            return stat_of(self._kept(name) or await self._found(name))

    async def list(self, name: str) -> tuple[tuple[str, bool], ...]:
        """Names of the children, without `.` and `..`, and whether each is a directory. Raises OSError."""
        with as_os_errors(self._sink, f"list {name}"):
            known = self._listings.get(name)
            if known is None or known[0] < time.monotonic():
                until_s = time.monotonic() + KEPT_S
                known = until_s, await self._backend.list(name)
                self._keep_listing(name, *known)
        return tuple((each.name, each.directory) for each in known[1])

    async def open(self, name: str, flags: int) -> int:
        """Open a file to read; returns its number. Raises OSError."""
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        with as_os_errors(self._sink, f"open {name}"):
            entry = self._kept(name) or await self._found(name)
            if entry.directory:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            reader = ChunkedReader(await self._backend.open(name), self._pool)
        number = next(self._numbers)
        self._opened[number] = _Opened(name, reader, Stat(False, reader.size, entry.mtime_ms * 1_000_000))
        return number

    def read(
        self,
        number: int,
        offset: int,
        size: int,
        limit_s: float,
        in_vain: Callable[[], bool] = lambda: False,
    ) -> bytes | memoryview:
        """Read, from any thread but the loop's. Limits and errors are those of `wait_for`."""
        opened = self._opened.get(number)
        if opened is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        known = opened.reader.peek(offset, size)
        if known is not None:
            return known
        # The kernel reads ahead, and asks once more for what did not come: nobody waits twice as long.
        if time.monotonic() < self._failed.get(number, 0.0) + FAILED_S:
            limit_s = min(limit_s, HURRY_S)
        try:
            with as_os_errors(self._sink, f"read {opened.name}"):
                return wait_for(opened.reader.read(offset, size), self._loop, limit_s, in_vain)
        except OSError:
            self._failed[number] = time.monotonic()
            raise

    async def flush(self, number: int) -> None:
        """Do nothing: the mount writes nothing."""

    async def release(self, number: int) -> None:
        """Close an opening."""
        opened = self._opened.pop(number, None)
        self._failed.pop(number, None)
        if opened is not None:
            await opened.reader.close()

    async def finish(self) -> None:
        """After the unmount: forget all files."""
        for number in tuple(self._opened):
            await self.release(number)

    def _kept(self, name: str) -> Entry | None:
        until_s, entry = self._entries.get(name, (0.0, None))
        return entry if until_s > time.monotonic() else None

    async def _found(self, name: str) -> Entry:
        found = await self._backend.info(name)
        if found is None:
            raise NotFound(f"{name} does not exist")
        self._keep(name, time.monotonic() + KEPT_S, found)
        return found

    def _keep(self, name: str, until_s: float, entry: Entry) -> None:
        self._entries[name] = until_s, entry
        self._entries.move_to_end(name)
        while len(self._entries) > MOST_ENTRIES:
            self._entries.popitem(last=False)

    def _keep_listing(self, name: str, until_s: float, entries: tuple[Entry, ...]) -> None:
        now_s = time.monotonic()
        self._listings = {key: each for key, each in self._listings.items() if each[0] > now_s}
        self._listings.pop(name, None)
        if len(entries) + sum(len(each[1]) for each in self._listings.values()) > MOST_ENTRIES:
            return
        self._listings[name] = until_s, entries
        prefix = f"{name}/" if name else ""
        for entry in entries:
            self._keep(f"{prefix}{entry.name}", until_s, entry)
