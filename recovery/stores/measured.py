"""A checkpoint store whose requests are timed and counted for metrics."""

from __future__ import annotations

from supervisor.adapters.metrics.daemon import Measured
from supervisor.contract.boundaries import (
    CheckpointStore,
    Moved,
    StoredDirectory,
    StoredFile,
    unwatched,
)


class MeasuredStore(CheckpointStore):
    """Another store, each request of which goes through `measured`."""

    def __init__(self, store: CheckpointStore, measured: Measured) -> None:
        self._store = store
        self._measured = measured

    async def prepare(self) -> None:
        """See `CheckpointStore`."""
        await self._measured.wait("prepare", self._store.prepare())

    async def upload(self, source: str, path: str, moved: Moved = unwatched) -> StoredFile:
        """See `CheckpointStore`."""
        return await self._measured.wait("upload", self._store.upload(source, path, moved))

    async def download(self, path: str, target: str, moved: Moved = unwatched) -> StoredFile:
        """See `CheckpointStore`."""
        return await self._measured.wait("download", self._store.download(path, target, moved))

    async def write_bytes(self, path: str, data: bytes) -> None:
        """See `CheckpointStore`."""
        await self._measured.wait("write", self._store.write_bytes(path, data))

    async def read_bytes(self, path: str, limit: int) -> bytes:
        """See `CheckpointStore`."""
        return await self._measured.wait("read", self._store.read_bytes(path, limit))

    async def crc32c(self, path: str, moved: Moved = unwatched) -> int:
        """See `CheckpointStore`."""
        return await self._measured.wait("checksum", self._store.crc32c(path, moved))

    async def list(self, path: str) -> StoredDirectory:
        """See `CheckpointStore`."""
        return await self._measured.wait("list", self._store.list(path))

    async def rename(self, source: str, target: str) -> None:
        """See `CheckpointStore`."""
        await self._measured.wait("rename", self._store.rename(source, target))

    async def delete_tree(self, path: str) -> None:
        """See `CheckpointStore`."""
        await self._measured.wait("delete_tree", self._store.delete_tree(path))

    async def delete_file(self, path: str) -> None:
        """See `CheckpointStore`."""
        await self._measured.wait("delete_file", self._store.delete_file(path))
