"""Reading a task's local files, which the task may change, replace or cut at any time. Blocking."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from recovery.io import files
from recovery.io.files import GoOn, beneath, never_stop, open_to_read
from recovery.outputs.note import Sent
from recovery.outputs.scan import Seen
from supervisor.contract.boundaries import Moved, unwatched

EDGE_BYTES = 64 << 10
_REPLACED = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENXIO})


class Changed(Exception):
    """A file has changed since it was found. The next pass sends it."""


class Unreadable(Exception):
    """A file cannot be read, for its rights or for an error of the disk. The text has the reason."""


def _opened(directory: Path, path: str, inode: int) -> int:
    """A descriptor of the file that was found. Raises Changed, Unreadable."""
    try:
        with beneath(directory, path) as (fd, name):
            source = open_to_read(name, fd)
    except OSError as error:
        if error.errno in _REPLACED:
            raise Changed(path) from error
        raise Unreadable(f"it cannot be read: {os.strerror(error.errno or 0)}") from error
    if os.fstat(source).st_ino != inode:
        os.close(source)
        raise Changed(path)
    return source


def _chunks(source: int, start: int, size: int, go_on: GoOn, moved: Moved) -> Iterator[bytes]:
    """`size` bytes of a file from `start`, in chunks. Raises Changed if it has become shorter."""
    at, end = start, start + size
    while at < end:
        go_on()
        try:
            data = os.pread(source, min(files.CHUNK_BYTES, end - at), at)
        except OSError as error:
            raise Unreadable(f"it cannot be read: {os.strerror(error.errno or 0)}") from error
        if not data:
            raise Changed("it has become shorter")
        yield data
        at += len(data)
        moved(len(data))


def copy_range(
    directory: Path,
    path: str,
    seen: Seen,
    start: int,
    size: int,
    target: Path,
    *,
    go_on: GoOn = never_stop,
    moved: Moved = unwatched,
) -> int:
    """Copy a range to a new file; returns its crc32c. Raises Changed, Unreadable, OSError."""
    source = _opened(directory, path, seen.inode)
    try:
        target.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(target, flags, 0o600)
        try:
            crc = 0
            for data in _chunks(source, start, size, go_on, moved):
                files.write_all(fd, data)
                crc = int(google_crc32c.extend(crc, data))
        finally:
            os.close(fd)
    finally:
        os.close(source)
    return crc


def crc_of(
    directory: Path, path: str, seen: Seen, *, go_on: GoOn = never_stop, moved: Moved = unwatched
) -> int:
    """The crc32c of a local file, as long as it was found. Blocking; raises Changed, Unreadable."""
    source = _opened(directory, path, seen.inode)
    try:
        crc = 0
        for data in _chunks(source, 0, seen.size, go_on, moved):
            crc = int(google_crc32c.extend(crc, data))
        return crc
    finally:
        os.close(source)


def edges_of(directory: Path, path: str, seen: Seen) -> tuple[int, int]:
    """Checksums of its first and last bytes. Blocking; raises Changed, OSError."""
    source = _opened(directory, path, seen.inode)
    try:
        return _edges(source, seen.size)
    finally:
        os.close(source)


def has_grown(directory: Path, path: str, sent: Sent, seen: Seen) -> bool:
    """Whether the file begins with the bytes that were sent, judged by the checksums of their edges."""
    if seen.inode != sent.inode:
        return False
    source = _opened(directory, path, seen.inode)
    try:
        return _edges(source, sent.size) == (sent.head, sent.tail)
    finally:
        os.close(source)


def _edges(fd: int, size: int) -> tuple[int, int]:
    """Checksums of the first and the last bytes of the first `size`."""
    length = min(EDGE_BYTES, size)
    try:
        head, tail = os.pread(fd, length, 0), os.pread(fd, length, size - length)
    except OSError as error:
        raise Unreadable(f"it cannot be read: {os.strerror(error.errno or 0)}") from error
    return int(google_crc32c.value(head)), int(google_crc32c.value(tail))
