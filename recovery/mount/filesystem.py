"""The file system of a mounted generation: files by name and by handle, independent of FUSE.

Every failure is an OSError. A file has its content in the store when `flush` has returned.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent import futures
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from recovery.mount.backends.backend import Entry
from recovery.mount.layout import SIGN
from recovery.mount.live import Found, LiveDirectory
from recovery.mount.reading import ChunkedReader
from recovery.mount.writing import SMALL_BYTES, WriteFile
from supervisor.contract.boundaries import Logger
from supervisor.contract.errors import Conflict, NotFound, OutOfSpace, Refused, TfSupervisorError, UserError

IDLE_FLUSH_S = 5.0
"""Seconds without a write after which the bytes of an open file are sent to the store."""
LOOK_S = 0.05
"""Interval in seconds at which a long call checks whether its caller is being killed."""

T = TypeVar("T")
_WRITES = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True, slots=True)
class Stat:
    """The values of stat(2) for a file or directory."""

    directory: bool
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Handle:
    """One opening of a file: for writing on this node, or for reading from the store."""

    name: str
    writing: WriteFile | None = None
    reading: ChunkedReader | None = None
    mtime_ns: int = 0


class MountedFiles:
    """One live directory as a file system.

    `read` and `write` may be called from any thread but the loop's; all else on the loop.
    """

    def __init__(self, live: LiveDirectory, spool: Path, sink: Logger) -> None:
        self._live = live
        self._spool = spool
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._handles: dict[int, Handle] = {}
        self._writing: dict[str, WriteFile] = {}

    async def stat(self, name: str, number: int | None = None) -> Stat:
        """The status of a file, by handle if there is one, else by name. Raises OSError."""
        handle = self._handles.get(number) if number is not None else None
        if handle is not None and handle.reading is not None:
            return Stat(directory=False, size=handle.reading.size, mtime_ns=handle.mtime_ns)
        file = handle.writing if handle is not None else self._writing.get(name)
        if file is not None:
            return Stat(directory=False, size=file.size, mtime_ns=file.mtime_ns)
        with self._mapped(f"look at {name}"):
            if name == SIGN:
                await self._require("")
                return Stat(directory=False, size=0, mtime_ns=0)
            found = await self._require(name)
            return stat_of(found.entry)

    async def list(self, name: str) -> tuple[tuple[str, bool], ...]:
        """Names of the children, without `.` and `..`, and whether each is a directory. Raises OSError."""
        with self._mapped(f"list {name}"):
            names = {entry.name: entry.directory for entry in await self._live.list(name)}
        prefix = f"{name}/" if name else ""
        for path in self._writing:
            if path.startswith(prefix) and "/" not in path[len(prefix) :]:
                names[path[len(prefix) :]] = False
        return tuple(sorted(names.items()))

    async def open(self, name: str, flags: int) -> int:
        """Open an existing file; returns the handle's number. Raises OSError."""
        with self._mapped(f"open {name}"):
            if flags & _WRITES:
                return self._hand_out(name, await self._for_writing(name, flags))
            file = self._writing.get(name)
            if file is not None and file.whole:
                return self._hand_out(name, file)
            found = await self._require(name)
            if found.entry.directory:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            reader = ChunkedReader(await self._live.backend.open(found.path))
            return self._keep(Handle(name, reading=reader, mtime_ns=found.entry.mtime_ms * 1_000_000))

    async def create(self, name: str, flags: int) -> int:
        """Make a file, or empty the one that is there. Raises OSError."""
        with self._mapped(f"create {name}"):
            self._live.path(name)
            if flags & os.O_EXCL and (name in self._writing or await self._live.find(name) is not None):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            return self._hand_out(name, self._new(name))

    def read(
        self,
        number: int,
        offset: int,
        size: int,
        limit_s: float,
        in_vain: Callable[[], bool] = lambda: False,
    ) -> bytes | memoryview:
        """Read, from any thread but the loop's. Limits and errors are those of `wait_for`."""
        handle = self._handle(number)
        if handle.reading is None:
            data = self._written(handle).read(offset, size)
            if data is None:
                raise OSError(errno.EOPNOTSUPP, "what was there before can be read when the file is closed")
            return data
        known = handle.reading.peek(offset, size)
        if known is not None:
            return known
        with self._mapped(f"read {handle.name}"):
            return wait_for(handle.reading.read(offset, size), self._loop, limit_s, in_vain)

    def write(self, number: int, data: bytes, offset: int) -> int:
        """Write, from any thread but the loop's. Raises OSError."""
        handle = self._handle(number)
        try:
            return self._written(handle).write(data, offset)
        except OSError as error:
            self._sink.warning(
                "a program's write is refused", file=handle.name, offset=offset, reason=error.strerror
            )
            raise

    async def flush(self, number: int) -> None:
        """Bring the content to the store. Raises OSError if that fails."""
        handle = self._handle(number)
        if handle.writing is not None:
            with self._mapped(f"close {handle.name}"):
                await handle.writing.flush()

    async def release(self, number: int) -> None:
        """Close the handle. Bytes of a failed flush are given up."""
        handle = self._handles.pop(number, None)
        if handle is None:
            return
        if handle.reading is not None:
            await handle.reading.close()
        file = handle.writing
        if file is None:
            return
        file.users -= 1
        if file.users == 0:
            if file.dirty:
                self._sink.error(
                    "a file is lost: its content is not in the store",
                    file=file.name,
                    reason="it could not be written to the store",
                )
            if self._writing.get(file.name) is file:
                del self._writing[file.name]
            await file.close()

    async def truncate(self, name: str, size: int) -> None:
        """Set the size of a file. Raises OSError."""
        with self._mapped(f"truncate {name}"):
            file = await self._for_writing(name, os.O_WRONLY | (os.O_TRUNC if size == 0 else 0))
            number = self._hand_out(name, file)
            try:
                file.truncate(size)
                if file.users == 1:
                    await file.flush()
            finally:
                await self.release(number)

    async def mkdir(self, name: str) -> None:
        """Make a directory. Raises OSError."""
        with self._mapped(f"make {name}"):
            await self._live.mkdir(name)

    async def rmdir(self, name: str) -> None:
        """Remove an empty directory. Raises OSError."""
        with self._mapped(f"remove {name}", errno.ENOTEMPTY):
            await self._live.require_unlinked(name)
            await self._live.remove(name)

    async def unlink(self, name: str) -> None:
        """Remove a file. Raises OSError."""
        with self._mapped(f"delete {name}"):
            file = self._writing.pop(name, None)
            if file is not None:
                file.orphan = True
            try:
                await self._live.remove(name)
            except NotFound:
                if file is None:
                    raise

    async def rename(self, old: str, new: str) -> None:
        """Move a file or directory, over a file of that name. Raises OSError."""
        with self._mapped(f"rename {old} to {new}"):
            file = self._writing.get(old)
            if file is not None:
                await file.flush()
            found = await self._require(old)
            if found.place is not None:
                # The store's file keeps its name: who must have another copies it.
                raise OSError(errno.EXDEV, "it is part of a committed checkpoint")
            if found.entry.directory:
                await self._require_movable(old, new)
            await self._live.rename(old, new)
            replaced = self._writing.pop(new, None)
            if replaced is not None:
                replaced.orphan = True
            if file is not None and self._writing.pop(old, None) is file:
                file.name = new
                self._writing[new] = file

    async def keep_flushing(self) -> None:
        """Send the bytes of open files to the store when their programs pause, until cancelled."""
        while True:
            await asyncio.sleep(IDLE_FLUSH_S)
            latest_ns = time.time_ns() - int(IDLE_FLUSH_S * 1e9)
            for file in list(self._writing.values()):
                if file.dirty and file.mtime_ns < latest_ns:
                    try:
                        await file.flush()
                    except (TfSupervisorError, OSError) as error:
                        self._sink.warning(
                            "a file is not in the store yet; trying again", file=file.name, reason=str(error)
                        )

    async def finish(self) -> None:
        """After the unmount: send the remaining bytes to the store as far as possible, and forget all
        files.
        """
        for file in list(self._writing.values()):
            try:
                await file.flush()
            except (TfSupervisorError, OSError) as error:
                self._sink.error(
                    "a file is lost: its content is not in the store", file=file.name, reason=str(error)
                )
            await file.close()
        self._writing.clear()
        self._handles.clear()

    async def _for_writing(self, name: str, flags: int) -> WriteFile:
        file = self._writing.get(name)
        if file is not None:
            if flags & os.O_TRUNC:
                file.truncate(0)
            return file
        found = await self._require(name)
        if found.entry.directory:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if flags & os.O_TRUNC:
            return self._new(name)
        if found.entry.size > SMALL_BYTES:
            if found.place is not None:
                raise OSError(errno.EOPNOTSUPP, "it is part of a committed checkpoint")
            return self._known(WriteFile(self._live, name, self._spool, found.entry.size))
        file = WriteFile(self._live, name, self._spool)
        try:
            reader = await self._live.backend.open(found.path)
            await file.fetch(reader)
            await reader.close()
        except BaseException:
            await file.close()
            raise
        return self._known(file)

    def _new(self, name: str) -> WriteFile:
        file = self._writing.get(name)
        if file is not None:
            file.truncate(0)
            return file
        return self._known(WriteFile(self._live, name, self._spool))

    def _known(self, file: WriteFile) -> WriteFile:
        """The file for a new handle: openings of one file at the same time share the first one's."""
        return self._writing.setdefault(file.name, file)

    def _hand_out(self, name: str, file: WriteFile) -> int:
        file.users += 1
        return self._keep(Handle(name, writing=file))

    def _keep(self, handle: Handle) -> int:
        number = next(self._numbers)
        self._handles[number] = handle
        return number

    def _handle(self, number: int) -> Handle:
        try:
            return self._handles[number]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    def _written(self, handle: Handle) -> WriteFile:
        if handle.writing is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return handle.writing

    async def _require_movable(self, old: str, new: str) -> None:
        """Raise OSError for a directory that shows files of a checkpoint: it must keep its name."""
        try:
            await self._live.require_unlinked(old)
        except Conflict:
            raise OSError(errno.EXDEV, "it shows files of a committed checkpoint") from None
        await self._live.require_unlinked(new)

    async def _require(self, name: str) -> Found:
        found = await self._live.find(name)
        if found is None:
            raise NotFound(f"{name} does not exist")
        return found

    def _mapped(self, doing: str, conflict: int = errno.EEXIST) -> AbstractContextManager[None]:
        return as_os_errors(self._sink, doing, conflict)


@contextmanager
def as_os_errors(sink: Logger, doing: str, conflict: int = errno.EEXIST) -> Iterator[None]:
    """Turn errors of our tree into OSError, and log those that an operator should know."""
    try:
        yield
    except NotFound as error:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
    except Conflict as error:
        raise OSError(conflict, os.strerror(conflict)) from error
    except Refused as error:
        sink.warning("the store refuses an operation of a program", doing=doing, reason=str(error))
        code = errno.EDQUOT if isinstance(error, OutOfSpace) else errno.EACCES
        raise OSError(code, str(error)) from error
    except UserError as error:
        raise OSError(errno.EINVAL, str(error)) from error
    except TfSupervisorError as error:
        sink.warning("the store does not answer an operation of a program", doing=doing, reason=str(error))
        raise OSError(errno.EIO, str(error)) from error


def wait_for(
    work: Coroutine[None, None, T],
    loop: asyncio.AbstractEventLoop,
    limit_s: float,
    in_vain: Callable[[], bool] = lambda: False,
) -> T:
    """Run `work` on the loop of another thread.

    Raises the errors of `work`; OSError(EIO) after `limit_s`; OSError(EINTR) soon after `in_vain` returns
    True because the caller is being killed.
    """
    future = asyncio.run_coroutine_threadsafe(work, loop)
    end_s = time.monotonic() + limit_s
    while not futures.wait([future], min(LOOK_S, max(0.0, end_s - time.monotonic()))).done:
        if in_vain():
            future.cancel()
            raise OSError(errno.EINTR, "the process that asked for it was killed")
        if time.monotonic() >= end_s:
            break
    try:
        return future.result(0)
    except (TimeoutError, futures.CancelledError) as error:
        future.cancel()
        raise OSError(errno.EIO, f"not done within {limit_s:g} s") from error


def stat_of(entry: Entry) -> Stat:
    """The status of an entry of the store."""
    return Stat(entry.directory, entry.size, entry.mtime_ms * 1_000_000)
