"""Neutralisation of text that comes from untrusted programs, for terminals and for pages. Pure."""

from __future__ import annotations

import codecs
import re

# C0 and C1 controls but newline and tab; what reorders, hides or splits text; lone surrogates.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
_NEWLINE = re.compile("\r\n?")


def neutralise(text: bytes | str) -> str:
    r"""`text` with everything that could steer a terminal shown as an escape such as `\x1b`.

    Newlines and tabs stay; a carriage return becomes a newline, so that nothing printed is overwritten.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="backslashreplace")
    return _HARMFUL.sub(_escape, _NEWLINE.sub("\n", text))


def one_line(text: str) -> str:
    """Neutralised text on one line, for a cell of a table."""
    return " ".join(neutralise(text).split())


class Neutraliser:
    """Neutralises a stream, where characters and line ends may be cut between two chunks."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="backslashreplace")
        self._after_return = False

    def feed(self, data: bytes, *, final: bool = False) -> str:
        """The safe text of the next chunk. A cut character comes with the chunk after it, or at `final`."""
        text = self._decoder.decode(data, final)
        if self._after_return and text:
            self._after_return = False
            text = text.removeprefix("\n")
        self._after_return = self._after_return or text.endswith("\r")
        return neutralise(text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
