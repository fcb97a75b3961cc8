"""Reading an attempt's output from the job's store, in chunks, as from the node that it came from."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from recovery.logs.last_lines import LastLines
from recovery.logs.segments import (
    MAX_BYTES,
    MOST_ATTEMPTS,
    Segment,
    SegmentName,
    attempt_directory,
    attempts_in,
    decode_segment,
    directory_of,
    newest_stacks,
    segment_after,
    segments_in,
)
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.errors import NotFound, StoreUnreachable
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.views.jobs import LINES_WITHIN

CHUNK_BYTES = 512 << 10
CHUNK_TIMES = 1000
_TRIES = 10


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A piece of stored output, and the place after it, as the node's own: an inode number, an offset.

    `cut`: output before it is left out, or is not stored. `times`: (position in it, milliseconds).
    """

    data: bytes
    file: int
    offset: int
    node: str
    cut: bool
    times: tuple[tuple[int, int], ...]


async def stored_attempts(store: CheckpointStore, job_uuid: str, task: TaskId) -> list[AttemptId]:
    """The attempts of a task with stored output, oldest first. Raises StoreUnreachable, Refused."""
    listing = await store.list(directory_of(job_uuid, task.member))
    return [AttemptId(task, *each) for each in attempts_in(listing.directories)][-2 * MOST_ATTEMPTS :]


class StoredLog:
    """The stored output of one attempt: `begin` goes to a place, `next` reads from there on."""

    def __init__(self, store: CheckpointStore, job_uuid: str, attempt: AttemptId) -> None:
        self._store = store
        task = attempt.task
        self._base = attempt_directory(job_uuid, task.member, attempt.generation, attempt.number)
        self._segments: list[SegmentName] = []
        self._read: tuple[SegmentName, Segment] | None = None
        self._serial = 0
        self._position = 0
        self._cut = False

    @property
    def is_whole(self) -> bool:
        """Whether it has all that the attempt wrote last."""
        return bool(self._segments) and self._segments[-1].whole

    @property
    def until_ms(self) -> int:
        """When the node read the last stored output, on the node's wall clock; 0 if nothing is stored."""
        return self._segments[-1].last_ms if self._segments else 0

    async def look(self) -> None:
        """List the segments. Raises StoreUnreachable, Refused."""
        listing = await self._store.list(self._base)
        self._segments, _ = segments_in(file.path.rpartition("/")[2] for file in listing.files)

    async def stacks(self) -> tuple[str, bytes]:
        """The newest dump of the attempt's stacks: its node, and the text; both empty without one.

        Raises StoreUnreachable, Refused, IncompatibleRecord.
        """
        listing = await self._store.list(self._base)
        name = newest_stacks(file.path.rpartition("/")[2] for file in listing.files)
        if not name:
            return "", b""
        found = decode_segment(await self._store.read_bytes(f"{self._base}/{name}", MAX_BYTES))
        return found.node, found.data

    async def begin(
        self, file: int, offset: int, last_bytes: int = 0, since_ms: int = 0, last_lines: int = 0
    ) -> None:
        """Go to a place on the node's disk; file 0: `last_bytes` before the end, not before `since_ms`, and
        at most `last_lines` before it, unless that is 0.

        Raises StoreUnreachable, Refused, IncompatibleRecord.
        """
        await self.look()
        if file:
            index, self._position = segment_after(self._segments, file, offset), 0
            # The place may be in a file of which nothing is stored, or not any more.
            self._cut = index < 0
        else:
            if last_lines > 0:
                last_bytes = min(last_bytes, await self._bytes_of_lines(last_lines))
            index, self._position, self._cut = self._end(last_bytes, since_ms)
        if not self._segments[max(0, index) :]:
            self._serial = self._segments[-1].serial + 1 if self._segments else 0
            return
        name = self._segments[max(0, index)]
        self._serial = name.serial
        if self._cut and file:
            return
        segment = await self._segment(name)
        if file:
            self._position = (segment.position(file, offset) if segment is not None else 0) or 0
        elif since_ms and segment is not None:
            after = segment.since(since_ms)
            self._cut = self._cut or after > 0
            self._position = max(self._position, after)

    async def next(self) -> StoredChunk | None:
        """The next chunk; None at the end. Raises as `begin`."""
        for _ in range(_TRIES):
            name = next((each for each in self._segments if each.serial >= self._serial), None)
            if name is None:
                return None
            if name.serial > self._serial:
                self._serial, self._position = name.serial, 0
            segment = await self._segment(name)
            if segment is None:
                await self.look()
            elif self._position < len(segment.data):
                return self._chunk(name, segment)
            else:
                self._serial, self._position = name.serial + 1, 0
        raise StoreUnreachable(f"the log below {self._base} changes too fast to be read")

    def _chunk(self, name: SegmentName, segment: Segment) -> StoredChunk:
        start = self._position
        stop = min(len(segment.data), start + CHUNK_BYTES)
        times = segment.times_of(start, stop)
        if len(times) > CHUNK_TIMES and times[CHUNK_TIMES][0]:
            stop = start + times[CHUNK_TIMES][0]
        place = segment.place(stop) if stop < len(segment.data) else None
        self._position, cut, self._cut = stop, self._cut, False
        place = place or (name.file, name.offset)
        return StoredChunk(segment.data[start:stop], *place, segment.node, cut, times[:CHUNK_TIMES])

    def _end(self, last_bytes: int, since_ms: int) -> tuple[int, int, bool]:
        """The segment to begin with, a position in it, and whether output before that is left out."""
        left = max(0, sum(each.size for each in self._segments) - last_bytes)
        cut = left > 0
        for index, each in enumerate(self._segments):
            if left < each.size and each.last_ms >= since_ms:
                return index, left, cut or index > 0
            left = max(0, left - each.size)
        return len(self._segments), 0, bool(self._segments)

    async def _bytes_of_lines(self, lines: int) -> int:
        """The bytes of the last lines, as far as they are within LINES_WITHIN of the end."""
        last = LastLines(lines)
        for name in reversed(self._segments):
            segment = await self._segment(name)
            if segment is None or last.before(segment.data) or last.size >= LINES_WITHIN:
                break
        return last.size

    async def _segment(self, name: SegmentName) -> Segment | None:
        """A segment's content; None if it was written anew meanwhile, or removed as too old."""
        if self._read is None or self._read[0] != name:
            try:
                raw = await self._store.read_bytes(f"{self._base}/{name}", MAX_BYTES)
            except NotFound:
                return None
            self._read = name, await asyncio.to_thread(decode_segment, raw)
        return self._read[1]
