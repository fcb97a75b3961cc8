"""Writing a file of the store: the program's bytes go to a local file first, then to the store.

So a program may write at any offset, and a lost DataNode costs only a second upload. The file gets its name
when it is whole: it is written as a part, closed, its size is confirmed, and then it is renamed. A file of
the store that is too large to be fetched can only be appended to.
"""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

from recovery.io.files import mapped_errors, write_all
from recovery.mount.backends.backend import Reader, once
from recovery.mount.live import LiveDirectory
from recovery.stores.hdfs_files import PIECE_BYTES, DataLost
from supervisor.adapters.backoff import Backoff
from supervisor.adapters.failpoints import effect
from supervisor.contract.errors import Refused, StoreUnreachable

CHUNK_BYTES = 4 << 20
SMALL_BYTES = 8 << 20
"""Largest existing file, in bytes, that can be changed anywhere: it is fetched, and replaced when it is
closed."""

TRY_FOR_S = 60.0
"""Seconds for which a file is sent again before its close fails: a NameNode names a dead DataNode for a
while."""

PAUSES_MS = (200, 4_000)


class _Changed(StoreUnreachable):
    """The program wrote to bytes that had been sent already."""


class WriteFile:
    """One file that programs on this node have open for writing, from its opening until its last closing.

    `write`, `read` and `truncate` may be called from any thread; all else on the loop.

    Attributes:
        name: its path in the live directory; changes when it is renamed.
        orphan: it was deleted while it was open, or another file has its name now: it is never uploaded.
        users: the number of open handles of this node.
    """

    def __init__(self, live: LiveDirectory, name: str, spool: Path, base: int = 0) -> None:
        self.name = name
        self.orphan = False
        self.users = 0
        self._live = live
        self._base = base
        with mapped_errors(f"make a file in {spool}"):
            self._fd = _unnamed(spool)
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._flushing = asyncio.Lock()
        self._more = asyncio.Event()
        self._size = base
        # What the store's file and this one have in common, from the beginning on.
        self._remote = base
        # The lowest offset that was changed since the last flush began, and where that flush ended.
        self._lowest = 0
        self._claimed = base
        self._version = 0 if base else 1
        self._uploaded = 0
        self._changed_ns = time.time_ns()
        self._ahead: asyncio.Task[str] | None = None
        # Of the upload that counts: its number, how far it is, and where it is to end.
        self._turn = 0
        self._sent = 0
        self._until: int | None = None
        self._broken = ""

    @property
    def size(self) -> int:
        """The size in bytes, as the program sees it."""
        return self._size

    @property
    def mtime_ns(self) -> int:
        """The time of the program's last change."""
        return self._changed_ns

    @property
    def whole(self) -> bool:
        """Whether all of its content is on this node."""
        return self._base == 0

    @property
    def dirty(self) -> bool:
        """Whether the store lacks a part of its content."""
        return self._version != self._uploaded and not self.orphan

    async def fetch(self, reader: Reader) -> None:
        """Begin with the content of a small file of the store."""
        data = await reader.read(0, reader.size)
        if len(data) != reader.size:
            raise StoreUnreachable(f"{self.name} could not be read to its end")
        with mapped_errors(f"keep {self.name} on the local disk"):
            write_all(self._fd, data)
        self._size = self._remote = len(data)
        self._uploaded = self._version

    def write(self, data: bytes, offset: int) -> int:
        """Write all of `data`. Raises OSError: EOPNOTSUPP before the end of a large old file, ENOSPC, EIO."""
        with self._lock:
            self._require_whole()
            self._require_reachable(offset)
            _write_at(self._fd, data, offset - self._base)
            self._size = max(self._size, offset + len(data))
            self._touch(offset)
            waiting = self._size - self._sent
        if waiting >= CHUNK_BYTES:
            self._loop.call_soon_threadsafe(self._go_ahead)
        return len(data)

    def truncate(self, size: int) -> None:
        """Set its size. Raises OSError as `write` does."""
        with self._lock:
            self._require_whole()
            if size == self._size:
                return
            self._require_reachable(min(size, self._size))
            os.ftruncate(self._fd, size - self._base)
            self._touch(min(size, self._size))
            self._size = size

    def read(self, offset: int, size: int) -> bytes | None:
        """The local bytes; None for a range that is only in the store."""
        if offset < self._base:
            return None
        return os.pread(self._fd, size, offset - self._base)

    async def flush(self) -> None:
        """Bring all bytes written so far to the store, closed and with its size confirmed.

        Raises StoreUnreachable, Refused, UserError if that fails.
        """
        async with self._flushing:
            if not self.dirty:
                return
            with self._lock:
                self._require_whole()
                version, size, remote = self._version, self._size, self._remote
                self._claimed, self._lowest = size, size
                # What is sent ahead ends here, and not one byte later: the next flush goes on from here.
                self._until = size
            if not remote or (not self._base and remote <= SMALL_BYTES):
                await self._replace(size)
            elif self._base:
                await self._append_once(remote, size)
            else:
                try:
                    await self._append(remote, size)
                except DataLost:
                    await self._replace(size)
            with self._lock:
                self._uploaded = version
                self._remote = size if self._lowest >= size else 0

    async def close(self) -> None:
        """Forget the file after its last handle was closed. Bytes that were not flushed are lost."""
        await self._stop_ahead()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _touch(self, offset: int) -> None:
        """Note a change from `offset` on. The caller holds the lock."""
        self._version += 1
        self._changed_ns = time.time_ns()
        self._lowest = min(self._lowest, offset)
        if offset < self._sent:
            self._sent = -1
        if offset < self._remote:
            self._remote = 0

    def _require_reachable(self, offset: int) -> None:
        if self._base and offset < self._claimed:
            raise OSError(errno.EOPNOTSUPP, "a file in the store can be written on at its end only")

    def _require_whole(self) -> None:
        if self._broken:
            raise OSError(errno.EIO, self._broken)

    def _go_ahead(self) -> None:
        """Send the bytes written so far while the program still writes."""
        self._more.set()
        idle = self._ahead is None and not self._flushing.locked()
        if idle and not self.orphan and self._fd >= 0 and not self._base and self._remote <= SMALL_BYTES:
            self._ahead = self._loop.create_task(self._upload(self._begin(None)))

    async def _stop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)

    async def _replace(self, size: int) -> None:
        """Give a part with the whole content the file's name."""
        part = await self._finish_ahead()
        pauses = Backoff(*PAUSES_MS)
        limit_s = self._loop.time() + TRY_FOR_S
        while part is None:
            try:
                part = await self._upload(self._begin(size))
            except (DataLost, _Changed):
                if self._loop.time() > limit_s:
                    raise
                await pauses.wait()
        if self.orphan:
            with effect("mounted_file.delete_part", StoreUnreachable):
                await self._live.backend.delete(part, recursive=False)
        else:
            await self._live.name_part(part, self.name)

    async def _finish_ahead(self) -> str | None:
        """The part that was sent meanwhile, if it holds all bytes that the program has written up to
        `_until`.
        """
        ahead = self._ahead
        if ahead is None:
            return None
        if self._sent < 0:
            await self._stop_ahead()
            return None
        self._more.set()
        try:
            return await ahead
        except (DataLost, _Changed):
            return None
        finally:
            self._ahead = None

    def _begin(self, until: int | None) -> int:
        """Begin an upload up to `until`, or while that is None up to the growing end; returns its number."""
        with self._lock:
            self._turn += 1
            self._until, self._sent = until, 0
            return self._turn

    async def _upload(self, turn: int) -> str:
        """Send the content; returns the part."""
        part = self._live.new_part()
        with effect("mounted_file.create", StoreUnreachable):
            writer = await self._live.backend.create(part)
        try:
            while await self._more_to_send():
                await writer.copy(partial(self._next_piece, turn))
            with effect("mounted_file.close", StoreUnreachable):
                await writer.close()
        except BaseException:
            with self._lock:
                # What may still be sending gets nothing more.
                self._turn += 1
            await asyncio.shield(writer.abandon())
            raise
        return part

    async def _more_to_send(self) -> bool:
        """Wait for enough bytes to send; False at the end."""
        while True:
            self._more.clear()
            with self._lock:
                if self._sent < 0:
                    raise _Changed(f"{self.name} was changed while it was sent")
                if self._until is not None:
                    return self._sent < self._until
                if self._size - self._sent >= CHUNK_BYTES:
                    return True
            await self._more.wait()

    def _next_piece(self, turn: int) -> bytes:
        """The next bytes of upload `turn`; none if it has to wait. Called in the thread that sends."""
        with self._lock:
            if turn != self._turn or self._sent < 0:
                raise _Changed(f"{self.name} was changed while it was sent")
            known = self._size if self._until is None else self._until
            size = min(PIECE_BYTES, known - self._sent)
            if self._until is None and size < PIECE_BYTES:
                return b""
            offset = self._sent
            self._sent += size
        return _read_at(self._fd, size, offset) if size else b""

    async def _append_once(self, remote: int, size: int) -> None:
        """`_append` to a file that is only in the store.

        If it breaks off, no complete copy of the file is left.
        """
        try:
            await self._append(remote, size)
        except BaseException as error:
            self._broken = f"{self.name} could not be written on: {error}"
            raise

    async def _append(self, remote: int, size: int) -> None:
        """Append to the file in the store."""
        live = self._live
        with effect("mounted_file.append", StoreUnreachable):
            writer = await live.backend.append(live.path(self.name))
        try:
            for start in range(remote, size, PIECE_BYTES):
                most = min(PIECE_BYTES, size - start)
                data = await asyncio.to_thread(_read_at, self._fd, most, start - self._base)
                await writer.copy(once(data))
            with effect("mounted_file.close_appended", StoreUnreachable):
                await writer.close()
        except BaseException:
            await asyncio.shield(writer.abandon())
            raise


def _unnamed(directory: Path) -> int:
    """A new file without a name, so that nothing of it stays behind, however this process ends."""
    fd, path = tempfile.mkstemp(dir=directory)
    Path(path).unlink()
    return fd


def _write_at(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


def _read_at(fd: int, size: int, offset: int) -> bytes:
    data = os.pread(fd, size, offset)
    if len(data) != size:
        raise Refused(f"a local file gave {len(data)} bytes instead of {size}")
    return data
