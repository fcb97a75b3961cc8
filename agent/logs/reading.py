"""Reading an attempt's output on disk from any place, across the rotation of its files."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from agent.host.regular_files import open_regular

OUTPUT = "output.log"
MOST_FILES = 100
CHUNK_BYTES = 512 * 1024
_WINDOW_BYTES = 64


@dataclass(frozen=True, slots=True)
class Place:
    """The inode number of a file, and an offset in it.

    `mark` is the crc32 of the last bytes before the offset: the inode number of a removed file may be reused.
    None is not compared.
    """

    file: int = 0
    offset: int = 0
    mark: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes, and the place after them.

    `cut`: requested output before these bytes is gone, or was left out.
    """

    data: bytes
    place: Place
    cut: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    path: Path
    inode: int
    size: int


def read_end(directory: Path, last_bytes: int) -> Piece:
    """The first chunk of the last `last_bytes` of all files together."""
    parts = _parts(directory)
    skip = max(0, sum(part.size for part in parts) - last_bytes)
    cut = skip > 0
    for part in parts:
        if skip < part.size or part is parts[-1]:
            piece = read_after(directory, Place(part.inode, skip))
            return Piece(piece.data, piece.place, cut)
        skip -= part.size
    return Piece(b"", Place())


def read_after(directory: Path, place: Place) -> Piece:
    """The next chunk after a place; empty at the end. If the file is gone, it begins with the oldest one."""
    while True:
        parts = _parts(directory)
        if not parts:
            return Piece(b"", place)
        index = next((i for i, part in enumerate(parts) if part.inode == place.file), -1)
        before = b""
        cut = index < 0 or place.offset > parts[index].size
        if not cut:
            first = max(0, place.offset - _WINDOW_BYTES)
            found = _read(parts[index], first, place.offset - first)
            if found is None:
                continue  # it was rotated meanwhile
            before = found
            cut = place.mark not in {None, zlib.crc32(before)}
        if cut:
            index, before, place = 0, b"", Place(parts[0].inode)
        part = parts[index]
        data = _read(part, place.offset, CHUNK_BYTES)
        if data is None:
            continue
        if data or index == len(parts) - 1:
            mark = zlib.crc32((before + data)[-_WINDOW_BYTES:])
            return Piece(data, Place(part.inode, place.offset + len(data), mark), cut)
        # A newer file was there before this one was read to its end: nothing is added to it any more.
        place = Place(parts[index + 1].inode)


def _parts(directory: Path) -> list[_Part]:
    """All files, the oldest first. They are read upwards, so that a rotation to higher numbers hides none."""
    found: dict[int, _Part] = {}
    missing = 0
    for number in range(MOST_FILES):
        path = directory / (f"{OUTPUT}.{number}" if number else OUTPUT)
        try:
            status = path.lstat()
        except FileNotFoundError:
            missing += 1
            if missing > 1:
                break
            continue  # a rotation under way leaves one gap
        missing = 0
        found[status.st_ino] = _Part(path, status.st_ino, status.st_size)
    return list(reversed(found.values()))


def _read(part: _Part, offset: int, size: int) -> bytes | None:
    """Up to `size` bytes; None if the file no longer has this name."""
    try:
        fd = open_regular(part.path)
    except FileNotFoundError:
        return None
    try:
        if os.fstat(fd).st_ino != part.inode:
            return None
        return os.pread(fd, size, offset)
    finally:
        os.close(fd)
