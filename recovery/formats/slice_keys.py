"""The keys under which TensorFlow stores the slices of a partitioned variable. Pure.

A key holds the variable's name and each dimension's start and length, coded so that keys sort in that order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

WHOLE = (0, -1)
"""The extent of a dimension that is not divided: (start, length)."""

FIRST_BYTE = 0
"""The first byte of every such key. No name of a tensor begins with it."""

_SPECIAL = re.compile(rb"[\x00\xff]")
_END = b"\x00\x01"


def slice_key(name: bytes, extents: Sequence[tuple[int, int]]) -> bytes:
    """The key of the slice of `name` with one (start, length) for each dimension."""
    escaped = _SPECIAL.sub(lambda match: b"\x00\xff" if match[0] == b"\x00" else b"\xff\x00", name)
    parts = [bytes([FIRST_BYTE]), escaped, _END, _number(len(extents))]
    for start, length in extents:
        parts += [_signed(start), _signed(length)]
    return b"".join(parts)


def _number(value: int) -> bytes:
    size = (value.bit_length() + 7) // 8
    return bytes([size]) + value.to_bytes(size, "big")


def _signed(value: int) -> bytes:
    """Encode an integer: as many leading ones as there are bytes, then the value; all inverted if it is
    negative.
    """
    size = (~value if value < 0 else value).bit_length() // 7 + 1
    ones = ((1 << size) - 1) << (7 * size)
    return ((value & ((1 << 8 * size) - 1)) ^ ones).to_bytes(size, "big")
