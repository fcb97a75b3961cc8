"""A `Backend` over a directory of HDFS."""

from __future__ import annotations

from collections.abc import Callable

from recovery.formats.paths import split_directory
from recovery.mount.backends.backend import Entry
from recovery.stores.hdfs_client import HdfsClient
from recovery.stores.hdfs_files import FileInfo, HdfsReader, HdfsWriter
from supervisor.contract.errors import NotFound, StoreUnreachable, TfSupervisorError


class _Reader:
    """`Reader` of a file in HDFS."""

    def __init__(self, inner: HdfsReader) -> None:
        self._inner = inner

    @property
    def size(self) -> int:
        """The size in bytes at its opening."""
        return self._inner.size

    async def read(self, offset: int, size: int) -> bytes:
        """See `Reader`."""
        return await self._inner.read(offset, size)

    async def close(self) -> None:
        """See `Reader`: nothing is held open between reads."""


class _Writer:
    """`Writer` of a file in HDFS that had `base` bytes at its opening."""

    def __init__(self, client: HdfsClient, inner: HdfsWriter, base: int) -> None:
        self._client = client
        self._inner = inner
        self._size = base

    async def copy(self, read: Callable[[], bytes]) -> None:
        """See `Writer`."""
        size, _ = await self._inner.copy(read)
        self._size += size

    async def close(self) -> None:
        """See `Writer`. The size is confirmed by the NameNode, not by the library's answer."""
        await self._inner.close()
        found = await self._client.info(self._inner.path)
        if found.size != self._size:
            raise StoreUnreachable(f"{found.path} has {found.size} bytes; {self._size} were written")

    async def abandon(self) -> None:
        """See `Writer`."""
        try:
            await self._inner.abandon()
        except TfSupervisorError:
            return  # it is in a directory that goes with its generation


class HdfsBackend:
    """`Backend` below the absolute directory `root` of a cluster."""

    def __init__(self, client: HdfsClient, root: str) -> None:
        self._client = client
        self._root = root.rstrip("/")

    async def info(self, path: str) -> Entry | None:
        """See `Backend`."""
        try:
            return _entry(await self._client.info(self._at(path)))
        except NotFound:
            return None

    async def list(self, path: str) -> tuple[Entry, ...]:
        """See `Backend`."""
        found = [_entry(each) for each in await self._client.list(self._at(path))]
        return tuple(sorted(found, key=lambda entry: entry.name))

    async def probe(self, path: str) -> None:
        """See `Backend`."""
        await self._client.probe(self._at(path))

    async def mkdirs(self, path: str) -> None:
        """See `Backend`."""
        await self._client.mkdirs(self._at(path))

    async def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """See `Backend`."""
        await self._client.rename(self._at(source), self._at(target), overwrite=overwrite)

    async def delete(self, path: str, *, recursive: bool) -> bool:
        """See `Backend`."""
        return await self._client.delete(self._at(path), recursive=recursive)

    async def open(self, path: str) -> _Reader:
        """See `Backend`."""
        return _Reader(await self._client.open(self._at(path)))

    async def create(self, path: str) -> _Writer:
        """See `Backend`."""
        return _Writer(self._client, await self._client.create(self._at(path), overwrite=False), 0)

    async def append(self, path: str) -> _Writer:
        """See `Backend`."""
        where = self._at(path)
        base = (await self._client.info(where)).size
        return _Writer(self._client, await self._client.append(where), base)

    async def close(self) -> None:
        """See `Backend`."""
        await self._client.close()

    def _at(self, path: str) -> str:
        return "/".join((self._root, *split_directory(path)))


def _entry(found: FileInfo) -> Entry:
    name = found.path.rstrip("/").rpartition("/")[2]
    return Entry(name, 0 if found.is_dir else found.size, found.mtime_ms, found.is_dir)
