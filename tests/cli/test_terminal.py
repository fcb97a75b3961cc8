"""Nothing that a program prints can steer the terminal."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.cli.progress import ProgressLine
from supervisor.cli.terminal import Neutraliser, neutralise, one_line

ESCAPES = st.sampled_from(
    ["\x1b[2J", "\x1b]0;title\x07", "\r", "\r\n", "\x9b31m", "\u202e", "\ud800", "\x00", "é", "x"]
)


def harmful(text: str) -> list[str]:
    steering = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u200e\u200f\ufeff"
    controls = [char for char in text if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")]
    return [
        char for char in (*controls, *text) if char in steering or (char in controls and char not in "\n\t")
    ]


@given(st.one_of(st.text(), st.lists(ESCAPES).map("".join)))
def test_text(text: str) -> None:
    safe = neutralise(text)
    assert not harmful(safe)
    assert neutralise(safe) == safe
    assert "\n" not in one_line(text)


@given(st.binary())
def test_bytes(data: bytes) -> None:
    assert not harmful(neutralise(data))


@given(
    st.lists(
        st.one_of(st.binary(max_size=6), ESCAPES.map(lambda text: text.encode("utf-8", "surrogatepass")))
    )
)
def test_a_stream_reads_like_the_whole(chunks: list[bytes]) -> None:
    stream = Neutraliser()
    pieces = [stream.feed(chunk) for chunk in chunks]
    pieces.append(stream.feed(b"", final=True))
    assert "".join(pieces) == neutralise(b"".join(chunks))


def test_what_is_shown() -> None:
    assert neutralise(b"a\x1b[31mb\r\nc\rd\xff\t\xc3\xa9") == "a\\x1b[31mb\nc\nd\\xff\té"
    assert neutralise("x\u202ey\U000e0041") == "x\\u202ey\\U000e0041"
    assert one_line("a\n  b\x1b") == "a b\\x1b"


class Screen(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_progress_line_is_rewritten_only_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    line = ProgressLine()
    for done in (1, 1, 2):
        line.show("copy \x1b[2Jm-1", done, 2)
    line.clear()
    line.clear()
    rewrite, name = "\r\x1b[K", r"copy \x1b[2Jm-1"
    half, whole = f"{name} [##########..........] 1 B of 2 B", f"{name} [####################] 2 B of 2 B"
    assert screen.getvalue() == f"{rewrite}{half}{rewrite}{whole}{rewrite}"


def test_a_progress_line_that_is_not_wanted_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    line = ProgressLine(wanted=False)
    line.show("copy", 1, 2)
    line.clear()
    assert not screen.getvalue()
