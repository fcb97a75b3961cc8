"""The index of a task's outputs: pieces of files that grow, two writers, and what nobody may put into it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.outputs.index import (
    PIECE_BYTES,
    Change,
    OutputFile,
    OutputIndex,
    Piece,
    encode_index,
    joined_index,
    parse_index,
    path_objection,
    pieces_kept,
)
from supervisor.contract.errors import IncompatibleRecord

EMPTY = OutputIndex("job", "worker.0", 0)


def file_of(size: int, version: str = "v1", attempt: int = 1) -> OutputFile:
    pieces = (Piece(f"n1@{version}", 0, size, 0),) if size else ()
    return OutputFile(size, 0, version, pieces, 1, attempt)


def change(
    attempt: int,
    files: dict[str, OutputFile],
    base: dict[str, OutputFile] | None = None,
    gone: tuple[str, ...] = (),
    *,
    node: str = "n1",
    writing: bool = True,
) -> Change:
    return Change(node, 1, attempt, writing, files, base or {}, gone)


def test_changes_add_up() -> None:
    first, late = joined_index(EMPTY, change(1, {"a": file_of(1), "b": file_of(2)}))
    assert not late
    second, late = joined_index(
        first, change(1, {"a": file_of(3, "v2")}, base={"b": file_of(2)}, gone=("b",), writing=False)
    )
    assert (set(second.files), second.serial, second.writing, late) == ({"a"}, 2, False, ())
    assert second.files["a"].size == 3


def test_what_a_later_attempt_wrote_stays_and_is_named() -> None:
    theirs, _ = joined_index(EMPTY, change(2, {"a": file_of(5, "new", 2)}, node="n2"))
    ours, late = joined_index(theirs, change(1, {"a": file_of(9, "old"), "b": file_of(1)}, writing=False))
    assert late == ("a",)
    assert ours.files["a"] == theirs.files["a"]
    assert "b" in ours.files, "what nobody else wrote arrives, however late"
    assert (ours.node, ours.writing) == ("n2", True), "the later attempt goes on"


def test_a_late_end_of_a_file_that_nobody_touched_arrives() -> None:
    before = file_of(5)
    index, _ = joined_index(EMPTY, change(1, {"a": before}))
    index, _ = joined_index(index, change(2, {"other": file_of(1, "v9", 2)}, node="n2"))
    index, late = joined_index(index, change(1, {"a": file_of(8)}, base={"a": before}))
    assert not late
    assert index.files["a"].size == 8


def test_a_file_that_another_has_changed_is_not_removed_by_who_did_not_know() -> None:
    index, _ = joined_index(EMPTY, change(2, {"a": file_of(5, "new", 2)}))
    index, _ = joined_index(index, change(1, {}, base={"a": file_of(3)}, gone=("a",)))
    assert "a" in index.files


@given(st.lists(st.integers(1, 50 << 20), min_size=1, max_size=200))
def test_a_file_that_grows_has_few_pieces_and_is_seldom_sent_again(steps: list[int]) -> None:
    pieces: tuple[Piece, ...] = ()
    size = sent = 0
    for step in steps:
        size += step
        kept = pieces_kept(pieces, size)
        end = sum(piece.size for piece in kept)
        sent += size - end
        whole = list(kept)
        while end < size:
            more = min(PIECE_BYTES, size - end)
            whole.append(Piece("p", end, more, 0))
            end += more
        pieces = tuple(whole)
        assert [piece.offset for piece in pieces] == [
            sum(each.size for each in pieces[:place]) for place in range(len(pieces))
        ]
    doublings = (size // min(steps)).bit_length() + 1
    assert len(pieces) <= doublings + size // PIECE_BYTES + 2
    assert sent <= size * (doublings + 1)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("a/../b", "'..'"),
        ("/etc/passwd", "empty part"),
        ("a//b", "empty part"),
        ("a\nb", "control character"),
        ("\udcff", "UTF-8"),
        ("d/" * 40 + "f", "deep"),
        ("x" * 2000, "longer"),
    ],
)
def test_paths_that_lead_elsewhere_are_refused(path: str, why: str) -> None:
    assert why in path_objection(path)
    if "\udcff" in path:
        return
    raw = encode_index(replace(EMPTY, files={path: file_of(0)}))
    with pytest.raises(IncompatibleRecord):
        parse_index(raw)


def test_an_index_comes_back_as_it_was_and_wrong_pieces_do_not() -> None:
    index, _ = joined_index(EMPTY, change(1, {"a/b": file_of(7)}))
    assert parse_index(encode_index(index)) == index
    for pieces in ((), (Piece("n1@x", 1, 7, 0),), (Piece("../x", 0, 7, 0),), (Piece("n1@x", 0, 6, 0),)):
        wrong = replace(index, files={"a": replace(file_of(7), pieces=pieces)})
        with pytest.raises(IncompatibleRecord):
            parse_index(encode_index(wrong))
