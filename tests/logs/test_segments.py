"""The form of stored logs: names that are an index, and content that another writer may have made up."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.logs.segments import (
    MAX_BYTES,
    Segment,
    SegmentHead,
    SegmentName,
    Span,
    attempts_in,
    decode_segment,
    encode_segment,
    segment_after,
    segments_in,
)
from supervisor.contract import codec
from supervisor.contract.errors import IncompatibleRecord

NUMBERS = st.integers(0, 2**63 - 1)


def name(serial: int, revision: int = 1, file: int = 7, offset: int = 10) -> SegmentName:
    return SegmentName(
        serial=serial, revision=revision, size=10, first_ms=1, last_ms=2, file=file, offset=offset
    )


@given(st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1), NUMBERS, NUMBERS, NUMBERS, st.booleans())
def test_a_name_is_read_as_it_was_written(
    serial: int, revision: int, size: int, first: int, file: int, whole: bool
) -> None:
    made = SegmentName(
        serial=serial,
        revision=revision,
        size=size,
        first_ms=first,
        last_ms=first,
        file=file,
        offset=size,
        whole=whole,
    )
    assert SegmentName.parse(str(made)) == made


@pytest.mark.parametrize("text", ["", "stacks-17", "000001-000001", f"{'9' * 30}-000001-1-1-1-1-1", "a/b"])
def test_other_names_are_left_out(text: str) -> None:
    assert SegmentName.parse(text) is None


def test_of_each_segment_the_newest_revision_counts() -> None:
    names = [name(1, 2), name(0, 1), name(1, 1), name(0, 3), name(0, 2)]
    found, stale = segments_in([*map(str, names), "stacks-1"])
    assert found == [name(0, 3), name(1, 2)]
    assert sorted(stale, key=str) == [name(0, 1), name(0, 2), name(1, 1)]


def test_a_place_on_the_node_leads_to_its_segment() -> None:
    segments = [name(0, file=7, offset=10), name(1, file=7, offset=20), name(2, file=8, offset=5)]
    places = [(7, 0), (7, 10), (7, 20), (8, 4), (8, 5), (9, 0)]
    assert [segment_after(segments, *place) for place in places] == [0, 1, 2, 2, 3, -1]


def test_attempts_are_in_their_order() -> None:
    assert attempts_in(["g10.1", "g2.10", "g2.9", "g0.1", "other", "g1.x"]) == [(2, 9), (2, 10), (10, 1)]


def test_positions_and_places_belong_together() -> None:
    segment = Segment("n0", b"0123456789", (Span(0, 7, 100, 104), Span(4, 8, 0, 6)), ((0, 5), (6, 9)))
    assert decode_segment(encode_segment(segment)) == segment
    assert [segment.position(*place) for place in ((7, 100), (7, 103), (8, 0), (8, 6), (9, 0))] == [
        *(0, 3, 4, 10, None)
    ]
    assert [segment.place(position) for position in (0, 3, 4, 10)] == [(7, 100), (7, 103), (8, 0), (8, 6)]
    assert segment.times_of(4, 8) == ((0, 5), (2, 9))
    assert segment.since(6) == 6
    assert segment.since(10) == 10


HEAD = codec.encode(SegmentHead("n", (), 1)) + b"\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"rubbish",
        encode_segment(Segment("n", b"whole"))[:-3],
        zlib.compress(b"no head"),
        zlib.compress(HEAD + b"short"),
        zlib.compress(HEAD + (99).to_bytes(8, "little") + bytes(8)),
        zlib.compress(HEAD + bytes(8) + b"\xff" * 8),
        zlib.compress(codec.encode(SegmentHead("n", (), 2**40)) + b"\n"),
        zlib.compress(codec.encode(SegmentHead("n", (Span(-1, 0, 0, 0),), 0)) + b"\n"),
        zlib.compress(codec.encode(SegmentHead("n", (), 0)) + b"\n" + bytes(8 * MAX_BYTES)),
    ],
)
def test_wrong_content_is_refused(raw: bytes) -> None:
    with pytest.raises(IncompatibleRecord):
        decode_segment(raw)
