"""Masks known values in a stream of output, wherever its pieces are cut."""

from __future__ import annotations

from collections.abc import Iterable

MASK = b"***"
LEAST_BYTES = 8
LEAST_DIFFERENT = 4


class Masker:
    """Replaces each of `values`, and each of their lines that is not too short or uniform, by MASK.

    The end of a piece that may be the beginning of a value is held back until more comes.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        found: set[bytes] = set()
        for value in values:
            raw = value.encode(errors="replace").strip()
            found |= {each for each in (raw, *map(bytes.strip, raw.splitlines())) if _can_be_masked(each)}
        self._patterns = tuple(sorted(found))
        self._held = b""
        # So many bytes of what is held are covered by a mask that is out already.
        self._covered = 0

    @property
    def patterns(self) -> int:
        """The number of masked texts."""
        return len(self._patterns)

    @property
    def held(self) -> int:
        """The number of bytes that are held back."""
        return len(self._held)

    def feed(self, data: bytes) -> bytes:
        """Take the next piece of output; return the part that can be shown now."""
        if not self._patterns:
            return data
        data = self._held + data
        until = min(_beginning(data, each) for each in self._patterns)
        shown: list[bytes] = []
        at = self._covered
        for start, end in self._spans(data, until):
            if end <= at:
                continue
            if start >= at:
                shown += [data[at:start], MASK]
            at = end
        shown.append(data[at:until])
        self._held, self._covered = data[until:], max(0, at - until)
        return b"".join(shown)

    def end(self) -> bytes:
        """Return the part held back, the beginning of a value: masked unless it is too short."""
        rest, covered = self._held, self._covered
        self._held, self._covered = b"", 0
        if len(rest) < LEAST_BYTES:
            return rest[covered:]
        return b"" if covered else MASK

    def _spans(self, data: bytes, until: int) -> list[tuple[int, int]]:
        """The places of values that begin before `until`; they may overlap."""
        found = []
        for pattern in self._patterns:
            size, half = len(pattern), len(pattern) // 2
            at = data.find(pattern)
            while 0 <= at < until:
                # A value that repeats itself may stand there very often: the last one of them ends the mask.
                last = data.rfind(pattern, at, min(at + half, until) + size - 1)
                found.append((at, last + size))
                at = data.find(pattern, at + half)
        return sorted(found)


def masked(text: str, values: Iterable[str]) -> str:
    """A whole text with the values masked."""
    masker = Masker(values)
    if not masker.patterns:
        return text
    raw = text.encode(errors="surrogateescape")
    return (masker.feed(raw) + masker.end()).decode(errors="surrogateescape")


def _can_be_masked(text: bytes) -> bool:
    return len(text) >= LEAST_BYTES and len(set(text)) >= LEAST_DIFFERENT


def _beginning(data: bytes, pattern: bytes) -> int:
    """The start of the longest end of `data` that is a beginning of `pattern`; without one, the length of
    `data`.
    """
    head = pattern[:LEAST_BYTES]
    at = data.find(head, max(0, len(data) - len(pattern) + 1))
    while at >= 0:
        if pattern.startswith(data[at:]):
            return at
        at = data.find(head, at + 1)
    for size in range(min(LEAST_BYTES - 1, len(data)), 0, -1):
        if data.endswith(pattern[:size]):
            return len(data) - size
    return len(data)
