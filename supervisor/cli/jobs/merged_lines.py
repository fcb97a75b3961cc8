"""Lines of the output of several tasks, merged by the time at which they came. No I/O of its own."""

from __future__ import annotations

import asyncio
import base64
import heapq
import re
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

from supervisor.contract.views.jobs import TailChunk

MAX_LINE_BYTES = 64 << 10
"""A longer line is shown in parts."""
AT_ONCE = 8
"""Streams that are begun at a time."""
_END = re.compile(rb"\r\n|\n|\r(?=.)", re.DOTALL)
"""The end of a line. A carriage return at the end of the data may be half of one."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a task, without its end. `at_ms`: when it began, by its node's clock; 0: unknown."""

    task: str
    attempt: str
    node: str
    at_ms: int
    text: bytes


@dataclass(slots=True)
class LineCutter:
    """Cuts the chunks of one task into lines, whose times never fall."""

    task: str
    _attempt: str = ""
    _node: str = ""
    _rest: bytes = b""
    _rest_ms: int = 0
    _last_ms: int = field(default=0, init=False)

    def feed(self, chunk: TailChunk) -> Iterator[Line]:
        """The lines that end in a chunk. A new attempt, or a sign of life, ends the line before it, too."""
        if chunk.attempt != self._attempt or not chunk.data:
            yield from self.finish()
        self._attempt, self._node = chunk.attempt, chunk.node or self._node
        times = chunk.times[::2], chunk.times[1::2]
        before, at = len(self._rest), 0
        data = self._rest + base64.b64decode(chunk.data)
        began_ms = self._rest_ms if before else self._time(*times, 0)
        for end in _END.finditer(data):
            yield from self._parts(data[at : end.start()], began_ms)
            at = end.end()
            began_ms = self._time(*times, at - before)
        self._rest, self._rest_ms = data[at:], began_ms
        if len(self._rest) > MAX_LINE_BYTES:
            yield from self.finish()

    def finish(self) -> Iterator[Line]:
        """The line that has not ended."""
        rest, self._rest = self._rest, b""
        if rest:
            yield from self._parts(rest, self._rest_ms)

    def _parts(self, text: bytes, at_ms: int) -> Iterator[Line]:
        for start in range(0, len(text) or 1, MAX_LINE_BYTES):
            part = text[start : start + MAX_LINE_BYTES]
            yield Line(self.task, self._attempt, self._node, at_ms, part)

    def _time(self, positions: Sequence[int], times: Sequence[int], position: int) -> int:
        index = bisect_right(positions, position)
        if index:
            self._last_ms = max(self._last_ms, times[index - 1])
        return self._last_ms


async def merged(streams: Sequence[AsyncIterator[Line]]) -> AsyncGenerator[Line, None]:
    """The lines of all streams by their times; those of one stream stay in their order."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def first(stream: AsyncIterator[Line]) -> Line | None:
        async with turns:
            return await anext(stream, None)

    found = await asyncio.gather(*map(first, streams))
    heads = [(line.at_ms, index, line) for index, line in enumerate(found) if line is not None]
    heapq.heapify(heads)
    while heads:
        _, index, line = heads[0]
        yield line
        following = await anext(streams[index], None)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (following.at_ms, index, following))


async def last(lines: AsyncIterator[Line], count: int) -> AsyncGenerator[Line, None]:
    """The last `count` lines, once there are no more; all of them, as they come, for 0."""
    kept = deque[Line](maxlen=count)
    async for line in lines:
        if count:
            kept.append(line)
        else:
            yield line
    for line in kept:
        yield line
