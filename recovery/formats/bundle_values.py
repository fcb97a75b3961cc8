"""The lengths of strings in a tensor bundle: their encoding, and the bytes that their checksum covers.

Pure.

A string tensor is: a varint length for each element, 4 bytes with their checksum, then the strings. The
checksums are taken over the lengths as numbers of fixed width, not over the varints.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from recovery.formats.protobuf import read_varint

MAX_LENGTH_BYTES = 10
_MAX_U32 = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Lengths:
    """Some lengths of a string tensor.

    Attributes:
        count: the number of lengths.
        used: the bytes that they take in the file.
        total: their sum.
        coded: the bytes that the checksum covers.
    """

    count: int
    used: int
    total: int
    coded: bytes


def read_lengths(data: bytes, most: int, *, final: bool) -> Lengths:
    """The first lengths in `data`, at most so many; `final`: nothing follows it, so it ends with a whole one.

    Raises BadCheckpoint.
    """
    single = data[:most]
    if single.isascii():
        count = len(single)
        return Lengths(count, count, sum(single), struct.pack(f"<{count}I", *single))
    at = count = total = 0
    coded = bytearray()
    enough = len(data) if final else len(data) - MAX_LENGTH_BYTES + 1
    while count < most and at < enough:
        length, at = read_varint(data, at, len(data))
        coded += length.to_bytes(4 if length <= _MAX_U32 else 8, "little")
        total += length
        count += 1
    return Lengths(count, at, total, bytes(coded))


def read_length(data: bytes) -> tuple[int, int, bytes]:
    """(length, bytes that it takes, bytes that the checksum covers) of one variant; raises BadCheckpoint."""
    length, used = read_varint(data, 0, len(data))
    return length, used, length.to_bytes(8, "little")
