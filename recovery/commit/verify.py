"""Verification of a checkpoint's files. They are read once, at memory speed, without TensorFlow.

A tensor bundle holds the checksum of each of its tensors, an archive (`.keras`) those of its members, and an
HDF5 file (`.weights.h5`) its length. Other kinds of files have no test. Everything here blocks; run it in a
thread. The long part of it, reading and taking checksums, releases the interpreter's lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import google_crc32c

from recovery.commit.archives import check_members
from recovery.formats import meta_graph
from recovery.formats.bundle import (
    MAX_INDEX_BYTES,
    STRING,
    VARIANT,
    Bundle,
    Padding,
    Piece,
    read_index,
    regions,
)
from recovery.formats.bundle_values import MAX_LENGTH_BYTES, read_length, read_lengths
from recovery.formats.manifest import ManifestFile, hex_crc32c
from recovery.formats.soundness import (
    ARCHIVES,
    HEAD_BYTES,
    TAIL_BYTES,
    is_whole,
)
from recovery.formats.sstable import unmask
from recovery.formats.steps import counters
from recovery.formats.tf_files import FileSet, complete_set, require_set
from recovery.io import files
from recovery.io.files import GoOn
from supervisor.contract.boundaries import Moved, unwatched
from supervisor.contract.errors import BadCheckpoint

_CHUNK_BYTES = 1 << 20
"""google_crc32c releases the interpreter's lock for chunks of this size, but not for smaller ones."""

_WINDOW_BYTES = 1 << 16
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Verified:
    """Files that were read and passed the tests of their kinds.

    Attributes:
        files: with their sizes and checksums as they were read, sorted by name.
        tensors: the number of tensors, each verified; 0 without a tensor bundle.
        tf_version: the version of the TensorFlow that wrote them; empty if unknown.
        counters: name -> value of a tensor bundle's counters, from which its step follows.
    """

    files: tuple[ManifestFile, ...]
    tensors: int = 0
    tf_version: str = ""
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BundleSummary:
    """A bundle of which every byte was read and verified; `files` are its index and its data files."""

    bundle: Bundle
    files: tuple[ManifestFile, ...]


def verify_files(
    directory: Path,
    prefix: str,
    names: Sequence[str],
    go_on: GoOn = files.never_stop,
    moved: Moved = unwatched,
) -> Verified:
    """Read the files of one checkpoint once, and make all tests of their kinds.

    Args:
        directory: the directory of the files.
        prefix: the prefix of the tensor bundle; empty for a program's own files.
        names: relative to the directory; with a prefix, exactly the files of that bundle.
        go_on: called about every MiB; what it raises ends the work.
        moved: told how many bytes were read.

    Raises:
        BadCheckpoint: a file is missing, cut short or wrong; the text names it.
        OSError: a file could not be read; the checkpoint may be good.
    """
    found: list[ManifestFile] = []
    tensors = 0
    values: dict[str, int] = {}
    sets = [require_set(prefix, names)] if prefix else _bundles_among(names)
    for one in sets:
        summary = verify_bundle(directory, one.prefix, go_on, moved)
        if [file.name for file in summary.files] != [one.index, *one.shards]:
            raise BadCheckpoint(f"{one.index} names {summary.bundle.num_shards} data files; there are others")
        found += summary.files
        tensors += len(summary.bundle.tensors)
        values |= _read_counters(directory, one, summary.bundle)
    known = {file.name for file in found}
    found += [_verify_plain(directory, name, go_on, moved) for name in names if name not in known]
    metas = sorted(name for name in names if name.endswith((".meta", meta_graph.SAVED_MODEL)))
    version = next(filter(None, (_tf_version(directory / name) for name in metas)), "")
    return Verified(tuple(sorted(found)), tensors, version, values)


def verify_bundle(
    directory: Path, prefix: str, go_on: GoOn = files.never_stop, moved: Moved = unwatched
) -> BundleSummary:
    """Check that index and data files belong together: each byte, and the checksum of each tensor.

    Raises as `verify_files` does.
    """
    index = f"{prefix}.index"
    raw = _small(directory / index, MAX_INDEX_BYTES)
    moved(len(raw))
    with _about(index):
        bundle = read_index(raw)
    found = [ManifestFile(index, len(raw), hex_crc32c(google_crc32c.value(raw)))]
    by_shard: list[list[Piece]] = [[] for _ in range(bundle.num_shards)]
    for piece in bundle.pieces:
        by_shard[piece.shard].append(piece)
    for shard, pieces in enumerate(by_shard):
        name = f"{prefix}.data-{shard:05d}-of-{bundle.num_shards:05d}"
        with _about(name), _opened(directory / name) as fd:
            data = _Data(fd, go_on, moved)
            for region in regions(pieces, data.size):
                _check_region(data, region)
            found.append(ManifestFile(name, data.size, hex_crc32c(data.crc32c)))
    return BundleSummary(bundle, tuple(found))


class _Data:
    """A data file, read once from its beginning to its end; `crc32c` is that of all that was read."""

    def __init__(self, fd: int, go_on: GoOn, moved: Moved) -> None:
        self.size = os.fstat(fd).st_size
        self.crc32c = 0
        self._fd = fd
        self._go_on = go_on
        self._moved = moved
        self._offset = 0
        self._buffer = b""
        self._at = 0

    def take(self, most: int) -> bytes:
        """The next bytes: at least one, at most so many."""
        if self._at == len(self._buffer):
            self._buffer, self._at = self._read(), 0
        found = self._buffer[self._at : self._at + most]
        self._at += len(found)
        return found

    def chunks(self, size: int) -> Iterator[bytes]:
        """The next `size` bytes."""
        while size:
            chunk = self.take(size)
            size -= len(chunk)
            yield chunk

    def exactly(self, size: int) -> bytes:
        """The next `size` bytes, which are few."""
        return b"".join(self.chunks(size))

    def peek(self, most: int) -> bytes:
        """The next bytes, fewer than `most` only at the end; they are still to be taken."""
        while len(self._buffer) - self._at < most and self._offset < self.size:
            self._buffer, self._at = self._buffer[self._at :] + self._read(), 0
        return self._buffer[self._at : self._at + most]

    def _read(self) -> bytes:
        self._go_on()
        chunk = os.pread(self._fd, min(_CHUNK_BYTES, self.size - self._offset), self._offset)
        if not chunk:
            raise BadCheckpoint(f"it ends at byte {self._offset}")
        self._offset += len(chunk)
        self.crc32c = google_crc32c.extend(self.crc32c, chunk)
        self._moved(len(chunk))
        return chunk


def _check_region(data: _Data, region: Piece | Padding) -> None:
    if isinstance(region, Padding):
        if any(data.exactly(region.size)):
            raise BadCheckpoint("there is something between two tensors")
        return
    with _about(region.name):
        if region.dtype == STRING:
            found = _crc_of_strings(data, region)
        elif region.dtype == VARIANT:
            found = _crc_of_variants(data, region)
        else:
            found = _extend(0, data, region.size)
        if found != region.crc32c:
            raise BadCheckpoint("its checksum is wrong")


def _extend(crc: int, data: _Data, size: int) -> int:
    for chunk in data.chunks(size):
        crc = google_crc32c.extend(crc, chunk)
    return crc


def _crc_of_strings(data: _Data, piece: Piece) -> int:
    crc, total, count, left = 0, 0, piece.elements, piece.size
    if not left:
        return crc
    while count:
        window = data.peek(min(_WINDOW_BYTES, left))
        lengths = read_lengths(window, count, final=len(window) == left)
        if not lengths.used:
            raise BadCheckpoint("it has fewer strings than elements")
        data.exactly(lengths.used)
        crc = google_crc32c.extend(crc, lengths.coded)
        total += lengths.total
        count -= lengths.count
        left -= lengths.used
    if left != total + 4:
        raise BadCheckpoint("its strings are longer or shorter than it is")
    return _extend(_checked(crc, data), data, total)


def _crc_of_variants(data: _Data, piece: Piece) -> int:
    crc, left = 0, piece.size
    for _ in range(piece.elements):
        length, used, coded = read_length(data.peek(min(MAX_LENGTH_BYTES, left)))
        left -= used + length + 4
        if left < 0:
            raise BadCheckpoint("its elements are longer than it is")
        data.exactly(used)
        crc = _checked(_extend(google_crc32c.extend(crc, coded), data, length), data)
    if left:
        raise BadCheckpoint("its elements are shorter than it is")
    return crc


def _checked(crc: int, data: _Data) -> int:
    """Read the masked checksum at this place, which must be `crc`; returns the checksum of all bytes with
    it.
    """
    stored = data.exactly(4)
    if unmask(int.from_bytes(stored, "little")) != crc:
        raise BadCheckpoint("the checksum inside it is wrong")
    return int(google_crc32c.extend(crc, stored))


def _verify_plain(directory: Path, name: str, go_on: GoOn, moved: Moved) -> ManifestFile:
    found = _read(directory, name, go_on, moved)
    with _opened(directory / name) as fd:
        head = os.pread(fd, HEAD_BYTES, 0)
        tail = os.pread(fd, TAIL_BYTES, max(0, found.size - TAIL_BYTES))
    if is_whole(name, found.size, head, tail) is False:
        raise BadCheckpoint(f"{name} is torn, or not what its name says")
    if name.endswith(ARCHIVES):
        with _about(name), _opened(directory / name) as fd:
            check_members(fd, tail, go_on)
    return found


def _tf_version(path: Path) -> str:
    with _opened(path) as fd:
        return meta_graph.tf_version(path.name, os.pread(fd, meta_graph.HEAD_BYTES, 0))


def read_counters(directory: Path, one: FileSet) -> dict[str, int]:
    """Name -> value of a bundle's counters, from which its step follows. Nothing else of it is verified.

    Raises as `verify_files` does.
    """
    with _about(one.index):
        bundle = read_index(_small(directory / one.index, MAX_INDEX_BYTES))
        return _read_counters(directory, one, bundle)


def _read_counters(directory: Path, one: FileSet, bundle: Bundle) -> dict[str, int]:
    found = {}
    for piece in counters(bundle):
        if piece.shard >= len(one.shards):
            raise BadCheckpoint("it names data files that are not there")
        with _opened(directory / one.shards[piece.shard]) as fd:
            raw = os.pread(fd, piece.size, piece.offset)
        found[piece.name] = int.from_bytes(raw, "little", signed=True)
    return found


def _bundles_among(names: Sequence[str]) -> list[FileSet]:
    """The tensor bundles among a program's own files, such as that of a SavedModel."""
    prefixes = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    return [found for prefix in prefixes if (found := complete_set(prefix, names))]


def _read(directory: Path, name: str, go_on: GoOn, moved: Moved) -> ManifestFile:
    with _opened(directory / name) as fd:
        size, crc = files.crc32c_of_fd(fd, go_on, moved)
    return ManifestFile(name, size, hex_crc32c(crc))


def _small(path: Path, limit: int) -> bytes:
    with _opened(path) as fd:
        size = os.fstat(fd).st_size
        if size > limit:
            raise BadCheckpoint(f"{path.name} has {size} bytes; at most {limit} are allowed")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(limit)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor to read a regular file; a symbolic link is refused by the kernel (ELOOP)."""
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError as error:
        raise BadCheckpoint(f"{path.name} is missing") from error
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _about(name: str) -> Iterator[None]:
    """Add the name of the file to errors that are raised inside."""
    try:
        yield
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{name}: {error}") from error
