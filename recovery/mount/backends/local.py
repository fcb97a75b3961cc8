"""A `Backend` over a directory of this machine, for the tests of the mount."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from recovery.formats.paths import split_directory
from recovery.io.files import fsync_directory, mapped_errors, write_all
from recovery.io.trees import remove_tree
from recovery.mount.backends.backend import Entry
from supervisor.contract.errors import Conflict, NotFound

T = TypeVar("T")


class LocalReader:
    """`Reader` of a local file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size = os.fstat(fd).st_size

    @property
    def size(self) -> int:
        """The size in bytes at its opening."""
        return self._size

    async def read(self, offset: int, size: int) -> bytes:
        """See `Reader`."""
        return await _run(lambda: os.pread(self._fd, size, offset), "read a file")

    async def close(self) -> None:
        """See `Reader`."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class LocalWriter:
    """`Writer` of a local file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    async def copy(self, read: Callable[[], bytes]) -> None:
        """See `Writer`."""

        def work() -> None:
            while piece := read():
                write_all(self._fd, piece)

        await _run(work, "write a file")

    async def close(self) -> None:
        """See `Writer`."""
        await _run(lambda: os.fsync(self._fd), "write a file")
        await self.abandon()

    async def abandon(self) -> None:
        """See `Writer`."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class LocalBackend:
    """`Backend` below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def info(self, path: str) -> Entry | None:
        """See `Backend`."""
        target = self._at(path)

        def look() -> Entry | None:
            try:
                return _entry(target)
            except (FileNotFoundError, NotADirectoryError):
                return None

        return await _run(look, f"look at {target}")

    async def list(self, path: str) -> tuple[Entry, ...]:
        """See `Backend`."""
        target = self._at(path)

        def scan() -> tuple[Entry, ...]:
            found = []
            for child in sorted(target.iterdir()):
                with suppress(FileNotFoundError):
                    found.append(_entry(child))
            return tuple(found)

        return await _run(scan, f"list {target}")

    async def probe(self, path: str) -> None:
        """See `Backend`."""
        target = self._at(path)

        def scan() -> None:
            with os.scandir(target) as entries:
                next(entries, None)

        await _run(scan, f"list {target}")

    async def mkdirs(self, path: str) -> None:
        """See `Backend`."""
        target = self._at(path)
        await _run(lambda: target.mkdir(parents=True, exist_ok=True), f"make {target}")

    async def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """See `Backend`. It checks the target before it moves: enough for tests, and for them alone."""
        old, new = self._at(source), self._at(target)

        def move() -> None:
            if not overwrite and new.exists() and old.exists():
                raise Conflict(f"{target} exists already")
            old.rename(new)
            fsync_directory(new.parent)

        await _run(move, f"rename {old} to {new}")

    async def delete(self, path: str, *, recursive: bool) -> bool:
        """See `Backend`."""
        target = self._at(path)

        def remove() -> bool:
            try:
                if target.is_symlink() or not target.is_dir():
                    target.unlink()
                elif recursive:
                    remove_tree(target)
                else:
                    target.rmdir()
            except FileNotFoundError:
                return False
            return True

        return await _run(remove, f"delete {target}")

    async def open(self, path: str) -> LocalReader:
        """See `Backend`."""
        target = self._at(path)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return LocalReader(await _run(lambda: os.open(target, flags), f"read {target}"))

    async def create(self, path: str) -> LocalWriter:
        """See `Backend`."""
        target = self._at(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return LocalWriter(await _run(lambda: os.open(target, flags, 0o644), f"write {target}"))

    async def append(self, path: str) -> LocalWriter:
        """See `Backend`."""
        target = self._at(path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        return LocalWriter(await _run(lambda: os.open(target, flags), f"append to {target}"))

    async def close(self) -> None:
        """See `Backend`."""

    def _at(self, path: str) -> Path:
        return self._root.joinpath(*split_directory(path))


async def _run(work: Callable[[], T], doing: str) -> T:
    def mapped() -> T:
        with mapped_errors(doing):
            try:
                return work()
            except (IsADirectoryError, FileExistsError) as error:
                raise Conflict(f"cannot {doing}: {error.strerror}") from error
            except NotADirectoryError as error:
                raise NotFound(f"cannot {doing}: {error.strerror}") from error
            except OSError as error:
                if error.errno == errno.ENOTEMPTY:
                    raise Conflict(f"cannot {doing}: {error.strerror}") from error
                raise

    return await asyncio.to_thread(mapped)


def _entry(path: Path) -> Entry:
    status = path.lstat()
    directory = stat.S_ISDIR(status.st_mode)
    return Entry(path.name, 0 if directory else status.st_size, status.st_mtime_ns // 1_000_000, directory)
