"""Sending a local file to HDFS: in one piece, or a large one in parts side by side that HDFS then joins.

A file in HDFS has one writer, which after each block waits until the DataNodes have it on their disks. So a
large file is written as several. All blocks are full except the very last, so the joined file is like one
that was written in one piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from recovery.formats.crc32c import joined
from recovery.io.parallel import in_parallel
from recovery.stores.hdfs_client import HdfsClient
from recovery.stores.hdfs_files import PIECE_BYTES, DataLost, HdfsWriter
from recovery.stores.local_side import Source, Steps
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Moved
from supervisor.contract.errors import StoreUnreachable

PARTS = 4
"""Number of parts. More would compete for the processors (docs/decisions/0029)."""
PARTED_BYTES = 256 << 20
"""Size in bytes from which a file is sent in parts."""

Fill = Callable[[HdfsWriter], Awaitable[tuple[int, int]]]
"""Writes the content of a file; returns (size, crc32c). It may be called again."""


class Sender:
    """Writes files under names that the caller chooses, and removes after a failure.

    `known` is a file that is always in the store. Files of `parted_bytes` or more are sent in parts.
    """

    def __init__(self, client: HdfsClient, steps: Steps, known: str, parted_bytes: int) -> None:
        self._client = client
        self._steps = steps
        self._known = known
        self._parted_bytes = parted_bytes

    async def fill(self, path: str, block_bytes: int | None, fill: Fill) -> tuple[int, int]:
        """Write `path` by `fill`; returns (size, crc32c). Raises DataLost and what `fill` raises."""
        size, crc = await self._written(path, fill, block_bytes)
        await self._require(path, size)
        return size, crc

    async def send(
        self, source: str, size: int, moved: Moved, path: str, block_bytes: int | None
    ) -> tuple[int, int]:
        """Write the local file `source` of about `size` bytes as `path`; returns (size, crc32c).

        With `block_bytes` it is sent in one piece. Raises DataLost; NotJoined, after which the next try is in
        one piece; OSError.
        """
        block = self._client.block_bytes
        blocks = -(-size // block)
        parted = block_bytes is None and blocks > 1 and size >= self._parted_bytes and "," not in path
        if parted and await self._client.joiner.works(self._known):
            step = -(-blocks // PARTS) * block
            return await self._send_parts(source, range(0, size, step), moved, path)
        return await self.fill(path, block_bytes, partial(self._copy, source, moved, 0, None))

    async def _send_parts(self, source: str, starts: range, moved: Moved, path: str) -> tuple[int, int]:
        paths = [path, *(f"{path}.{number}" for number in range(1, len(starts)))]
        found: dict[int, tuple[int, int]] = {}

        async def one(piece: tuple[int, str]) -> None:
            start, part = piece
            # The last one takes whatever there is: a file that has grown must not pass for what it was.
            size = None if start == starts[-1] else starts.step
            fill = partial(self._copy, source, moved, start, size)
            found[start] = await self._written(part, fill, self._client.block_bytes)

        try:
            await in_parallel(one, list(zip(starts, paths, strict=True)), PARTS)
            size = sum(sent for sent, _ in found.values())
            with effect("store.join", StoreUnreachable):
                await self._client.joiner.join(path, paths[1:], size)
            await self._require(path, size)
        except BaseException:
            for part in paths[1:]:
                self._client.discard(part)
            raise
        return size, joined(found[start] for start in starts)

    async def _written(self, path: str, fill: Fill, block_bytes: int | None) -> tuple[int, int]:
        with effect("store.write", StoreUnreachable):
            writer = await self._client.create(path, overwrite=True, parents=True, block_bytes=block_bytes)
            sent = await fill(writer)
            await writer.close()
        return sent

    async def _require(self, path: str, size: int) -> None:
        found = (await self._client.info(path)).size
        if found != size:
            raise DataLost(f"{self._client.uri}{path} has {found} bytes after {size} were written")

    async def _copy(
        self, path: str, moved: Moved, start: int, size: int | None, writer: HdfsWriter
    ) -> tuple[int, int]:
        """Write the bytes of a local file, `size` of them or all from `start` on."""
        source = await self._steps.opened(lambda: Source(path, start, size), Source.close)
        try:
            return await writer.copy(partial(source.read, PIECE_BYTES), moved)
        finally:
            # Ends the copy, too, when the caller has gone away.
            await asyncio.shield(self._steps.begin(source.close))
