"""The form of an attempt's stored output: a sequence of segments, each a file that is never changed. Pure.

A segment's name holds what a reader needs to choose it, so a listing of the directory is the index. While a
segment grows it is written anew under the next revision, and the revision before is deleted.
"""

from __future__ import annotations

import re
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from supervisor.contract import codec
from supervisor.contract.bounds import MAX_INT
from supervisor.contract.errors import IncompatibleRecord

LOGS = ".logs"
SEGMENT_BYTES = 1 << 20
"""A segment of this size is closed, and the next one begins."""
MOST_TIMES = 20_000
"""Most times of a segment: as many seconds in which there was output."""
MAX_BYTES = 4 << 20
"""Most bytes of a segment, compressed or not."""
MOST_ATTEMPTS = 8
"""Attempts of a task whose logs are kept: the newest."""
STACKS = "stacks"
_LEVEL = 3
_NUMBER = "0|[1-9][0-9]{0,18}"
_NAME = re.compile(
    rf"(?P<serial>[0-9]{{6,9}})-(?P<revision>[0-9]{{6,9}})-(?P<size>{_NUMBER})-(?P<first>{_NUMBER})"
    rf"-(?P<last>{_NUMBER})-(?P<file>{_NUMBER})-(?P<offset>{_NUMBER})(?P<whole>-whole)?",
    re.ASCII,
)
_STACKS = re.compile(rf"{STACKS}-({_NUMBER})", re.ASCII)
_ATTEMPT = re.compile(r"g([1-9][0-9]{0,8})\.([1-9][0-9]{0,8})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentName:
    """The name of a segment.

    Attributes:
        serial, revision: its number in the log, and the number of this writing of it.
        size: bytes of output in it.
        first_ms, last_ms: when its first bytes came, and when the node read its end; wall clock of the node.
        file, offset: the place after it on the node's disk: an inode number, and bytes into that file.
        whole: the attempt is over, and nothing comes after it.
    """

    serial: int
    revision: int
    size: int
    first_ms: int
    last_ms: int
    file: int
    offset: int
    whole: bool = False

    def __str__(self) -> str:
        end = "-whole" if self.whole else ""
        numbers = f"{self.size}-{self.first_ms}-{self.last_ms}-{self.file}-{self.offset}"
        return f"{self.serial:06d}-{self.revision:06d}-{numbers}{end}"

    @classmethod
    def parse(cls, text: str) -> SegmentName | None:
        """The inverse of `str`; None for another name."""
        found = _NAME.fullmatch(text)
        if found is None or any(int(each) > MAX_INT for each in found.groups()[:7]):
            return None
        return cls(
            serial=int(found["serial"]),
            revision=int(found["revision"]),
            size=int(found["size"]),
            first_ms=int(found["first"]),
            last_ms=int(found["last"]),
            file=int(found["file"]),
            offset=int(found["offset"]),
            whole=found["whole"] is not None,
        )


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a segment from `at` on came from the node's file of inode `file`, from `start` to `stop`."""

    at: int
    file: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SegmentHead:
    """The first line of a segment. `times`: the number of times that follow it."""

    node: str
    spans: tuple[Span, ...]
    times: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The content of a segment.

    `times`: (position, milliseconds), rising: bytes from a position on came at its time or later.
    """

    node: str
    data: bytes
    spans: tuple[Span, ...] = ()
    times: tuple[tuple[int, int], ...] = ()

    def position(self, file: int, offset: int) -> int | None:
        """The position after a place on the node's disk; None if that place is in no span."""
        ends = [*(span.at for span in self.spans[1:]), len(self.data)]
        for span, end in zip(self.spans, ends, strict=False):
            if span.file == file and span.start <= offset <= span.stop:
                return min(span.at + offset - span.start, end)
        return None

    def place(self, position: int) -> tuple[int, int] | None:
        """The place on the node's disk of a position; None if it is in no span."""
        for span in reversed(self.spans):
            if span.at <= position:
                return span.file, min(span.start + position - span.at, span.stop)
        return None

    def times_of(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """The times of a part, with positions in that part."""
        positions = [at for at, _ in self.times]
        first = max(0, bisect_right(positions, start) - 1)
        last = bisect_left(positions, stop)
        return tuple((max(0, at - start), ms) for at, ms in self.times[first:last])

    def since(self, since_ms: int) -> int:
        """The position of the first bytes that came at a time or later."""
        return next((at for at, ms in self.times if ms >= since_ms), len(self.data))


def directory_of(job_uuid: str, member: str) -> str:
    """The directory of a task's logs, below the root of the store."""
    return f"{LOGS}/{job_uuid}/{member}"


def attempt_directory(job_uuid: str, member: str, generation: int, number: int) -> str:
    """The directory of an attempt's segments."""
    return f"{directory_of(job_uuid, member)}/g{generation}.{number}"


def attempts_in(names: Iterable[str]) -> list[tuple[int, int]]:
    """(generation, number) of the directories of attempts, oldest first."""
    found = filter(None, map(_ATTEMPT.fullmatch, names))
    return sorted((int(match[1]), int(match[2])) for match in found)


def segments_in(names: Iterable[str]) -> tuple[list[SegmentName], list[SegmentName]]:
    """The segments in a listing, in their order; and earlier revisions of them."""
    newest: dict[int, SegmentName] = {}
    stale = []
    for name in filter(None, map(SegmentName.parse, names)):
        before = newest.get(name.serial)
        if before is not None:
            stale.append(min(before, name, key=_age))
        newest[name.serial] = max(before or name, name, key=_age)
    return [newest[serial] for serial in sorted(newest)], stale


def newest_stacks(names: Iterable[str]) -> str:
    """The name of the newest dump of stacks in a listing; empty without one."""
    found = [(int(match[1]), match[0]) for match in map(_STACKS.fullmatch, names) if match is not None]
    return max(found, default=(0, ""))[1]


def segment_after(segments: Sequence[SegmentName], file: int, offset: int) -> int:
    """The index of the segment with the output after a place; -1 if the place is in none of them.

    The number of segments: the place is after all of them.
    """
    of_file = [index for index, each in enumerate(segments) if each.file == file]
    later = [index for index in of_file if segments[index].offset > offset]
    if later:
        return later[0]
    return of_file[-1] + 1 if of_file else -1


def encode_segment(segment: Segment) -> bytes:
    """A segment as it is stored."""
    head = codec.encode(SegmentHead(segment.node, segment.spans, len(segment.times)))
    numbers = struct.pack(f"<{2 * len(segment.times)}Q", *(each for pair in segment.times for each in pair))
    return zlib.compress(b"".join((head, b"\n", numbers, segment.data)), _LEVEL)


def decode_segment(raw: bytes) -> Segment:
    """Read a segment. Another writer of the store may have written anything. Raises IncompatibleRecord."""
    reader = zlib.decompressobj()
    try:
        body = reader.decompress(raw, MAX_BYTES)
    except zlib.error as error:
        raise IncompatibleRecord(f"a stored log is damaged: {error}") from error
    if not reader.eof:
        raise IncompatibleRecord("a stored log is cut, or larger than its readers accept")
    line, _, rest = body.partition(b"\n")
    head = codec.decode(SegmentHead, line)
    size = 16 * head.times
    if not 0 <= head.times <= 2 * MOST_TIMES or size > len(rest):
        raise IncompatibleRecord("a stored log names more times than it has")
    times, data = tuple(struct.iter_unpack("<2Q", rest[:size])), rest[size:]
    if any(at > len(data) or ms > MAX_INT for at, ms in times) or any(
        later[0] < earlier[0] for earlier, later in pairwise(times)
    ):
        raise IncompatibleRecord("a stored log has times of no output")
    if any(min(each.at, each.file, each.start, each.stop - each.start) < 0 for each in head.spans):
        raise IncompatibleRecord("a stored log has wrong places")
    return Segment(head.node, data, head.spans, times)


def _age(name: SegmentName) -> tuple[int, int]:
    return name.revision, name.size
