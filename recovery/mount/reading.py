"""Reading a file of the store at random offsets, with read-ahead for sequential reads."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict

from recovery.mount.backends.backend import Reader

CHUNK_BYTES = 4 << 20
AHEAD = 3
BEHIND = 2
"""Chunks that stay behind a sequential reader, as requests of the kernel overtake each other."""

KEPT = 8


class ChunkPool:
    """The chunks in memory of one open file, or of all that share it: at most `most`, the newest.

    `readers`: how many share it. `get` may be called from any thread; all else on the loop.
    """

    def __init__(self, most: int = KEPT) -> None:
        self.most = most
        self.readers = 0
        self._lock = threading.Lock()
        self._chunks: OrderedDict[tuple[ChunkedReader, int], bytes] = OrderedDict()

    @property
    def ahead(self) -> int:
        """How many chunks one file may fetch early, so that none is dropped before it is read."""
        return min(AHEAD, max(0, self.most // max(1, self.readers) - 1))

    def get(self, reader: ChunkedReader, index: int) -> bytes | None:
        """A chunk of a file; None if it is not here."""
        with self._lock:
            return self._chunks.get((reader, index))

    def put(self, reader: ChunkedReader, index: int, chunk: bytes) -> None:
        """Keep a chunk. The oldest ones go."""
        with self._lock:
            self._chunks[reader, index] = chunk
            while len(self._chunks) > self.most:
                self._chunks.popitem(last=False)

    def drop(self, reader: ChunkedReader, index: int) -> None:
        """Drop a chunk, if it is here."""
        with self._lock:
            self._chunks.pop((reader, index), None)

    def forget(self, reader: ChunkedReader) -> None:
        """Drop all chunks of a file."""
        with self._lock:
            for key in [each for each in self._chunks if each[0] is reader]:
                del self._chunks[key]


class ChunkedReader:
    """One open file. At most `KEPT` chunks are in memory, or what `pool` keeps of it; `AHEAD` of them are
    fetched early.

    `peek` may be called from any thread; all else on the loop.
    """

    def __init__(self, reader: Reader, pool: ChunkPool | None = None) -> None:
        self._reader = reader
        self._pool = pool or ChunkPool()
        self._pool.readers += 1
        self._coming: dict[int, asyncio.Task[bytes]] = {}
        self._last = -1

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._reader.size

    def peek(self, offset: int, size: int) -> bytes | memoryview | None:
        """The result of `read`, if it is in memory and no chunk needs to be fetched ahead; None otherwise."""
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        index = offset // CHUNK_BYTES
        chunk = self._pool.get(self, index)
        if chunk is None or index != self._last or (end - 1) // CHUNK_BYTES != index:
            return None
        return memoryview(chunk)[offset - index * CHUNK_BYTES : end - index * CHUNK_BYTES]

    async def read(self, offset: int, size: int) -> bytes | memoryview:
        """`size` bytes from `offset`; fewer at the end only. Raises as `Reader.read`."""
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        first, last = offset // CHUNK_BYTES, (end - 1) // CHUNK_BYTES
        onward = first in {self._last, self._last + 1}
        for index in range(first, last + 1 + (self._pool.ahead if onward else 0)):
            self._fetch(index)
        if onward:
            self._pool.drop(self, first - BEHIND - 1)
        self._last = last
        pieces = []
        for index in range(first, last + 1):
            chunk = await self._chunk(index)
            start = index * CHUNK_BYTES
            pieces.append(memoryview(chunk)[max(0, offset - start) : end - start])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def close(self) -> None:
        """Stop fetching, and release the file."""
        for task in self._coming.values():
            task.cancel()
        self._coming.clear()
        self._pool.readers -= 1
        self._pool.forget(self)
        await self._reader.close()

    def _fetch(self, index: int) -> None:
        start = index * CHUNK_BYTES
        if start >= self.size or index in self._coming or self._pool.get(self, index) is not None:
            return
        size = min(CHUNK_BYTES, self.size - start)
        task = asyncio.get_running_loop().create_task(self._reader.read(start, size))
        self._coming[index] = task
        task.add_done_callback(lambda done: self._came(index, done))

    def _came(self, index: int, done: asyncio.Task[bytes]) -> None:
        if self._coming.get(index) is not done:
            return
        del self._coming[index]
        # One that failed is fetched again by whoever needs it, and then tells why.
        if done.cancelled() or done.exception() is not None:
            return
        self._pool.put(self, index, done.result())

    async def _chunk(self, index: int) -> bytes:
        chunk = self._pool.get(self, index)
        if chunk is not None:
            return chunk
        self._fetch(index)
        return await asyncio.shield(self._coming[index])
