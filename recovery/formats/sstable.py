"""LevelDB's table format, as TensorFlow writes the `.index` of a checkpoint. Pure.

TensorFlow neither compresses the blocks nor leaves anything between them. So a table is read only if its
blocks, their checksums and its footer account for each of its bytes: any flipped or missing one is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c

from recovery.formats.protobuf import read_varint
from supervisor.contract.errors import BadCheckpoint

MAX_TABLE_BYTES = 1 << 26
MAX_KEY_BYTES = 1 << 16
MAX_KEYS_BYTES = 1 << 28
"""Largest size of all keys together in bytes, with their shared prefixes written out."""

FOOTER_BYTES = 48
MAGIC = bytes.fromhex("57fb808b247547db")
_TRAILER_BYTES = 5
_MASK_DELTA = 0xA282EAD8
_U32 = 0xFFFFFFFF


def unmask(masked: int) -> int:
    """The crc32c that LevelDB and TensorFlow store as `masked`."""
    rotated = (masked - _MASK_DELTA) & _U32
    return (rotated >> 17 | rotated << 15) & _U32


def mask(crc: int) -> int:
    """The form in which LevelDB and TensorFlow store a crc32c."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _U32


@dataclass(frozen=True, slots=True)
class _Block:
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size + _TRAILER_BYTES


def read_table(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every (key, value), in the order of the keys.

    Raises BadCheckpoint, possibly after some entries: then none of them may be used.
    """
    if not FOOTER_BYTES < len(raw) <= MAX_TABLE_BYTES:
        raise BadCheckpoint(f"it has {len(raw)} bytes")
    footer_at = len(raw) - FOOTER_BYTES
    meta, index = _footer(raw[footer_at:])
    blocks = _index(_entries(_content(raw, index, footer_at)))
    _check_tiling([*(block for _, block in blocks), meta, index], footer_at)
    if any(True for _ in _entries(_content(raw, meta, footer_at))):
        raise BadCheckpoint("it names filters, which TensorFlow does not write")
    last: bytes | None = None
    keys_bytes = 0
    for limit, block in blocks:
        for key, value in _entries(_content(raw, block, footer_at)):
            keys_bytes += len(key)
            if last is not None and key <= last:
                raise BadCheckpoint(f"key {key[:80]!r} is repeated or out of order")
            if key > limit or keys_bytes > MAX_KEYS_BYTES:
                raise BadCheckpoint(f"key {key[:80]!r} is not in the block where it belongs, or one too many")
            last = key
            yield key, value
        last = limit


def _footer(footer: bytes) -> tuple[_Block, _Block]:
    end = FOOTER_BYTES - len(MAGIC)
    if footer[end:] != MAGIC:
        raise BadCheckpoint("it does not end as a table does")
    meta, at = _handle(footer, 0, end)
    index, at = _handle(footer, at, end)
    if any(footer[at:end]):
        raise BadCheckpoint("its footer is damaged")
    return meta, index


def _handle(data: bytes, at: int, end: int) -> tuple[_Block, int]:
    offset, at = read_varint(data, at, end)
    size, at = read_varint(data, at, end)
    return _Block(offset, size), at


def _index(entries: Iterator[tuple[bytes, bytes]]) -> list[tuple[bytes, _Block]]:
    """(upper bound of the block's keys, block) for each data block."""
    blocks: list[tuple[bytes, _Block]] = []
    for key, value in entries:
        block, at = _handle(value, 0, len(value))
        if at != len(value):
            raise BadCheckpoint("its list of blocks is damaged")
        blocks.append((key, block))
    return blocks


def _check_tiling(blocks: list[_Block], end: int) -> None:
    at = 0
    for block in blocks:
        if block.offset != at:
            raise BadCheckpoint(f"a block begins at byte {block.offset}, not at {at}")
        at = block.end
    if at != end:
        raise BadCheckpoint(f"its blocks end at byte {at}, not at {end}")


def _content(raw: bytes, block: _Block, end: int) -> bytes:
    if block.end > end:
        raise BadCheckpoint(f"the block at byte {block.offset} has {block.size} bytes: more than there are")
    content_end = block.offset + block.size
    if raw[content_end]:
        raise BadCheckpoint(f"the block at byte {block.offset} is compressed, which TensorFlow's never are")
    stored = int.from_bytes(raw[content_end + 1 : block.end], "little")
    if google_crc32c.value(raw[block.offset : content_end + 1]) != unmask(stored):
        raise BadCheckpoint(f"the block at byte {block.offset} has a wrong checksum")
    return raw[block.offset : content_end]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    end, restarts = _restarts(block)
    at, key, known = 0, b"", 0
    while at < end:
        start = at
        shared, at = read_varint(block, at, end)
        fresh, at = read_varint(block, at, end)
        size, at = read_varint(block, at, end)
        if shared > len(key) or shared + fresh > MAX_KEY_BYTES or fresh + size > end - at:
            raise BadCheckpoint(f"what follows key {key[:80]!r} is damaged")
        if known < len(restarts) and restarts[known] <= start:
            if restarts[known] != start or shared:
                raise BadCheckpoint(f"the restart at byte {restarts[known]} of a block is not one")
            known += 1
        key = key[:shared] + block[at : at + fresh]
        at += fresh
        yield key, block[at : at + size]
        at += size
    # An empty block has one restart all the same, at its beginning.
    if known != len(restarts) and (end, restarts) != (0, [0]):
        raise BadCheckpoint("a block has more restarts than entries")


def _restarts(block: bytes) -> tuple[int, list[int]]:
    """(offset of the end of the entries, offsets of the entries that share no prefix with the one before)."""
    count = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (count + 1)
    if len(block) < 4 or count < 1 or end < 0:
        raise BadCheckpoint(f"a block of {len(block)} bytes cannot have {count} restarts")
    found = [int.from_bytes(block[at : at + 4], "little") for at in range(end, len(block) - 4, 4)]
    if found[0] != 0:
        raise BadCheckpoint("the first restart of a block is not at its beginning")
    return end, found
