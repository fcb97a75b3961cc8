"""Reading an attempt's output on disk from any place, across the rotation of its files."""

from __future__ import annotations

import os
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.host.regular_files import open_regular
from recovery.logs.last_lines import LastLines
from supervisor.contract.views.jobs import LINES_WITHIN

OUTPUT = "output.log"
TIMES = "output.times"
MOST_FILES = 100
MOST_TIMES = 1000
"""Most times of one chunk: it ends before there are more."""
CHUNK_BYTES = 512 * 1024
_WINDOW_BYTES = 64
_TIME = struct.Struct("<2Q")
_MAX_MS = 1 << 53


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
    modified_ms: int


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


class _Times:
    """The times of one file, as its launcher has noted them: (offset, milliseconds), rising in both.

    A program can write anything to them: a time out of order hides those after it, and does no other harm.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._count = max(0, os.fstat(fd).st_size // _TIME.size - 1) if fd >= 0 else 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[int, int]:
        raw = os.pread(self._fd, _TIME.size, _TIME.size * (index + 1))
        offset, ms = _TIME.unpack(raw.ljust(_TIME.size, b"\xff"))
        return int(offset), int(ms)


def with_times(piece: Piece, directory: Path) -> tuple[Piece, tuple[tuple[int, int], ...]]:
    """A piece, cut so that it has MOST_TIMES at most, and its times: (position in it, milliseconds).

    Without the launcher's notes its file's time of change is the time of all.
    """
    file, start = piece.place.file, piece.place.offset - len(piece.data)
    found: list[tuple[int, int]] = []
    with _times_of(directory, file) as times:
        first = max(0, bisect_right(times, start, key=lambda pair: pair[0]) - 1)
        for index in range(first, len(times)):
            offset, ms = times[index]
            if offset >= piece.place.offset or not ms < _MAX_MS or (found and start + found[-1][0] > offset):
                break
            if len(found) == MOST_TIMES:
                return Piece(piece.data[: offset - start], Place(file, offset), piece.cut), tuple(found)
            found.append((max(0, offset - start), ms))
    if not found:
        found = [(0, part.modified_ms) for part in _parts(directory) if part.inode == file]
    return piece, tuple(found)


def bytes_since(directory: Path, since_ms: int) -> int:
    """The bytes of output that came at a time or later."""
    total = 0
    for part in _parts(directory):
        start = 0 if part.modified_ms >= since_ms else part.size
        with _times_of(directory, part.inode) as times:
            if len(times):
                index = bisect_left(times, since_ms, key=lambda pair: pair[1])
                start = times[index][0] if index < len(times) else part.size
                if index == len(times) and part.modified_ms >= since_ms:
                    start = times[index - 1][0]
        total += max(0, part.size - start)
    return total


def bytes_of_lines(directory: Path, lines: int) -> int:
    """The bytes of the last lines of output, as far as they are within LINES_WITHIN of its end."""
    last = LastLines(lines)
    for part in reversed(_parts(directory)):
        end = part.size
        while end and last.size < LINES_WITHIN:
            start = max(0, end - CHUNK_BYTES)
            block = _read(part, start, end - start)
            if not block or last.before(block):
                return last.size
            end = start
    return last.size


@contextmanager
def _times_of(directory: Path, inode: int) -> Iterator[_Times]:
    """The times of the file of an inode number; none if there are no notes of it."""
    fd = -1
    try:
        for number in range(MOST_FILES):
            path = directory / (f"{TIMES}.{number}" if number else TIMES)
            try:
                fd = open_regular(path)
            except OSError:
                if number:
                    break
                continue  # it is being rotated
            if os.pread(fd, _TIME.size, 0) == _TIME.pack(inode, 0):
                break
            os.close(fd)
            fd = -1
        yield _Times(fd)
    finally:
        if fd >= 0:
            os.close(fd)


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
        found[status.st_ino] = _Part(path, status.st_ino, status.st_size, status.st_mtime_ns // 1_000_000)
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
