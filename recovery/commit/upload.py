"""Upload of a taken checkpoint's files to a directory of the store, and their verification there."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import partial
from typing import Protocol

from recovery.commit.outbox import TakenCheckpoint
from recovery.formats.manifest import ManifestFile, hex_crc32c
from recovery.io import files
from recovery.io.files import mapped_errors
from recovery.io.parallel import in_parallel
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import CheckpointStore, Moved, StoredFile
from supervisor.contract.checkpoint import Verify
from supervisor.contract.errors import BadCheckpoint, StoreUnreachable

FILES_AT_ONCE = 8
"""Files to upload at a time. Closing a small file in HDFS takes tens of milliseconds of waiting."""


class Publisher(Protocol):
    """A way to bring a checkpoint's files into the store."""

    async def publish(self, taken: TakenCheckpoint, directory: str, moved: Moved) -> None:
        """Make all files of the manifest be in `directory`, a new one, as the manifest has them.

        Raises:
            BadCheckpoint: the node's own copy is damaged.
            StoreUnreachable, Refused: the store's answer. The caller deletes the files that were written.
        """


class Uploader:
    """Copies the files, several at a time."""

    def __init__(self, store: CheckpointStore, verify: Verify, executor: Executor | None = None) -> None:
        self._store = store
        self._verify = verify
        self._executor = executor

    async def publish(self, taken: TakenCheckpoint, directory: str, moved: Moved) -> None:
        """Upload and verify each file; see `Publisher`. The largest first: they take longest."""

        async def one(file: ManifestFile) -> None:
            await self._upload(taken, file, f"{directory}/{file.name}", moved)

        by_size = sorted(taken.manifest.files, key=lambda file: file.size, reverse=True)
        await in_parallel(one, by_size, FILES_AT_ONCE)

    async def _upload(self, taken: TakenCheckpoint, file: ManifestFile, target: str, moved: Moved) -> None:
        source = taken.directory / file.name
        with effect("commit.upload", StoreUnreachable):
            stored = await self._store.upload(str(source), target, moved)
        moved(0)
        if stored.size == file.size and await self._arrived(taken, file, stored, moved):
            return
        if await self._source(taken, file, moved) != (file.size, file.crc32c):
            raise BadCheckpoint(f"{source} has changed since it was taken")
        raise StoreUnreachable(f"{target} is not what was sent: it has other bytes, or another size")

    async def _arrived(
        self, taken: TakenCheckpoint, file: ManifestFile, stored: StoredFile, moved: Moved
    ) -> bool:
        if self._verify is Verify.SIZE:
            return True
        if stored.crc32c is None:
            sent = (await self._source(taken, file, moved))[1]
        else:
            sent = hex_crc32c(stored.crc32c)
        if sent != file.crc32c or self._verify is Verify.CRC:
            return sent == file.crc32c
        return hex_crc32c(await self._store.crc32c(stored.path, moved)) == file.crc32c

    async def _source(self, taken: TakenCheckpoint, file: ManifestFile, moved: Moved) -> tuple[int, str]:
        """Size and checksum of the node's own file now."""
        source = taken.directory / file.name
        read = partial(files.crc32c_of_file, source, moved=moved)
        with mapped_errors(f"read {source}"):
            size, crc = await asyncio.get_running_loop().run_in_executor(self._executor, read)
        return size, hex_crc32c(crc)
