"""Reading outputs in a store: the newest index of each task, and files brought into a local directory."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import stat
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from recovery.formats.paths import PART_PREFIX
from recovery.io import files
from recovery.io.files import beneath, mapped_errors
from recovery.outputs.index import (
    INDEX,
    MAX_INDEX_BYTES,
    OUTPUTS,
    PIECES,
    OutputFile,
    OutputIndex,
    Piece,
    directory_of,
    index_name,
    is_member,
    parse_index,
)
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import CheckpointStore, Moved, unwatched
from supervisor.contract.errors import BadCheckpoint, Conflict, IncompatibleRecord, NotFound, StoreUnreachable

T = TypeVar("T")
TRIES = 5


async def read_index(
    store: CheckpointStore, base: str, known: OutputIndex | None = None
) -> OutputIndex | None:
    """The newest index of the task whose outputs are below `base`; None if it has sent nothing yet.

    It returns `known` itself if that is the newest. Raises StoreUnreachable, Refused, IncompatibleRecord.
    """
    for _ in range(TRIES):
        names = sorted(file.path for file in (await store.list(f"{base}/{INDEX}")).files)
        if not names:
            return None
        if known is not None and names[-1].endswith(f"/{index_name(known.serial)}"):
            return known
        with suppress(NotFound):  # a newer one was written meanwhile, and this one removed
            raw = await store.read_bytes(names[-1], MAX_INDEX_BYTES)
            index = await asyncio.to_thread(parse_index, raw)
            if (index.member, index_name(index.serial)) != (_last(base), _last(names[-1])):
                raise IncompatibleRecord(f"{names[-1]} is the index of another task, or of another time")
            return index
    raise StoreUnreachable(f"the index below {base} changes too fast to be read")


def _last(path: str) -> str:
    return path.rpartition("/")[2]


async def members_of(store: CheckpointStore, job_uuid: str) -> tuple[str, ...]:
    """The tasks of a job that have sent anything, as `ROLE.INDEX`. Raises StoreUnreachable, Refused."""
    return tuple(name for name in (await store.list(f"{OUTPUTS}/{job_uuid}")).directories if is_member(name))


async def read_outputs(store: CheckpointStore, job_uuid: str) -> tuple[OutputIndex, ...]:
    """The newest index of each task of a job, by member. Raises as `read_index`."""
    members = await members_of(store, job_uuid)
    found = [await read_index(store, directory_of(job_uuid, member)) for member in members]
    return tuple(index for index in found if index is not None)


@dataclass(frozen=True, slots=True)
class Have:
    """A local file that was fetched earlier: its version, and its size so far."""

    version: str
    size: int


class Fetcher:
    """Fetches files of one task's outputs into `directory`.

    Each file comes to `spool` first, a directory that no other process writes to, and is then moved to its
    place by descriptors, so that a link of the program's cannot lead elsewhere.

    Args:
        owner: (uid, gid) that a brought file is given; None: this process's own.
    """

    def __init__(
        self,
        store: CheckpointStore,
        base: str,
        directory: Path,
        spool: Path,
        threads: Executor | None = None,
        owner: tuple[int, int] | None = None,
    ) -> None:
        self._store = store
        self._base = base
        self._directory = directory
        self._spool = spool
        self._threads = threads
        self._owner = owner

    async def fetch(
        self, path: str, file: OutputFile, have: Have | None = None, moved: Moved = unwatched
    ) -> None:
        """Give the local file `path` the content of `file`, replacing any file there.

        If `have` shows that the beginning of this version is there, the rest is appended, so that a reader
        that has the file open sees it grow.

        Raises NotFound: the index is out of date; BadCheckpoint: the store's bytes are wrong; Conflict:
        something other than a file is in the way; StoreUnreachable, Refused.
        """
        start = have.size if have is not None and have.version == file.version else 0
        if not 0 < start <= file.size:
            start = 0
        part = self._spool / f"{PART_PREFIX}{secrets.token_hex(8)}"
        await self._run(partial(_make, self._spool, part))
        try:
            for piece in file.pieces:
                if piece.offset + piece.size > start:
                    await self._add(piece, part, max(0, start - piece.offset), moved)
            grown = start > 0 and await self._run(
                partial(_append, part, self._directory, path, start, file.modified_ms)
            )
            if start and not grown:
                await self.fetch(path, file, None, moved)
            elif not start:
                await self._run(partial(_put, part, self._directory, path, file.modified_ms, self._owner))
        finally:
            await self._run(partial(part.unlink, missing_ok=True))

    async def _add(self, piece: Piece, part: Path, skip: int, moved: Moved) -> None:
        came = part.with_name(f"{part.name}-piece")
        try:
            with effect("outputs.download", StoreUnreachable):
                stored = await self._store.download(f"{self._base}/{PIECES}/{piece.name}", str(came), moved)
            if (stored.size, stored.crc32c) != (piece.size, piece.crc32c):
                raise BadCheckpoint(f"{self._base}/{PIECES}/{piece.name} is not what was sent")
            await self._run(partial(_join, came, part, skip))
        finally:
            await self._run(partial(came.unlink, missing_ok=True))

    async def _run(self, work: Callable[[], T]) -> T:
        def mapped() -> T:
            with mapped_errors(f"write below {self._directory}"):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._threads, mapped)


def _make(spool: Path, part: Path) -> None:
    spool.mkdir(parents=True, exist_ok=True)
    part.touch(0o644, exist_ok=False)


def _join(came: Path, part: Path, skip: int) -> None:
    source = os.open(came, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.lseek(source, skip, os.SEEK_SET)
        target = os.open(part, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            files.copy_between(source, target)
        finally:
            os.close(target)
    finally:
        os.close(source)


def _put(part: Path, directory: Path, path: str, modified_ms: int, owner: tuple[int, int] | None) -> None:
    """Move `part` to its place. Missing directories are made, and given to `owner`."""
    if owner is not None and os.geteuid() == 0:
        _make_parents(directory, path, owner)
        os.chown(part, *owner)
    os.utime(part, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
    try:
        with beneath(directory, path, make=True) as (fd, name), effect("outputs.put"):
            if _is_directory(fd, name):
                raise Conflict(f"{directory / path} is a directory there")
            _move(part, fd, name)
    except (NotADirectoryError, FileExistsError) as error:
        raise Conflict(f"something that is no directory is in the way of {directory / path}") from error
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise Conflict(f"a symbolic link is in the way of {directory / path}") from error


def _move(part: Path, fd: int, name: str) -> None:
    """Rename `part`, or copy it beside its place first if it is on another file system."""
    try:
        os.rename(part, name, dst_dir_fd=fd)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    else:
        return
    beside, status = f"{PART_PREFIX}{secrets.token_hex(8)}", part.stat()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    target = os.open(beside, flags, 0o644, dir_fd=fd)
    try:
        try:
            files.copy_to_fd(part, target)
            if os.geteuid() == 0:
                os.fchown(target, status.st_uid, status.st_gid)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(target)
        os.rename(beside, name, src_dir_fd=fd, dst_dir_fd=fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside, dir_fd=fd)
        raise


def _make_parents(directory: Path, path: str, owner: tuple[int, int]) -> None:
    parts = path.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        with suppress(OSError), beneath(directory, "/".join(parts[:depth])) as (fd, name):
            os.mkdir(name, dir_fd=fd)
            os.chown(name, *owner, dir_fd=fd, follow_symlinks=False)


def _append(part: Path, directory: Path, path: str, start: int, modified_ms: int) -> bool:
    """Append `part` to the local file; False if that no longer has exactly the first `start` bytes."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with beneath(directory, path) as (fd, name):
            target = os.open(name, flags, dir_fd=fd)
    except OSError:
        return False
    try:
        status = os.fstat(target)
        if not stat.S_ISREG(status.st_mode) or status.st_size != start:
            return False
        with effect("outputs.append"):
            source = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
            try:
                files.copy_between(source, target)
            finally:
                os.close(source)
        os.utime(target, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
    finally:
        os.close(target)
    return True


def _is_directory(fd: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
