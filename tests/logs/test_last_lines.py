"""The last lines of a text that is read backwards, in blocks of any size."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from recovery.logs.last_lines import LastLines


def bytes_found(blocks: list[bytes], lines: int) -> int:
    last = LastLines(lines)
    for block in reversed(blocks):
        if last.before(block):
            break
    return last.size


@given(st.lists(st.text("a\n", max_size=5).map(str.encode).filter(bool), max_size=8), st.integers(1, 6))
@example([b"a\n", b"\n"], 1)
@example([b"a", b"\n"], 2)
def test_they_are_those_of_tail(blocks: list[bytes], lines: int) -> None:
    whole = b"".join(blocks)
    expected = b"".join(whole.splitlines(keepends=True)[-lines:])
    assert whole[len(whole) - bytes_found(blocks, lines) :] == expected
