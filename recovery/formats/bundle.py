"""TensorFlow's tensor bundle: the tensors of a checkpoint and their places in its data files, from its
`.index`.

Pure.

A bundle is accepted only if every tensor has its place, its size and its checksum, and if TensorFlow itself
would read it. Otherwise BadCheckpoint names the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from recovery.formats.protobuf import Message
from recovery.formats.slice_keys import FIRST_BYTE, WHOLE, slice_key
from recovery.formats.sstable import MAX_TABLE_BYTES, read_table, unmask
from supervisor.contract.errors import BadCheckpoint

MAX_INDEX_BYTES = MAX_TABLE_BYTES
MAX_TENSORS = 1 << 20
MAX_SHARDS = 99_999
MAX_RANK = 254
MAX_PADDING = 4096
"""Largest alignment of tensors in bytes. A writer may align them to a power of two, with zeros between
them."""

STRING, VARIANT = 7, 21
_WIDTH = {
    **dict.fromkeys((4, 6, 10, 11, 12, *range(24, 34)), 1),
    **dict.fromkeys((5, 14, 15, 16, 17, 19), 2),
    **dict.fromkeys((1, 3, 13, 22), 4),
    **dict.fromkeys((2, 8, 9, 23), 8),
    18: 16,
}
"""TensorFlow's number of a type -> bytes an element. Types of four and fewer bits take a byte each."""

_RESOURCE = 20
_MAX_DTYPE = 99
"""Above it are the types of references, which are never stored."""

_MAX_SIZE = 1 << 62
_MAX_I32 = (1 << 31) - 1
_VERSION = 1
_SLICES, _PLACE = 7, (3, 4, 5, 6)
"""Fields of an entry: the slices of a partitioned tensor, and where the bytes of any other are."""

_LENGTH = 2


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as the program sees it; `dtype` is TensorFlow's number of its type (DataType)."""

    name: str
    dtype: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one data file: a tensor, or one slice of a partitioned one.

    Attributes:
        name: for people; a slice's has its extents behind it.
        offset: in bytes, in data file number `shard`.
        size: in bytes.
        crc32c: unmasked, over the bytes that `recovery.commit.verify` defines for this type.
    """

    name: str
    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The content of an index.

    Attributes:
        num_shards: the number of data files.
        tensors: name -> tensor, as `tf.train.list_variables` shows them.
        pieces: the places of their bytes, sorted by shard and offset; none overlap.
    """

    num_shards: int
    tensors: tuple[Tensor, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Padding:
    """Zeros in a data file, between tensors that are aligned."""

    size: int


def read_index(raw: bytes) -> Bundle:
    """Read an `.index` that may be damaged or hostile; raises BadCheckpoint."""
    rows = read_table(raw)
    key, value = next(rows, (b"no header", b""))
    if key:
        raise BadCheckpoint("its first entry is no header")
    with _naming(b"its header"):
        num_shards = _read_header(Message(value))
    tensors: list[Tensor] = []
    pieces: list[Piece] = []
    slices: dict[bytes, bytes] = {}
    divided: list[tuple[bytes, bytes]] = []
    for count, (key, value) in enumerate(rows, start=1):
        if count > MAX_TENSORS:
            raise BadCheckpoint(f"it has more than {MAX_TENSORS} entries")
        with _naming(key):
            message = Message(value)
            if key[0] == FIRST_BYTE:
                slices[key] = value
            elif _SLICES in message:
                divided.append((key, value))
            else:
                tensors.append(_read_tensor(key, message))
                pieces.append(_read_piece(tensors[-1], message, num_shards))
    for key, value in divided:
        with _naming(key):
            message = Message(value)
            tensors.append(_read_tensor(key, message))
            pieces += _read_slices(key, tensors[-1], message, slices, num_shards)
    for key in slices:
        raise BadCheckpoint(f"{_shown(key)}: it is a slice of no tensor")
    return Bundle(num_shards, tuple(sorted(tensors, key=_by_name)), _in_order(pieces))


def regions(pieces: Sequence[Piece], size: int) -> Iterator[Piece | Padding]:
    """All bytes of one data file in turn: its `pieces`, which are in order, and the padding between them.

    TensorFlow packs tensors densely, but its format lets a writer align them. Padding is accepted where it
    leads to a multiple of a power of two that all offsets and the size have in common; at the end only if
    there is some between the tensors, too.

    Raises BadCheckpoint unless pieces and padding cover each of the file's `size` bytes.
    """
    common = math.gcd(size, *(piece.offset for piece in pieces))
    alignment = min(common & -common, MAX_PADDING)
    at, dense = 0, True
    for piece in pieces:
        end = piece.offset + piece.size
        if end > size:
            raise BadCheckpoint(f"{piece.name}: it ends at byte {end} of a data file of {size} bytes")
        if at != piece.offset:
            dense = False
            yield _padding(at, piece.offset, alignment, piece.name)
        yield piece
        at = end
    if at != size:
        yield _padding(at, size, 1 if dense else alignment, "its end")


def _padding(at: int, end: int, alignment: int, name: str) -> Padding:
    if end - at >= alignment:
        raise BadCheckpoint(f"the {end - at} bytes before {name} belong to no tensor")
    return Padding(end - at)


def _read_header(header: Message) -> int:
    """The number of data files."""
    num_shards = header.integer(1, 1, MAX_SHARDS)
    if not num_shards:
        raise BadCheckpoint("it has no data files")
    if header.integer(2, 0, _MAX_I32) != 0:
        raise BadCheckpoint("it was written by a big-endian machine")
    version = Message(header.text(3))
    needs = version.integer(2, 0, _MAX_I32)
    if needs > _VERSION or _VERSION in version.integers(3, 0, _MAX_I32):
        raise BadCheckpoint(f"it has a version of the format that is not known here (it needs {needs})")
    return num_shards


def _read_tensor(key: bytes, message: Message) -> Tensor:
    dtype = message.integer(1, 1, _MAX_DTYPE)
    if dtype in {0, _RESOURCE}:
        raise BadCheckpoint(f"it has type {dtype}, of which nothing can be stored")
    return Tensor(_shown(key), dtype, _read_shape(message))


def _read_shape(entry: Message) -> tuple[int, ...]:
    message = Message(entry.text(2))
    dimensions = message.messages(2, MAX_RANK)
    if message.integer(3, 0, 1):
        raise BadCheckpoint("it has an unknown number of dimensions")
    shape = tuple(dimension.integer(1, 0, _MAX_SIZE) for dimension in dimensions)
    if math.prod(shape) > _MAX_SIZE:
        raise BadCheckpoint("it has too many elements")
    return shape


def _read_piece(tensor: Tensor, message: Message, num_shards: int) -> Piece:
    piece = Piece(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        shard=message.integer(3, 0, num_shards - 1),
        offset=message.integer(4, 0, _MAX_SIZE),
        size=message.integer(5, 0, _MAX_SIZE),
        crc32c=unmask(message.fixed32(6)),
    )
    if not _fits(piece):
        raise BadCheckpoint(
            f"type {piece.dtype} with shape {list(piece.shape)} cannot take {piece.size} bytes"
        )
    return piece


def _fits(piece: Piece) -> bool:
    """Whether the piece's size fits its elements; any size fits a type that this module does not know."""
    if piece.dtype == STRING:
        return piece.size >= piece.elements + 4 or piece.size == piece.elements == 0
    if piece.dtype == VARIANT:
        return piece.size >= 5 * piece.elements if piece.elements else piece.size == 0
    width = _WIDTH.get(piece.dtype)
    return width is None or piece.size == width * piece.elements


def _read_slices(
    key: bytes, tensor: Tensor, message: Message, slices: dict[bytes, bytes], num_shards: int
) -> Iterator[Piece]:
    """The pieces of a partitioned tensor, taken out of `slices`."""
    if any(number in message for number in _PLACE):
        raise BadCheckpoint("it is divided into slices, and has a place all the same")
    for part in message.messages(_SLICES, len(slices)):
        extents = tuple(_read_extent(extent) for extent in part.messages(1, MAX_RANK))
        shape = _slice_shape(tensor.shape, extents)
        value = slices.pop(slice_key(key, extents), None)
        if value is None:
            raise BadCheckpoint(f"its slice {_shown_extents(extents)} is missing, or named twice")
        own = Message(value)
        if _SLICES in own or (own.integer(1, 0, _MAX_I32), _read_shape(own)) != (tensor.dtype, shape):
            raise BadCheckpoint(f"its slice {_shown_extents(extents)} has another type or shape")
        shown = Tensor(f"{tensor.name} {_shown_extents(extents)}", tensor.dtype, shape)
        yield _read_piece(shown, own, num_shards)


def _read_extent(message: Message) -> tuple[int, int]:
    if _LENGTH not in message:
        return WHOLE
    return message.integer(1, 0, _MAX_SIZE), message.integer(_LENGTH, 0, _MAX_SIZE)


def _slice_shape(whole: tuple[int, ...], extents: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    if len(extents) != len(whole):
        raise BadCheckpoint(f"a slice has {len(extents)} dimensions, not {len(whole)}")
    shape = []
    for size, (start, length) in zip(whole, extents, strict=True):
        if start + max(length, 0) > size:
            raise BadCheckpoint(f"a slice ends at {start + length} of {size}")
        shape.append(size if (start, length) == WHOLE else length)
    return tuple(shape)


def _in_order(pieces: list[Piece]) -> tuple[Piece, ...]:
    pieces.sort(key=lambda piece: (piece.shard, piece.offset, piece.size))
    for before, piece in pairwise(pieces):
        if before.shard == piece.shard and before.offset + before.size > piece.offset:
            raise BadCheckpoint(f"{piece.name}: it has bytes in common with {before.name}")
    return tuple(pieces)


@contextmanager
def _naming(key: bytes) -> Iterator[None]:
    """Add the name of the entry to errors that are raised inside."""
    try:
        yield
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{_shown(key)[:200]}: {error}") from error


def _shown(key: bytes) -> str:
    """The key as text for people, without control characters."""
    text = key.decode(errors="backslashreplace")
    return text if text.isprintable() else ascii(text)


def _shown_extents(extents: tuple[tuple[int, int], ...]) -> str:
    parts = (":" if each == WHOLE else f"{each[0]}:{sum(each)}" for each in extents)
    return f"[{', '.join(parts)}]"


def _by_name(tensor: Tensor) -> str:
    return tensor.name
