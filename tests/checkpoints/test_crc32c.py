"""Checksums of pieces, joined, against the checksum of the whole."""

from __future__ import annotations

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from recovery.formats.crc32c import joined


def crc_of_zeros(size: int) -> int:
    return int(google_crc32c.value(bytes(size)))


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_pieces_joined_are_the_whole(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    assert joined((len(piece), google_crc32c.value(piece)) for piece in pieces) == google_crc32c.value(whole)


@given(st.binary(min_size=1, max_size=300), st.integers(1, 1 << 24))
def test_a_long_piece_behind(head: bytes, size: int) -> None:
    whole = google_crc32c.value(head + bytes(size))
    assert joined([(len(head), google_crc32c.value(head)), (size, crc_of_zeros(size))]) == whole


def test_the_order_counts() -> None:
    first, second = (1, google_crc32c.value(b"a")), (1, google_crc32c.value(b"b"))
    assert joined([first, second]) != joined([second, first])
