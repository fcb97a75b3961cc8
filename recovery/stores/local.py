"""The checkpoint store in a local directory (or on any POSIX file system that is mounted everywhere)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

from recovery.formats.paths import MARKER, PART_PREFIX, split_directory, split_path
from recovery.io import files, trees
from recovery.io.files import GoOn, mapped_errors
from recovery.io.in_thread import stoppable
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Moved, StoredDirectory, StoredFile, unwatched
from supervisor.contract.errors import Conflict, NotFound, StoreUnreachable, UserError

T = TypeVar("T")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LocalStore:
    """`CheckpointStore` below `root`, an absolute path.

    Every path is walked from the root by descriptors that refuse symbolic links, so nothing leads out of it.
    Blocking work runs in `executor` (the loop's own by default). A cancelled call stops at its next chunk of
    data and takes its temporary file away; a cancelled `rename` or `delete_tree` may still happen.
    """

    def __init__(self, root: Path, executor: Executor | None = None) -> None:
        if not root.is_absolute():
            raise UserError(f"checkpoint directory {str(root)!r} must be an absolute path")
        self._root = root
        self._executor = executor

    async def prepare(self) -> None:
        """Make the root and prove that it can be written; see `CheckpointStore`."""
        await self._run(self._prepare)

    async def upload(self, source: str, path: str, moved: Moved = unwatched) -> StoredFile:
        """Copy the local file `source` to the new file `path`; see `CheckpointStore`."""
        parts = split_path(path)

        def work(go_on: GoOn) -> StoredFile:
            with (
                mapped_errors(f"copy {source} to {self._shown(parts)}"),
                self._parent(parts, create=True) as fd,
            ):
                with effect("store.upload"), files.new_file(fd, parts[-1], go_on) as target:
                    size, crc = files.copy_to_fd(Path(source), target, go_on, moved)
                return StoredFile(path, size, crc)

        return await self._run(work)

    async def download(self, path: str, target: str, moved: Moved = unwatched) -> StoredFile:
        """Copy `path` to the new local file `target`; see `CheckpointStore`."""
        parts = split_path(path)

        def work(go_on: GoOn) -> StoredFile:
            local = Path(target)
            with mapped_errors(f"copy {self._shown(parts)} to {target}"), self._opened(parts) as source:
                directory = os.open(local.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    with (
                        effect("store.download"),
                        files.new_file(directory, local.name, go_on, durable=False) as copy,
                    ):
                        size, crc = files.copy_between(source, copy, go_on, moved)
                finally:
                    os.close(directory)
            return StoredFile(path, size, crc)

        return await self._run(work)

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Create the new file `path`; see `CheckpointStore`."""
        parts = split_path(path)

        def work(go_on: GoOn) -> None:
            with (
                mapped_errors(f"write {self._shown(parts)}"),
                self._parent(parts, create=True) as fd,
                effect("store.write"),
                files.new_file(fd, parts[-1], go_on) as target,
            ):
                files.write_all(target, data)

        await self._run(work)

    async def read_bytes(self, path: str, limit: int) -> bytes:
        """The whole of a small file; see `CheckpointStore`."""
        parts = split_path(path)

        def work(go_on: GoOn) -> bytes:
            with mapped_errors(f"read {self._shown(parts)}"), self._opened(parts) as fd:
                data = b""
                while len(data) <= limit and (chunk := os.read(fd, limit + 1 - len(data))):
                    go_on()
                    data += chunk
            if len(data) > limit:
                raise UserError(f"{self._shown(parts)} is larger than {limit} bytes")
            return data

        return await self._run(work)

    async def crc32c(self, path: str, moved: Moved = unwatched) -> int:
        """Read a file back; see `CheckpointStore`."""
        parts = split_path(path)

        def work(go_on: GoOn) -> int:
            with mapped_errors(f"read {self._shown(parts)}"), self._opened(parts) as fd:
                return files.crc32c_of_fd(fd, go_on, moved)[1]

        return await self._run(work)

    async def list(self, path: str) -> StoredDirectory:
        """Children of a directory; see `CheckpointStore`."""
        parts = split_directory(path)

        def work(_: GoOn) -> StoredDirectory:
            with mapped_errors(f"list {self._shown(parts)}"):
                try:
                    with self._directory(parts, create=False) as fd:
                        return _children(fd, path)
                except (NotFound, FileNotFoundError):
                    return StoredDirectory()

        return await self._run(work)

    async def rename(self, source: str, target: str) -> None:
        """Move a directory atomically; see `CheckpointStore`."""
        old, new = split_path(source), split_path(target)

        def work(_: GoOn) -> None:
            doing = mapped_errors(f"rename {self._shown(old)} to {self._shown(new)}")
            with doing, self._parent(old, create=False) as old_fd, self._parent(new, create=True) as new_fd:
                self._require_directory(old_fd, old)
                with effect("store.rename"):
                    files.rename_directory_no_replace(old_fd, old[-1], new_fd, new[-1])
                    os.fsync(new_fd)
                    os.fsync(old_fd)

        await self._run(work)

    async def delete_tree(self, path: str) -> None:
        """Remove a directory and all below it; see `CheckpointStore`."""
        parts = split_path(path)

        def work(_: GoOn) -> None:
            with mapped_errors(f"delete {self._shown(parts)}"):
                try:
                    with self._parent(parts, create=False) as fd:
                        self._require_directory(fd, parts)
                        with effect("store.delete_tree"):
                            trees.remove_tree(parts[-1], dir_fd=fd)
                            os.fsync(fd)
                except (NotFound, FileNotFoundError):
                    return

        await self._run(work)

    async def delete_file(self, path: str) -> None:
        """Remove a file; see `CheckpointStore`."""
        parts = split_path(path)

        def work(_: GoOn) -> None:
            with mapped_errors(f"delete {self._shown(parts)}"):
                try:
                    with self._parent(parts, create=False) as fd:
                        if stat.S_ISDIR(os.stat(parts[-1], dir_fd=fd, follow_symlinks=False).st_mode):
                            raise UserError(f"{self._shown(parts)} is not a file")
                        with effect("store.delete_file"):
                            os.unlink(parts[-1], dir_fd=fd)
                except (NotFound, FileNotFoundError):
                    return

        await self._run(work)

    async def _run(self, work: Callable[[GoOn], T]) -> T:
        return await stoppable(self._executor, work)

    def _prepare(self, _: GoOn) -> None:
        with mapped_errors(f"use {self._root} for checkpoints"):
            with effect("store.prepare"):
                self._root.mkdir(parents=True, exist_ok=True)
                files.fsync_directory(self._root.parent)
            fd = os.open(self._root, _DIRECTORY & ~os.O_NOFOLLOW)
            try:
                probe = os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=fd)
                os.close(probe)
                if not _exists(fd, MARKER):
                    _make_marker(fd)
            finally:
                os.close(fd)

    def _shown(self, parts: tuple[str, ...]) -> str:
        return str(self._root.joinpath(*parts))

    @contextmanager
    def _directory(self, parts: tuple[str, ...], *, create: bool) -> Iterator[int]:
        fd = self._open_root()
        try:
            for depth, part in enumerate(parts, 1):
                child = self._enter(fd, part, self._shown(parts[:depth]), create=create)
                os.close(fd)
                fd = child
            yield fd
        finally:
            os.close(fd)

    def _parent(self, parts: tuple[str, ...], *, create: bool) -> AbstractContextManager[int]:
        return self._directory(parts[:-1], create=create)

    @contextmanager
    def _opened(self, parts: tuple[str, ...]) -> Iterator[int]:
        with self._parent(parts, create=False) as directory:
            fd = os.open(parts[-1], _READ, dir_fd=directory)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise UserError(f"{self._shown(parts)} is not a file")
                yield fd
            finally:
                os.close(fd)

    def _require_directory(self, fd: int, parts: tuple[str, ...]) -> None:
        if not stat.S_ISDIR(os.stat(parts[-1], dir_fd=fd, follow_symlinks=False).st_mode):
            raise UserError(f"{self._shown(parts)} is not a directory")

    def _open_root(self) -> int:
        try:
            fd = os.open(self._root, _DIRECTORY & ~os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise StoreUnreachable(f"{self._root} does not exist; is its file system mounted?") from error
        if not _exists(fd, MARKER):
            os.close(fd)
            raise StoreUnreachable(
                f"{self._root} is no checkpoint store ({MARKER} is missing); is its file system mounted?"
            )
        return fd

    def _enter(self, fd: int, name: str, shown: str, *, create: bool) -> int:
        if create:
            try:
                with effect("store.make_directory"):
                    os.mkdir(name, dir_fd=fd)
                    os.fsync(fd)
            except FileExistsError:
                pass
        try:
            return os.open(name, _DIRECTORY, dir_fd=fd)
        except OSError as error:
            if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
                raise
            if stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                raise UserError(f"{shown} is a symbolic link; a store follows none") from error
            if create:
                raise Conflict(f"{shown} is a file, not a directory") from error
            raise NotFound(f"{shown} is a file, not a directory") from error


def _exists(fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _make_marker(fd: int) -> None:
    try:
        with effect("store.mark"), files.new_file(fd, MARKER) as marker:
            files.write_all(marker, b"tf-supervisor checkpoint store, layout 1\n")
    except FileExistsError:
        return


def _children(fd: int, path: str) -> StoredDirectory:
    found: list[StoredFile] = []
    directories: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.name == MARKER or entry.name.startswith(PART_PREFIX):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(status.st_mode):
                directories.append(entry.name)
            elif stat.S_ISREG(status.st_mode):
                found.append(StoredFile(f"{path}/{entry.name}" if path else entry.name, status.st_size))
    found.sort(key=lambda file: file.path)
    return StoredDirectory(tuple(found), tuple(sorted(directories)))
