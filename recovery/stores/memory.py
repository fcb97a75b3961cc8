"""The checkpoint store of the simulator: in memory, deterministic, with delays and faults by request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import google_crc32c

from recovery.formats.paths import split_directory, split_path
from recovery.io.files import mapped_errors
from supervisor.contract.boundaries import Moved, StoredDirectory, StoredFile, unwatched
from supervisor.contract.errors import Conflict, NotFound, StoreUnreachable, UserError


class Moment(Enum):
    """The moments of a hook: before any effect, with data half written, and after the effect."""

    BEFORE = "before"
    HALF = "half"
    AFTER = "after"


Hook = Callable[[str, str, Moment], Awaitable[None]]
"""Called with (operation, path, moment). Sleeps to delay; raises to fail, with the effect of that moment."""


@dataclass(slots=True)
class MemoryDisk:
    """The stored files. Several stores, each with its own faults, may share one disk."""

    files: dict[str, bytes] = field(default_factory=dict)
    prepared: bool = False


@dataclass(frozen=True, slots=True)
class LocalSide:
    """Access to files of the machine on which a store is used."""

    read: Callable[[str], bytes]
    write_new: Callable[[str, bytes], None]


def _write_new(path: str, data: bytes) -> None:
    with Path(path).open("xb") as file:
        file.write(data)


REAL_FILES = LocalSide(lambda path: Path(path).read_bytes(), _write_new)


async def no_fault(_operation: str, _path: str, _moment: Moment) -> None:
    """The hook that does nothing."""


class MemoryCheckpointStore:
    """`CheckpointStore` over a `MemoryDisk`; passes the same contract suite as the real ones."""

    def __init__(
        self, disk: MemoryDisk | None = None, hook: Hook = no_fault, local: LocalSide = REAL_FILES
    ) -> None:
        self.disk = disk if disk is not None else MemoryDisk()
        self.hook = hook
        self._local = local

    async def prepare(self) -> None:
        """Make the root; see `CheckpointStore`."""
        await self.hook("prepare", "", Moment.BEFORE)
        self.disk.prepared = True
        await self.hook("prepare", "", Moment.AFTER)

    async def upload(self, source: str, path: str, moved: Moved = unwatched) -> StoredFile:
        """Copy the local file `source` to the new file `path`; see `CheckpointStore`."""
        with mapped_errors(f"read {source}"):
            data = self._local.read(source)
        await self._create("upload", path, data)
        moved(len(data))
        return StoredFile(path, len(data), int(google_crc32c.value(data)))

    async def download(self, path: str, target: str, moved: Moved = unwatched) -> StoredFile:
        """Copy `path` to the new local file `target`; see `CheckpointStore`."""
        await self._begin("download", path)
        data = self._find(path)
        await self.hook("download", path, Moment.HALF)
        with mapped_errors(f"write {target}"):
            self._local.write_new(target, data)
        moved(len(data))
        await self.hook("download", path, Moment.AFTER)
        return StoredFile(path, len(data), int(google_crc32c.value(data)))

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Create the new file `path`; see `CheckpointStore`."""
        await self._create("write_bytes", path, data)

    async def read_bytes(self, path: str, limit: int) -> bytes:
        """The whole of a small file; see `CheckpointStore`."""
        await self._begin("read_bytes", path)
        data = self._find(path)
        if len(data) > limit:
            raise UserError(f"{path} is larger than {limit} bytes")
        return data

    async def crc32c(self, path: str, moved: Moved = unwatched) -> int:
        """Read a file back; see `CheckpointStore`."""
        await self._begin("crc32c", path)
        data = self._find(path)
        moved(len(data))
        return int(google_crc32c.value(data))

    async def list(self, path: str) -> StoredDirectory:
        """Children of a directory; see `CheckpointStore`."""
        split_directory(path)
        await self._ready("list", path)
        prefix = f"{path}/" if path else ""
        files: list[StoredFile] = []
        directories: set[str] = set()
        for name, data in sorted(self.disk.files.items()):
            if name.startswith(prefix):
                child, below, _ = name[len(prefix) :].partition("/")
                if below:
                    directories.add(child)
                else:
                    files.append(StoredFile(name, len(data)))
        return StoredDirectory(tuple(files), tuple(sorted(directories)))

    async def rename(self, source: str, target: str) -> None:
        """Move a directory atomically; see `CheckpointStore`."""
        split_path(target)
        await self._begin("rename", source)
        if source in self.disk.files:
            raise UserError(f"{source} is not a directory")
        moved = [name for name in self.disk.files if name.startswith(f"{source}/")]
        if not moved:
            raise NotFound(f"{source} does not exist")
        if self._taken(target):
            raise Conflict(f"{target} exists already")
        for name in moved:
            self.disk.files[target + name[len(source) :]] = self.disk.files.pop(name)
        await self.hook("rename", source, Moment.AFTER)

    async def delete_tree(self, path: str) -> None:
        """Remove a directory and all below it; see `CheckpointStore`."""
        await self._begin("delete_tree", path)
        if path in self.disk.files:
            raise UserError(f"{path} is not a directory")
        doomed = [name for name in self.disk.files if name.startswith(f"{path}/")]
        for name in doomed[: len(doomed) // 2]:
            del self.disk.files[name]
        await self.hook("delete_tree", path, Moment.HALF)
        for name in doomed[len(doomed) // 2 :]:
            self.disk.files.pop(name, None)
        await self.hook("delete_tree", path, Moment.AFTER)

    async def delete_file(self, path: str) -> None:
        """Remove a file; see `CheckpointStore`."""
        await self._begin("delete_file", path)
        if path not in self.disk.files and self._taken(path):
            raise UserError(f"{path} is not a file")
        self.disk.files.pop(path, None)
        await self.hook("delete_file", path, Moment.AFTER)

    async def _begin(self, operation: str, path: str) -> None:
        split_path(path)
        await self._ready(operation, path)

    async def _ready(self, operation: str, path: str) -> None:
        await self.hook(operation, path, Moment.BEFORE)
        if not self.disk.prepared:
            raise StoreUnreachable("the store was not prepared")

    async def _create(self, operation: str, path: str, data: bytes) -> None:
        parts = split_path(path)
        await self._ready(operation, path)
        await self.hook(operation, path, Moment.HALF)
        above = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
        if self._taken(path) or any(directory in self.disk.files for directory in above):
            raise Conflict(f"{path} exists already, or a file is in its way")
        self.disk.files[path] = data
        await self.hook(operation, path, Moment.AFTER)

    def _find(self, path: str) -> bytes:
        if path in self.disk.files:
            return self.disk.files[path]
        if self._taken(path):
            raise UserError(f"{path} is not a file")
        raise NotFound(f"{path} does not exist")

    def _taken(self, path: str) -> bool:
        return path in self.disk.files or any(name.startswith(f"{path}/") for name in self.disk.files)
