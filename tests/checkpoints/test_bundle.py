"""The reader of tensor bundles: it reads what a writer makes, and refuses whatever else there may be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.bundles import (
    FLOAT,
    MAGIC,
    STRING,
    VARIANT,
    Row,
    Value,
    block,
    bundle,
    divided_entry,
    entry,
    fixed32,
    header,
    number,
    plain,
    sealed,
    shape_of,
    strings,
    table,
    text,
    variants,
    varint,
)
from recovery.formats.bundle import MAX_RANK, Padding, Piece, Tensor, read_index, regions
from recovery.formats.bundle_values import read_lengths
from recovery.formats.protobuf import Message, read_varint
from recovery.formats.slice_keys import WHOLE, slice_key
from recovery.formats.sstable import MAX_KEY_BYTES, MAX_KEYS_BYTES, MAX_TABLE_BYTES, read_table
from supervisor.contract.errors import BadCheckpoint

HEADER: Row = (b"", header(1))
W = plain(FLOAT, [2], b"12345678")


def index_of(*rows: Row) -> bytes:
    return table([HEADER, *rows])


# What a writer makes is read as it was meant.

_KEYS = st.binary(min_size=1, max_size=30).filter(lambda key: key[0] != 0)
_VALUES = st.one_of(
    st.builds(
        lambda n, m: plain(1, [n, m], bytes(range(256))[: 4 * n * m]), st.integers(0, 8), st.integers(0, 8)
    ),
    st.binary(max_size=40).map(lambda data: plain(4, [len(data)], data)),
    st.binary(min_size=2, max_size=2).map(lambda data: plain(14, [], data)),
    st.lists(st.binary(max_size=300), max_size=5).map(lambda texts: strings([len(texts)], texts)),
    st.lists(st.binary(max_size=300), max_size=5).map(lambda parts: variants([1, len(parts)], parts)),
)
SHARDS = 3
_PLACED = st.dictionaries(_KEYS, st.tuples(st.integers(0, SHARDS - 1), _VALUES), max_size=16)


@given(_PLACED, st.sampled_from([1, 8, 64]))
def test_what_was_written_is_read(placed: Mapping[bytes, tuple[int, Value]], alignment: int) -> None:
    shards = [{key: value for key, (at, value) in placed.items() if at == shard} for shard in range(SHARDS)]
    files = bundle("m-1", shards, alignment=alignment)
    found = read_index(files["m-1.index"])
    assert found.num_shards == SHARDS
    assert len(found.tensors) == len(placed)
    wanted = sorted(
        (shard, value.dtype, value.shape, value.crc32c, value.data) for shard, value in placed.values()
    )
    got = []
    for piece in found.pieces:
        data = files[f"m-1.data-{piece.shard:05d}-of-{SHARDS:05d}"]
        got.append(
            (
                piece.shard,
                piece.dtype,
                piece.shape,
                piece.crc32c,
                data[piece.offset : piece.offset + piece.size],
            )
        )
    assert sorted(got) == wanted
    for shard in range(SHARDS):
        size = len(files[f"m-1.data-{shard:05d}-of-{SHARDS:05d}"])
        pieces = [piece for piece in found.pieces if piece.shard == shard]
        end = max((piece.offset + piece.size for piece in pieces), default=0)
        if end < size and end == sum(piece.size for piece in pieces):
            continue  # padding at the end alone
        parts = list(regions(pieces, size))
        assert sum(part.size for part in parts) == size
        assert alignment > 1 or not any(isinstance(part, Padding) for part in parts)


@given(
    st.dictionaries(st.binary(max_size=12), st.binary(max_size=40), min_size=1, max_size=60),
    st.integers(1, 300),
    st.integers(1, 20),
)
def test_a_table_of_any_shape(rows: Mapping[bytes, bytes], block_bytes: int, restart_interval: int) -> None:
    ordered = sorted(rows.items())
    assert list(read_table(table(ordered, block_bytes, restart_interval))) == ordered


@given(st.integers(0, (1 << 64) - 1))
def test_varints(value: int) -> None:
    raw = varint(value)
    assert read_varint(b"x" + raw + b"x", 1, len(raw) + 1) == (value, len(raw) + 1)
    for size in range(len(raw)):
        with pytest.raises(BadCheckpoint):
            read_varint(raw, 0, size)


@pytest.mark.parametrize(
    "raw", [b"\x80\x00", b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01", b"\xff" * 100, b""]
)
def test_numbers_that_no_encoder_writes(raw: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        read_varint(raw, 0, len(raw))


@given(st.lists(st.integers(0, 1 << 34), max_size=30), st.integers(1, 40), st.booleans())
def test_lengths_of_strings_in_windows_of_any_size(lengths: list[int], window: int, short: bool) -> None:
    if short:
        lengths = [length % 128 for length in lengths]
    raw = b"".join(varint(length) for length in lengths)
    window += 10
    at, coded, total, count = 0, b"", 0, 0
    while count < len(lengths):
        part = read_lengths(raw[at : at + window], len(lengths) - count, final=at + window >= len(raw))
        assert part.used
        at, coded, total, count = at + part.used, coded + part.coded, total + part.total, count + part.count
    assert (at, total) == (len(raw), sum(lengths))
    assert coded == b"".join(each.to_bytes(4 if each < 1 << 32 else 8, "little") for each in lengths)


@pytest.mark.parametrize(("length", "width"), [(0, 4), (127, 4), (128, 4), ((1 << 32) - 1, 4), (1 << 32, 8)])
def test_the_checksum_is_taken_over_four_bytes_of_a_length_that_fits_in_them(length: int, width: int) -> None:
    found = read_lengths(varint(length), 1, final=True)
    assert (found.count, found.total, found.coded) == (1, length, length.to_bytes(width, "little"))


# Whatever else there may be is refused: a BadCheckpoint, and nothing else.


@given(st.binary(max_size=300))
def test_rubbish(raw: bytes) -> None:
    for whole in (raw, raw + bytes(40) + MAGIC):
        with pytest.raises(BadCheckpoint):
            read_index(whole)


@given(st.binary(max_size=60))
def test_any_message_is_read_or_refused(raw: bytes) -> None:
    for rows in ([(b"", raw)], [HEADER, (b"name", raw)]):
        try:
            read_index(table(rows))
        except BadCheckpoint:
            continue


_FIELDS = st.one_of(
    st.builds(number, st.integers(1, 8), st.integers(0, 1 << 64)),
    st.builds(text, st.integers(1, 8), st.binary(max_size=8)),
    st.builds(fixed32, st.integers(1, 8), st.integers(0, (1 << 32) - 1)),
    st.builds(lambda sizes: text(2, shape_of(sizes)), st.lists(st.integers(0, 1 << 64), max_size=4)),
    st.builds(
        lambda sizes: divided_entry(1, [4], [[(size, size)] for size in sizes]), st.lists(st.integers(0, 9))
    ),
)


@given(st.lists(_FIELDS, max_size=6).map(b"".join), st.lists(_FIELDS, max_size=3).map(b"".join))
def test_any_fields_are_read_or_refused(fields: bytes, more: bytes) -> None:
    rows = [(slice_key(b"name", [(1, 1)]), more), (b"name", fields), (b"other", entry(W, 0, 8))]
    try:
        found = read_index(index_of(*rows))
    except BadCheckpoint:
        return
    assert all(piece.offset >= 0 and piece.size >= 0 and piece.shard == 0 for piece in found.pieces)


def of(dtype: int, shape: Sequence[int], size: int, offset: int = 0, shard: int = 0) -> bytes:
    return entry(Value(dtype, tuple(shape), bytes(size), 0), shard, offset)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(of(FLOAT, [2], 7), id="size is not that of the elements"),
        pytest.param(of(FLOAT, [], 0), id="a scalar without bytes"),
        pytest.param(of(FLOAT, [1 << 31, 1 << 31, 2], 8), id="more elements than a file can hold"),
        pytest.param(
            number(1, FLOAT) + text(2, shape_of([1 << 61])) + number(5, 1 << 62), id="elements that overflow"
        ),
        pytest.param(of(FLOAT, [-1], 4), id="a dimension below zero"),
        pytest.param(of(FLOAT, [1] * (MAX_RANK + 1), 4), id="too many dimensions"),
        pytest.param(of(STRING, [5], 8), id="fewer bytes than lengths"),
        pytest.param(of(STRING, [1], 0), id="a string without bytes"),
        pytest.param(of(VARIANT, [2], 9), id="fewer bytes than variants need"),
        pytest.param(of(VARIANT, [0], 4), id="bytes of no variant"),
        pytest.param(of(0, [1], 4), id="no type"),
        pytest.param(of(20, [1], 4), id="a resource"),
        pytest.param(of(101, [1], 4), id="a reference"),
        pytest.param(of(-1, [1], 4), id="a type below zero"),
        pytest.param(of(FLOAT, [1], 4, shard=1), id="a shard that is not there"),
        pytest.param(of(FLOAT, [1], 4, shard=-1), id="a shard below zero"),
        pytest.param(of(FLOAT, [1], 4, offset=-4), id="an offset below zero"),
        pytest.param(of(FLOAT, [1], 4, offset=1 << 63), id="an offset out of range"),
        pytest.param(number(1, FLOAT) + text(2, number(3, 1)) + number(5, 4), id="an unknown rank"),
        pytest.param(of(FLOAT, [1], 4) + number(5, 4), id="a field twice"),
        pytest.param(of(FLOAT, [1], 4)[:-1], id="cut short"),
        pytest.param(number(1, FLOAT) + text(2, b"\x12"), id="a shape that is cut short"),
        pytest.param(number(1, FLOAT) + text(2, b"\x13\x00"), id="a group"),
        pytest.param(text(1, b"x"), id="a type that is text"),
        pytest.param(number(1, FLOAT) + number(2, 7), id="a shape that is a number"),
        pytest.param(number(1, FLOAT) + text(6, b"abcd"), id="a checksum that is text"),
        pytest.param(b"\x08" + b"\xff" * 12, id="an endless number"),
        pytest.param(b"\x00\x00", id="field zero"),
        pytest.param(of(FLOAT, [1], 4) + number(99, 1) * 70_000, id="very many fields"),
        pytest.param(text(2, b"\x12\x00" * 40_000) + number(1, FLOAT), id="very many dimensions"),
    ],
)
def test_an_entry_that_cannot_be_true(value: bytes) -> None:
    with pytest.raises(BadCheckpoint, match="layer/kernel"):
        read_index(index_of((b"layer/kernel", value)))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(header(0), id="no data files"),
        pytest.param(header(-1), id="fewer than none"),
        pytest.param(header(100_000), id="more than names can tell"),
        pytest.param(header(1, endianness=1), id="big-endian"),
        pytest.param(header(1, endianness=7), id="of no known order"),
        pytest.param(header(1, min_consumer=2), id="a later version"),
        pytest.param(number(1, 1) + text(3, number(1, 1) + number(3, 1)), id="not for us"),
        pytest.param(number(1, 1) + text(3, text(3, b"\x05\x01")), id="not for us, packed"),
        pytest.param(b"\xff", id="rubbish"),
    ],
)
def test_a_header_that_we_do_not_know(value: bytes) -> None:
    with pytest.raises(BadCheckpoint, match="its header"):
        read_index(table([(b"", value), (b"w", entry(W, 0, 0))]))


def test_tensors_must_not_have_bytes_in_common() -> None:
    rows = [(b"a", entry(W, 0, 0)), (b"b", entry(W, 0, 7))]
    with pytest.raises(BadCheckpoint, match="b: it has bytes in common with a"):
        read_index(index_of(*rows))
    whole = plain(4, [100], bytes(100))
    with pytest.raises(BadCheckpoint, match="in common"):
        read_index(index_of((b"a", entry(whole, 0, 0)), (b"b", entry(plain(4, [0], b""), 0, 50))))


def test_a_table_names_each_key_once_and_in_order() -> None:
    a, b = (b"a", entry(W, 0, 0)), (b"b", entry(W, 0, 8))
    no_header = [(b"a", header(1)), b]
    for rows in ([HEADER, b, a], [HEADER, a, a], no_header, [a, b], [HEADER, a, HEADER], []):
        with pytest.raises(BadCheckpoint):
            read_index(table(rows))
    for rows in ([a, a], [HEADER, HEADER]):
        with pytest.raises(BadCheckpoint, match="repeated or out of order"):
            list(read_table(table(rows)))
    # In blocks of their own, and the list of blocks in order.
    with pytest.raises(BadCheckpoint, match="out of order"):
        read_index(assembled([block([HEADER, a], 16), block([b], 16)], (b"c", b"d")))
    first, second = block([HEADER, b], 16), block([a], 16)
    for limits in ((b"b", b"c"), (b"a", b"b"), (b"b", b"a")):
        with pytest.raises(BadCheckpoint):
            read_index(assembled([first, second], limits))
    assert len(read_index(assembled([block([HEADER, a], 16), block([b], 16)], (b"a", b"b"))).tensors) == 2


def assembled(
    blocks: Sequence[bytes],
    limits: Sequence[bytes],
    *,
    gap: bytes = b"",
    kind: int = 0,
    meta: bytes | None = None,
    more: bytes = b"",
) -> bytes:
    """A table of these blocks, each of whose keys is not above its limit."""
    raw, rows = b"", []
    for limit, content in zip(limits, blocks, strict=True):
        rows.append((limit, varint(len(raw)) + varint(len(content)) + more))
        raw += sealed(content, kind) + gap
    handles = b""
    for content in (block([], 1) if meta is None else meta, block(rows, 1)):
        handles += varint(len(raw)) + varint(len(content))
        raw += sealed(content)
    return raw + handles.ljust(40, b"\0") + MAGIC


GOOD = block([HEADER, (b"w", entry(W, 0, 0))], 16)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(assembled([GOOD], [b"w"], kind=1), id="compressed"),
        pytest.param(assembled([GOOD], [b"w"], gap=b"x"), id="a gap between blocks"),
        pytest.param(assembled([GOOD], [b"w"], more=b"x"), id="something behind where a block is"),
        pytest.param(assembled([GOOD[:-8] + b"\x09\0\0\0\x01\0\0\0"], [b"w"]), id="a restart too late"),
        pytest.param(b"x" + assembled([GOOD], [b"w"]), id="something before it"),
        pytest.param(assembled([GOOD], [b"w"]) + b"x", id="something behind it"),
        pytest.param(assembled([GOOD], [b"w"], meta=block([(b"filter", b"\0\0")], 1)), id="a filter"),
        pytest.param(assembled([GOOD], [b"v"]), id="a key above its block's limit"),
        pytest.param(assembled([b""], [b"w"]), id="a block without restarts"),
        pytest.param(assembled([bytes(4)], [b"w"]), id="no restart"),
        pytest.param(assembled([b"\xff" * 4], [b"w"]), id="too many restarts"),
        pytest.param(
            assembled([GOOD[:-8] + b"\x05\0\0\0" + b"\x01\0\0\0"], [b"w"]), id="a first restart elsewhere"
        ),
        pytest.param(
            assembled([GOOD[:-4] + b"\x04\0\0\0" + b"\x02\0\0\0"], [b"w"]), id="a restart inside an entry"
        ),
        pytest.param(
            assembled([GOOD[:-4] + b"\xff\0\0\0" + b"\x02\0\0\0"], [b"w"]), id="a restart behind the end"
        ),
        pytest.param(assembled([GOOD[:-4] + bytes(4) + b"\x02\0\0\0"], [b"w"]), id="a restart twice"),
        pytest.param(
            assembled([varint(3) + bytes(6) + b"\x01\0\0\0"], [b"w"]), id="shares more than there is"
        ),
        pytest.param(
            assembled([b"\0" + varint(1 << 40) + b"\0" + bytes(4) + b"\x01\0\0\0"], [b"w"]), id="a long key"
        ),
        pytest.param(
            assembled([b"\0\0" + varint(1 << 63) + bytes(4) + b"\x01\0\0\0"], [b"w"]), id="a long value"
        ),
        pytest.param((varint(1 << 63) * 4).ljust(40, b"\0") + MAGIC, id="a footer alone"),
        pytest.param(b"x" + (varint(1 << 63) * 4).ljust(40, b"\0") + MAGIC, id="blocks out of range"),
        pytest.param(b"x" + b"\x00\x00\x00\x00".ljust(40, b"\0") + MAGIC, id="empty blocks"),
        pytest.param(bytes(MAX_TABLE_BYTES + 1), id="too large"),
    ],
)
def test_a_table_that_no_writer_makes(raw: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        read_index(raw)


def test_a_restart_shares_nothing_with_the_key_before_it() -> None:
    """Three entries, the last of which shares a byte: at bytes 0, 3 and 7."""
    content = b"\0\0\0" + b"\0\1\0w" + b"\1\1\0x"

    def read(*restarts: int) -> list[Row]:
        numbers = b"".join(each.to_bytes(4, "little") for each in (*restarts, len(restarts)))
        return list(read_table(assembled([content + numbers], [b"wx"])))

    assert read(0) == read(0, 3) == [(b"", b""), (b"w", b""), (b"wx", b"")]
    with pytest.raises(BadCheckpoint, match="restart at byte 7"):
        read(0, 7)


def test_shared_prefixes_cannot_fill_the_memory() -> None:
    """Few bytes in the file, each key very long."""
    first = b"\0" + varint(MAX_KEY_BYTES - 4) + b"\0" + b"k" * (MAX_KEY_BYTES - 4)
    after = varint(MAX_KEY_BYTES - 4) + varint(4) + b"\0"
    count = MAX_KEYS_BYTES // MAX_KEY_BYTES + 2
    content = [first, *(after + each.to_bytes(4, "big") for each in range(count))]
    raw = assembled([b"".join(content) + bytes(4) + b"\x01\0\0\0"], [b"l"])
    assert len(raw) < 1 << 17
    with pytest.raises(BadCheckpoint, match="one too many"):
        list(read_table(raw))


def test_more_tensors_than_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.formats.bundle.MAX_TENSORS", 100)
    rows = [(b"%03d" % each, of(4, [0], 0)) for each in range(101)]
    assert len(read_index(index_of(*rows[:-1])).tensors) == 100
    with pytest.raises(BadCheckpoint, match="more than 100"):
        read_index(index_of(*rows))


# Partitioned variables.

WHOLE_SHAPE = (6, 4)
PARTS = (((0, 2), WHOLE), ((2, 4), (0, 1)), ((2, 4), (1, 3)))


def divided(parts: Sequence[Sequence[tuple[int, int]]] = PARTS, dtype: int = 4, **changes: bytes) -> bytes:
    rows = [(b"v", changes.get("whole", divided_entry(4, WHOLE_SHAPE, parts)))]
    offset = 0
    for extents in PARTS:
        shape = [size if each == WHOLE else each[1] for size, each in zip(WHOLE_SHAPE, extents, strict=True)]
        value = plain(dtype, shape, bytes(math.prod(shape)))
        rows.append((slice_key(b"v", extents), entry(value, 0, offset)))
        offset += len(value.data)
    return table([HEADER, *sorted(rows)])


def test_a_partitioned_variable_is_one_tensor_of_several_pieces() -> None:
    found = read_index(divided())
    assert found.tensors == (Tensor("v", 4, WHOLE_SHAPE),)
    assert [piece.name for piece in found.pieces] == ["v [0:2, :]", "v [2:6, 0:1]", "v [2:6, 1:4]"]
    assert [piece.shape for piece in found.pieces] == [(2, 4), (4, 1), (4, 3)]
    assert sum(piece.size for piece in found.pieces) == math.prod(WHOLE_SHAPE)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(divided(PARTS[:2]), id="a slice of no tensor"),
        pytest.param(divided((*PARTS, PARTS[0])), id="a slice twice"),
        pytest.param(divided((*PARTS, ((1, 1), WHOLE))), id="a slice that is not there"),
        pytest.param(divided((*PARTS[:2], ((2, 5), (1, 3)))), id="a slice behind the end"),
        pytest.param(divided((*PARTS[:2], ((2, 4),))), id="a slice of other dimensions"),
        pytest.param(divided(dtype=6), id="a slice of another type"),
        pytest.param(
            divided(whole=divided_entry(4, WHOLE_SHAPE, PARTS) + number(5, 24)),
            id="sliced, with bytes of its own",
        ),
        pytest.param(divided(whole=entry(W, 0, 24)), id="slices of a tensor that is whole"),
        pytest.param(index_of((b"\0rubbish", entry(W, 0, 0))), id="a key of a slice that is none"),
    ],
)
def test_slices_that_do_not_fit_their_tensor(raw: bytes) -> None:
    with pytest.raises(BadCheckpoint, match=r"v|rubbish"):
        read_index(raw)


@pytest.mark.parametrize(
    ("extents", "shape", "reason"),
    [
        (((2, 4), WHOLE), (4, 4), ""),
        (((2, 5), WHOLE), (5, 4), "ends at 7 of 6"),
        (((7, 0), WHOLE), (0, 4), "ends at 7 of 6"),
        (((2, 4), WHOLE), (2, 8), "another type or shape"),
        (((2, 4), WHOLE), (16,), "another type or shape"),
    ],
)
def test_a_slice_lies_inside_its_tensor_and_has_its_shape(
    extents: Sequence[tuple[int, int]], shape: Sequence[int], reason: str
) -> None:
    own = plain(4, shape, bytes(math.prod(shape)))
    rows = [(slice_key(b"v", extents), entry(own, 0, 0)), (b"v", divided_entry(4, WHOLE_SHAPE, [extents]))]
    if not reason:
        assert read_index(index_of(*rows)).pieces[0].shape == shape
        return
    with pytest.raises(BadCheckpoint, match=reason):
        read_index(index_of(*rows))


def test_a_partitioned_variable_larger_than_any_file() -> None:
    """However small its slice is: TensorFlow would not restore it."""
    part = ((0, 1), (0, 1))
    row = (slice_key(b"v", part), entry(plain(4, [1, 1], b"x"), 0, 0))
    assert read_index(index_of(row, (b"v", divided_entry(4, [1 << 30, 1 << 30], [part])))).tensors
    with pytest.raises(BadCheckpoint, match="v: it has too many elements"):
        read_index(index_of(row, (b"v", divided_entry(4, [1 << 40, 1 << 40], [part]))))


def test_keys_of_slices_sort_as_what_they_name() -> None:
    """As TensorFlow's do; that they are the very same is shown by its own checkpoints."""
    assert slice_key(b"v", [(0, 2), WHOLE]) == b"\x00v\x00\x01\x01\x02\x80\x82\x80\x7f"
    assert slice_key(b"a\0\xff", []) == b"\x00a\x00\xff\xff\x00\x00\x01\x00"
    starts = [0, 1, 63, 64, 8191, 8192, 1 << 20, 1 << 27, 1 << 34, 1 << 48, 1 << 55, 1 << 62]
    keys = [slice_key(b"v", [(start, 1)]) for start in starts]
    assert keys == sorted(keys)


# Which bytes of a data file belong to whom.


def piece(offset: int, size: int) -> Piece:
    return Piece("w", 4, (size,), 0, offset, size, 0)


@pytest.mark.parametrize(
    ("pieces", "size", "padding"),
    [
        ([], 0, []),
        ([piece(0, 0)], 0, []),
        ([piece(0, 3), piece(3, 0), piece(3, 5)], 8, []),
        ([piece(0, 3), piece(8, 8)], 16, [5]),
        ([piece(0, 3), piece(64, 1)], 128, [61, 63]),
        ([piece(0, 8), piece(8, 3), piece(16, 3)], 24, [5, 5]),
    ],
)
def test_every_byte_has_an_owner(pieces: list[Piece], size: int, padding: list[int]) -> None:
    parts = list(regions(pieces, size))
    assert [part for part in parts if isinstance(part, Piece)] == pieces
    assert [part.size for part in parts if isinstance(part, Padding)] == padding


@pytest.mark.parametrize(
    ("pieces", "size"),
    [
        ([], 1),
        ([piece(0, 0)], 1),
        ([piece(0, 3)], 2),
        ([piece(0, 3)], 5),
        ([piece(0, 3)], 4),
        ([piece(0, 8), piece(8, 3)], 16),
        ([piece(1, 3)], 4),
        ([piece(0, 3), piece(4, 4)], 7),
        ([piece(0, 3), piece(8, 8)], 17),
        ([piece(0, 8), piece(16, 8)], 24),
        ([piece(0, 1), piece(8192, 8192)], 16384),
    ],
)
def test_bytes_of_nobody(pieces: list[Piece], size: int) -> None:
    with pytest.raises(BadCheckpoint, match=r"before (w|its end) belong to no tensor|w: it ends at byte"):
        list(regions(pieces, size))


def test_messages_of_a_later_tensorflow() -> None:
    """Fields that we do not know are nobody's concern; the checksum over the block covers them."""
    value = (
        entry(W, 0, 0) + number(99, 5) + text(100, b"new") + fixed32(101, 1) + varint(200 << 3 | 1) + bytes(8)
    )
    assert read_index(index_of((b"w", value))).tensors == (Tensor("w", FLOAT, (2,)),)
    unknown = of(60, [3], 17)
    assert read_index(index_of((b"w", unknown))).pieces[0].size == 17
    assert 6 in Message(value)
