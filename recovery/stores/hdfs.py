"""The checkpoint store in HDFS."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from pathlib import Path

from recovery.formats.crc32c import joined
from recovery.formats.paths import MARKER, PART_PREFIX, split_directory, split_path
from recovery.io.files import mapped_errors
from recovery.io.parallel import in_parallel
from recovery.stores.hdfs_client import HdfsClient
from recovery.stores.hdfs_files import DataLost, FileInfo, HdfsReader, NotJoined
from recovery.stores.hdfs_sending import PARTED_BYTES, Sender
from recovery.stores.local_side import NewFile, Steps
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Moved, StoredDirectory, StoredFile, unwatched
from supervisor.contract.errors import Conflict, NotFound, StoreUnreachable, UserError

STREAM_BYTES = 32 << 20
"""Bytes to read by one connection to a DataNode. A new connection costs some milliseconds."""
STREAMS = max(2, min(4, len(os.sched_getaffinity(0))))
"""Connections at a time for one file. The received bytes occupy the processors, so more are slower."""
WRITE_TRIES = 12
BLOCK_UNIT_BYTES = 1 << 20
LEFTOVER_AGE_MS = 3_600_000
_MARKER_TEXT = b"tf-supervisor checkpoint store, layout 1\n"

Write = Callable[[str, int | None], Awaitable[tuple[int, int]]]
"""Writes a file, given its path and its block size (None: the default); returns its size and crc32c."""


class HdfsStore:
    """`CheckpointStore` below the directory `root` of a cluster.

    A file is written under a name that no listing shows, closed, checked, and then renamed: it is there whole
    or not at all. When DataNodes are lost meanwhile, it is begun again under another such name. A call that
    is cancelled removes its unfinished file in the background; a cancelled `rename` or `delete_tree` may
    still happen. Unfinished files of a process that died go with their staging directory; `prepare` removes
    those in the root.
    """

    def __init__(
        self,
        client: HdfsClient,
        root: str,
        executor: Executor | None = None,
        *,
        parted_bytes: int = PARTED_BYTES,
    ) -> None:
        if not root.startswith("/") or root == "/":
            raise UserError(f"checkpoint directory {root!r} must be an absolute path below the root of HDFS")
        self._client = client
        self._root = root
        self._steps = Steps(executor)
        self._sender = Sender(client, self._steps, f"{root}/{MARKER}", parted_bytes)

    async def prepare(self) -> None:
        """Make the root and prove that it can be written; see `CheckpointStore`."""
        await self._client.mkdirs(self._root)
        if await self._has_marker():
            probe = self._part(self._root)
            try:
                writer = await self._client.create(probe, overwrite=True)
                await writer.write(_MARKER_TEXT)
                await writer.close()
                await self._remove_leftovers((await self._client.info(probe)).mtime_ms)
            finally:
                self._client.discard(probe)
            return
        with suppress(Conflict):
            await self._create_bytes(f"{self._root}/{MARKER}", _MARKER_TEXT)

    async def upload(self, source: str, path: str, moved: Moved = unwatched) -> StoredFile:
        """Copy the local file `source` to the new file `path`; see `CheckpointStore`."""
        target = self._file(path)
        await self._ready()
        with mapped_errors(f"copy {source} to {self._client.uri}{target}"):
            size = (await self._steps.run(lambda: Path(source).stat())).st_size
            await self._require_free(target)
            send = partial(self._sender.send, source, size, moved)
            return StoredFile(path, *await self._create(target, send, size))

    async def download(self, path: str, target: str, moved: Moved = unwatched) -> StoredFile:
        """Copy `path` to the new local file `target`; see `CheckpointStore`."""
        source = self._file(path)
        await self._ready()
        reader = await self._client.open(source)
        with mapped_errors(f"copy {self._client.uri}{source} to {target}"):
            local = await self._steps.opened(lambda: NewFile(Path(target), reader.size), NewFile.give_up)
            try:
                crc = await _read_all(reader, moved, local)
                await self._steps.run(local.finish)
            finally:
                await asyncio.shield(self._steps.begin(local.give_up))
        return StoredFile(path, reader.size, crc)

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Create the new file `path`; see `CheckpointStore`."""
        target = self._file(path)
        await self._ready()
        await self._require_free(target)
        await self._create_bytes(target, data)

    async def read_bytes(self, path: str, limit: int) -> bytes:
        """The whole of a small file; see `CheckpointStore`."""
        source = self._file(path)
        await self._ready()
        reader = await self._client.open(source)
        if reader.size > limit:
            raise UserError(f"{self._client.uri}{source} is larger than {limit} bytes")
        return await reader.read(0, reader.size)

    async def crc32c(self, path: str, moved: Moved = unwatched) -> int:
        """Read a file back; see `CheckpointStore`."""
        source = self._file(path)
        await self._ready()
        reader = await self._client.open(source)
        return await _read_all(reader, moved)

    async def list(self, path: str) -> StoredDirectory:
        """Children of a directory; see `CheckpointStore`."""
        directory = "/".join((self._root, *split_directory(path)))
        await self._ready()
        try:
            found = await self._client.list(directory)
        except NotFound:
            return StoredDirectory()
        return _children(found, directory, path)

    async def rename(self, source: str, target: str) -> None:
        """Move a directory atomically; see `CheckpointStore`."""
        old, new = self._file(source), self._file(target)
        await self._ready()
        if not (await self._client.info(old)).is_dir:
            raise UserError(f"{self._client.uri}{old} is not a directory")
        await self._client.mkdirs(new.rpartition("/")[0])
        with effect("store.rename", StoreUnreachable):
            await self._client.rename(old, new, overwrite=False)

    async def delete_tree(self, path: str) -> None:
        """Remove a directory and all below it; see `CheckpointStore`."""
        doomed = self._file(path)
        await self._ready()
        try:
            if not (await self._client.info(doomed)).is_dir:
                raise UserError(f"{self._client.uri}{doomed} is not a directory")
        except NotFound:
            return
        with effect("store.delete_tree", StoreUnreachable):
            await self._client.delete(doomed, recursive=True)

    async def delete_file(self, path: str) -> None:
        """Remove a file; see `CheckpointStore`."""
        doomed = self._file(path)
        await self._ready()
        try:
            if (await self._client.info(doomed)).is_dir:
                raise UserError(f"{self._client.uri}{doomed} is not a file")
        except NotFound:
            return
        with effect("store.delete_file", StoreUnreachable):
            await self._client.delete(doomed, recursive=False)

    async def _remove_leftovers(self, now_ms: int) -> None:
        """Remove files that dead processes left in the root; `now_ms` is the NameNode's own time."""
        for one in await self._client.list(self._root):
            if one.path.startswith(f"{self._root}/{PART_PREFIX}") and one.mtime_ms < now_ms - LEFTOVER_AGE_MS:
                self._client.discard(one.path)

    def _file(self, path: str) -> str:
        return "/".join((self._root, *split_path(path)))

    @staticmethod
    def _part(directory: str) -> str:
        return f"{directory}/{PART_PREFIX}{secrets.token_hex(8)}"

    async def _ready(self) -> None:
        """Raise StoreUnreachable for a root without our mark: it is the wrong cluster or directory."""
        if not await self._has_marker():
            raise StoreUnreachable(
                f"{self._client.uri}{self._root} is no checkpoint store ({MARKER} is missing); "
                "is this the right cluster, and was the directory removed?"
            )

    async def _has_marker(self) -> bool:
        try:
            return not (await self._client.info(f"{self._root}/{MARKER}")).is_dir
        except NotFound:
            return False

    async def _require_free(self, path: str) -> None:
        """Raise Conflict for a taken path before the data are sent. The rename at the end decides."""
        with suppress(NotFound):
            await self._client.info(path)
            raise Conflict(f"{self._client.uri}{path} exists already")

    async def _create_bytes(self, path: str, data: bytes) -> None:
        await self._create(
            path, partial(self._sender.fill, fill=lambda writer: writer.write(data)), len(data)
        )

    async def _create(self, path: str, write: Write, size: int) -> tuple[int, int]:
        """Write the new file `path` of about `size` bytes; returns (size, crc32c) of the bytes sent."""
        pauses = self._client.patience.pauses()
        block_bytes = None
        for tries_left in reversed(range(WRITE_TRIES)):
            part = self._part(path.rpartition("/")[0])
            try:
                sent = await write(part, block_bytes)
                with effect("store.name_file", StoreUnreachable):
                    await self._client.rename(part, path, overwrite=False)
            except BaseException as error:
                self._client.discard(part)
                if not tries_left or not isinstance(error, DataLost):
                    raise
                lost = not isinstance(error, NotJoined)
            else:
                return sent
            await pauses.wait()
            if lost:
                # Until the NameNode knows that a DataNode is lost, each new block may be put on it and fails;
                # a block that has begun survives its loss. So one block meets the lost one least often.
                block_bytes = (size // BLOCK_UNIT_BYTES + 1) * BLOCK_UNIT_BYTES
        raise AssertionError("the last try returns or raises")


async def _read_all(reader: HdfsReader, moved: Moved, target: NewFile | None = None) -> int:
    """Read the whole file, several ranges at a time, and write it to `target`; returns its crc32c."""
    starts = range(0, reader.size, STREAM_BYTES)
    found: dict[int, tuple[int, int]] = {}

    def take(at: int, data: bytes) -> None:
        if target is not None:
            target.write_at(at, data)
        moved(len(data))

    async def one(start: int) -> None:
        wanted = min(STREAM_BYTES, reader.size - start)
        found[start] = await reader.read_into(start, wanted, take)
        came = found[start][0]
        if came != wanted:
            raise DataLost(f"{reader.path}: {came} bytes came at offset {start} instead of {wanted}")

    await in_parallel(one, starts, STREAMS)
    return joined(found[start] for start in starts)


def _children(found: Iterable[FileInfo], directory: str, path: str) -> StoredDirectory:
    stored: list[StoredFile] = []
    directories: list[str] = []
    for one in found:
        parent, _, name = one.path.rpartition("/")
        if parent != directory or name == MARKER or name.startswith(PART_PREFIX):
            continue
        if one.is_dir:
            directories.append(name)
        else:
            stored.append(StoredFile(f"{path}/{name}" if path else name, one.size))
    return StoredDirectory(tuple(stored), tuple(directories))
