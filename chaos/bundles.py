"""Writes tensor bundles as TensorFlow does, without it: for simulated programs, and to try the reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import google_crc32c

FLOAT, STRING, VARIANT = 1, 7, 21
MAGIC = bytes.fromhex("57fb808b247547db")
Row = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor, or a slice of one: `data` is what stands in the file, `crc32c` what its entry says of it."""

    dtype: int
    shape: tuple[int, ...]
    data: bytes
    crc32c: int


def plain(dtype: int, shape: Sequence[int], data: bytes) -> Value:
    """Numbers."""
    return Value(dtype, tuple(shape), data, google_crc32c.value(data))


def strings(shape: Sequence[int], texts: Sequence[bytes]) -> Value:
    """Strings, whose checksum is taken over lengths of fixed width."""
    crc = google_crc32c.value(b"".join(_fixed(len(text), 4) for text in texts))
    check = _fixed(mask(crc), 4)
    joined = b"".join(texts)
    lengths = b"".join(varint(len(text)) for text in texts)
    return Value(STRING, tuple(shape), lengths + check + joined, google_crc32c.extend(crc, check + joined))


def variants(shape: Sequence[int], parts: Sequence[bytes]) -> Value:
    """Variants, each with the checksum of all before it."""
    crc, data = 0, b""
    for part in parts:
        crc = google_crc32c.extend(crc, _fixed(len(part), 8) + part)
        check = _fixed(mask(crc), 4)
        crc = google_crc32c.extend(crc, check)
        data += varint(len(part)) + part + check
    return Value(VARIANT, tuple(shape), data, crc)


def bundle(
    prefix: str, shards: Sequence[Mapping[bytes, Value]], more: Iterable[Row] = (), alignment: int = 1
) -> dict[str, bytes]:
    """File name -> content of a bundle with these tensors in each of its data files.

    Args:
        prefix: of the names.
        shards: key -> tensor, in the order in which they stand in the file.
        more: further rows of the index.
        alignment: each tensor begins at a multiple of it.
    """
    rows, found = list(more), {}
    for shard, tensors in enumerate(shards):
        data = b""
        for key, value in tensors.items():
            rows.append((key, entry(value, shard, len(data))))
            data += value.data
            data += bytes(-len(data) % alignment)
        found[f"{prefix}.data-{shard:05d}-of-{len(shards):05d}"] = data
    return {**found, f"{prefix}.index": table([(b"", header(len(shards))), *sorted(rows)])}


def header(num_shards: int, endianness: int = 0, producer: int = 1, min_consumer: int = 0) -> bytes:
    """A BundleHeaderProto."""
    version = number(1, producer) + number(2, min_consumer)
    return number(1, num_shards) + number(2, endianness) + text(3, version)


def entry(value: Value, shard: int, offset: int) -> bytes:
    """A BundleEntryProto."""
    place = number(3, shard) + number(4, offset) + number(5, len(value.data))
    return number(1, value.dtype) + text(2, shape_of(value.shape)) + place + fixed32(6, mask(value.crc32c))


def divided_entry(dtype: int, shape: Sequence[int], slices: Iterable[Sequence[tuple[int, int]]]) -> bytes:
    """The BundleEntryProto of a partitioned tensor: for each slice, (start, length) of each dimension.

    A length below zero: the dimension is not divided.
    """
    parts = (text(7, b"".join(text(1, _extent(*each)) for each in extents)) for extents in slices)
    return number(1, dtype) + text(2, shape_of(shape)) + b"".join(parts)


def _extent(start: int, length: int) -> bytes:
    """A length of zero is written, other than proto3's zeros: its being there says that there is one."""
    return number(1, start) + varint(2 << 3) + varint(length) if length >= 0 else b""


def shape_of(shape: Sequence[int]) -> bytes:
    """A TensorShapeProto."""
    return b"".join(text(2, number(1, size)) for size in shape)


def table(rows: Sequence[Row], block_bytes: int = 1 << 18, restart_interval: int = 16) -> bytes:
    """A LevelDB table with these rows, as they are."""
    raw, index, waiting = b"", [], list(rows)
    while waiting:
        taken, size = [waiting.pop(0)], 0
        while waiting and size < block_bytes:
            size += sum(map(len, waiting[0]))
            taken.append(waiting.pop(0))
        index.append((taken[-1][0], _handle(raw, content := block(taken, restart_interval))))
        raw += sealed(content)
    handles = b""
    for content in (block([], 1), block(index, 1)):
        handles += _handle(raw, content)
        raw += sealed(content)
    return raw + handles.ljust(40, b"\0") + MAGIC


def block(rows: Sequence[Row], restart_interval: int) -> bytes:
    """The content of one block: keys without what they share with the one before, and the restarts."""
    content, restarts, before = b"", [0], b""
    for count, (key, value) in enumerate(rows):
        shared = 0
        if count % restart_interval:
            shared = sum(
                1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(key, before, strict=False))
            )
        elif count:
            restarts.append(len(content))
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    return content + b"".join(_fixed(each, 4) for each in (*restarts, len(restarts)))


def sealed(content: bytes, kind: int = 0) -> bytes:
    """A block with its type and checksum behind it."""
    whole = content + bytes([kind])
    return whole + _fixed(mask(google_crc32c.value(whole)), 4)


def mask(crc: int) -> int:
    """A crc32c in the form that LevelDB and TensorFlow store."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    """A number of 64 bits; a negative one is its two's complement."""
    value &= (1 << 64) - 1
    found = b""
    while value >= 0x80:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def number(field: int, value: int) -> bytes:
    """A field of a message; proto3 leaves out zeros."""
    return varint(field << 3) + varint(value) if value else b""


def text(field: int, value: bytes) -> bytes:
    """A string or message in a field of a message."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def fixed32(field: int, value: int) -> bytes:
    """A fixed32 in a field of a message."""
    return varint(field << 3 | 5) + _fixed(value, 4)


def _fixed(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def _handle(raw: bytes, content: bytes) -> bytes:
    return varint(len(raw)) + varint(len(content))
