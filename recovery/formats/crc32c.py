"""Checksums of the pieces of a file as one: pieces that were read side by side need not be read again."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31
"""The polynomial 1: in crc32c's order of bits the highest bit belongs to x to the power of 0."""


def joined(pieces: Iterable[tuple[int, int]]) -> int:
    """The crc32c of pieces that follow each other; each is (size in bytes, crc32c)."""
    whole = 0
    for size, crc in pieces:
        whole = _times(whole, _zeros(size)) ^ crc
    return whole


@lru_cache(maxsize=64)
def _zeros(size: int) -> int:
    """The factor for a checksum that `size` more bytes follow: x to the power of the number of their bits."""
    power, square, left = _ONE, _ONE >> 1, size * 8
    while left:
        if left & 1:
            power = _times(power, square)
        square = _times(square, square)
        left >>= 1
    return power


def _times(left: int, right: int) -> int:
    """The product of two polynomials, modulo the one of crc32c."""
    product = 0
    while left:
        if left & _ONE:
            product ^= right
        left = left << 1 & 0xFFFFFFFF
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
    return product
