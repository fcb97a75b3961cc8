"""An attempt's output on disk, read from any place in it, across the rotation of its files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from agent.regular import open_regular

OUTPUT = "output.log"
MOST_FILES = 100
CHUNK_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes, and the place after them: the inode number of a file, and an offset in it.

    `cut`: output before these bytes was asked for but is gone, or was left out.
    """

    data: bytes
    file: int
    offset: int
    cut: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    path: Path
    inode: int
    size: int


def read_end(directory: Path, last_bytes: int) -> Piece:
    """The first chunk of the last `last_bytes`, all files together."""
    parts = _parts(directory)
    skip = max(0, sum(part.size for part in parts) - last_bytes)
    cut = skip > 0
    for part in parts:
        if skip < part.size or part is parts[-1]:
            piece = read_after(directory, part.inode, skip)
            return Piece(piece.data, piece.file, piece.offset, cut)
        skip -= part.size
    return Piece(b"", 0, 0)


def read_after(directory: Path, file: int, offset: int) -> Piece:
    """The next chunk after a place; empty at the end. Where the file is gone, from the oldest one on."""
    while True:
        parts = _parts(directory)
        if not parts:
            return Piece(b"", file, offset)
        index = next((i for i, part in enumerate(parts) if part.inode == file), -1)
        cut = index < 0 or offset > parts[index].size
        if cut:
            index, offset = 0, 0
        part = parts[index]
        data = _read(part, offset)
        if data is None:
            continue  # it was rotated meanwhile
        if data or index == len(parts) - 1:
            return Piece(data, part.inode, offset + len(data), cut)
        # A newer file was there before this one was read to its end: nothing is added to it any more.
        file, offset = parts[index + 1].inode, 0


def _parts(directory: Path) -> list[_Part]:
    """All files, the oldest first. Rotation moves them to higher numbers: upwards none can be missed."""
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


def _read(part: _Part, offset: int) -> bytes | None:
    try:
        fd = open_regular(part.path)
    except FileNotFoundError:
        return None
    try:
        if os.fstat(fd).st_ino != part.inode:
            return None
        return os.pread(fd, CHUNK_BYTES, offset)
    finally:
        os.close(fd)
