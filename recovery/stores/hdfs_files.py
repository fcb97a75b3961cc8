"""Open files in HDFS: bytes to and from DataNodes, with a deadline for every piece."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import google_crc32c
from hdfs_native import FileReader

from recovery.stores.hdfs_errors import Failure, Meaning, read_failure
from recovery.stores.hdfs_threads import Threads
from supervisor.adapters.backoff import Backoff
from supervisor.contract.boundaries import Moved, unwatched
from supervisor.contract.errors import NotFound, StoreUnreachable, TfSupervisorError

if TYPE_CHECKING:
    from hdfs_native._internal import RawFileWriter

T = TypeVar("T")
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Patience:
    """The time limits for HDFS, in milliseconds.

    Attributes:
        answer_ms: limit for one answer of a NameNode; then the next one is asked, on a new connection.
        call_ms: limit for one call with all its retries.
        list_ms: limit for one listing, which takes an answer for each thousand entries.
        piece_ms: limit for one mebibyte to or from DataNodes.
        close_ms: limit for closing a file, which waits until its last block is on enough DataNodes.
        pause_ms: pause before the second attempt; doubled up to `longest_pause_ms`.
    """

    answer_ms: int = 4_000
    call_ms: int = 20_000
    list_ms: int = 4_000
    piece_ms: int = 10_000
    close_ms: int = 30_000
    pause_ms: int = 100
    longest_pause_ms: int = 2_000

    def pauses(self) -> Backoff:
        """The pauses between attempts."""
        return Backoff(self.pause_ms, self.longest_pause_ms)


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A NameNode's record of a file or directory; `mtime_ms` is on its wall clock."""

    path: str
    size: int
    is_dir: bool
    mtime_ms: int


class DataLost(StoreUnreachable):
    """DataNodes broke off a transfer, or made no progress for too long.

    Another attempt may use other DataNodes.
    """


class NotJoined(DataLost):
    """The parts of a file could not be joined. The file can still be written in one piece."""


@dataclass(frozen=True, slots=True)
class Place:
    """A path in a cluster, with the errors of our tree for failures there."""

    path: str
    uri: str
    patience: Patience
    threads: Threads
    error: Callable[[Failure, str], TfSupervisorError]


class HdfsReader:
    """An open file. Several reads may run at the same time."""

    def __init__(self, place: Place, raw: FileReader, reopen: Callable[[], Awaitable[FileReader]]) -> None:
        self.path = place.path
        self.size = len(raw)
        self._place = place
        self._raw: FileReader | None = raw
        self._reopen = reopen

    async def read(self, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset`; fewer at the end. Raises DataLost, NotFound, Refused."""
        wanted = min(length, self.size - offset)
        if wanted <= 0:
            return b""
        return await self._within(wanted, lambda raw: raw.read_range(offset, wanted))

    async def read_into(
        self, offset: int, length: int, take: Callable[[int, bytes], None]
    ) -> tuple[int, int]:
        """Pass at most `length` bytes from `offset` to `take(offset, bytes)` as they arrive.

        `take` is called in a thread. It may get the same bytes again, and may be called once after this call
        has ended. Its errors (OSError, ours) are raised as they are; else as `read` does. No range is ever
        whole in memory: that costs less processor time than `read`.

        Returns their number and their crc32c.
        """
        wanted = min(length, self.size - offset)
        handed_on = 0
        left = False

        def fetch(raw: FileReader) -> tuple[int, int, Exception | None]:
            nonlocal handed_on
            at, crc = offset, 0
            for chunk in raw.read_range_stream(offset, wanted):
                if left:
                    break
                try:
                    take(at, chunk)
                except (OSError, TfSupervisorError) as error:
                    return at - offset, crc, error
                crc = google_crc32c.extend(crc, chunk)
                at += len(chunk)
                handed_on += len(chunk)
            return at - offset, crc, None

        try:
            taken, crc, failure = await self._within(wanted, fetch, lambda: handed_on)
        finally:
            left = True
        if failure is not None:
            raise failure
        return taken, crc

    async def _within(
        self, wanted: int, work: Callable[[FileReader], T], progress: Callable[[], int] | None = None
    ) -> T:
        """Do `work` on the open file in a thread, with retries.

        With `progress` the limit is for a pause of the progress.
        """
        patience = self._place.patience
        limit_s = (patience.piece_ms + (0 if progress else wanted // PIECE_BYTES * 100)) / 1000
        clock = asyncio.get_running_loop().time
        end = clock() + patience.call_ms / 1000
        pauses = patience.pauses()
        while True:
            failure = Failure(Meaning.LOST, f"its DataNodes sent nothing for {limit_s:g} s")
            cause: Exception | None = None
            raw = self._raw or await self._open_again()
            try:
                return await self._place.threads.run(partial(work, raw), limit_s, progress=progress)
            except TimeoutError as error:
                cause = error
            except (OSError, RuntimeError, ValueError) as error:
                cause, failure = error, _broken(error)
            if self._raw is raw:
                self._raw = None
            if failure.meaning is not Meaning.LOST or clock() >= end:
                raise self._place.error(failure, f"read {self.path}") from cause
            await pauses.wait()

    async def _open_again(self) -> FileReader:
        """Look the blocks up again: they may have moved."""
        raw = await self._reopen()
        if len(raw) != self.size:
            raise NotFound(f"{self.path} in {self._place.uri} was replaced while it was read")
        self._raw = raw
        return raw


class HdfsWriter:
    """A file that is being written.

    It exists once `close` has returned. To give up before that, call `abandon`.

    After an error or a cancelled call a writer is broken: only `abandon` works.

    It holds the library's inner writer. The outer one is a Python file, which the interpreter closes when it
    frees it: in any thread, for as long as HDFS takes, and with only a part of the file written.
    """

    def __init__(
        self, place: Place, raw: RawFileWriter, remove: Callable[[], Awaitable[object]] | None
    ) -> None:
        self.path = place.path
        self._place = place
        self._raw: RawFileWriter | None = raw
        self._remove = remove

    async def write(self, data: bytes | memoryview) -> tuple[int, int]:
        """Append all of `data`; returns its size and crc32c. Raises DataLost, Refused (quota)."""
        view = memoryview(data)
        starts = iter(range(0, len(view), PIECE_BYTES))

        def read() -> bytes:
            start = next(starts, len(view))
            # Bytes, not a view: the library takes a view apart byte by byte, at 100 MB/s.
            return bytes(view[start : start + PIECE_BYTES])

        return await self.copy(read)

    async def copy(self, read: Callable[[], bytes], moved: Moved = unwatched) -> tuple[int, int]:
        """Append what `read` returns, piece by piece until it is empty, all of it in one thread.

        When this call is cancelled, `read` has to end the copy, by an error or by returning nothing. Its
        errors (OSError, ours) are raised as they are; else as `write` does.

        Returns how many bytes they were, and their crc32c.
        """
        raw = self._take()
        size = 0

        def send() -> tuple[int, Exception | None]:
            nonlocal size
            crc = 0
            while True:
                try:
                    piece = read()
                except (OSError, TfSupervisorError) as error:
                    return crc, error
                if not piece:
                    return crc, None
                raw.write(piece)
                crc = google_crc32c.extend(crc, piece)
                size += len(piece)
                moved(len(piece))

        crc, failure = await self._within(send, self._place.patience.piece_ms, lambda: size)
        if failure is not None:
            raise failure
        self._raw = raw
        return size, crc

    async def close(self) -> None:
        """Finish the file; it exists when this returns. Raises DataLost, Refused."""
        await self._within(self._take().close, self._place.patience.close_ms)

    async def abandon(self) -> None:
        """Give up. A file that this writer created is removed; a file that it appended to keeps the bytes
        that arrived.
        """
        self._raw = None
        if self._remove is not None:
            await self._remove()

    def _take(self) -> RawFileWriter:
        raw, self._raw = self._raw, None
        if raw is None:
            raise DataLost(f"{self.path} in {self._place.uri} was broken off or closed before")
        return raw

    async def _within(
        self, work: Callable[[], T], limit_ms: int, progress: Callable[[], int] | None = None
    ) -> T:
        doing = f"write {self.path}"
        try:
            return await self._place.threads.run(work, limit_ms / 1000, progress=progress)
        except TimeoutError as error:
            failure = Failure(
                Meaning.LOST, f"its DataNodes did not take the next piece in {limit_ms / 1000:g} s"
            )
            raise self._place.error(failure, doing) from error
        except (OSError, RuntimeError, ValueError) as error:
            failure = _broken(error)
            if failure.meaning in {Meaning.NOT_FOUND, Meaning.CONFLICT}:
                # Somebody removed the file or took it over: that says nothing about where it was meant to go.
                failure = Failure(Meaning.LOST, failure.text)
            raise self._place.error(failure, doing) from error


def _broken(error: Exception) -> Failure:
    """The failure of a transfer: LOST, unless HDFS refuses plainly."""
    failure = read_failure(error)
    return Failure(Meaning.LOST, failure.text) if failure.may_pass else failure
