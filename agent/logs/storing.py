"""Storing the output of attempts in their jobs' stores: in segments while they run, and whole at their end.

Nothing waits for it. Each store has a thread of low priority of its own, which reads the node's files, too: a
store that hangs or is full makes the stored logs of its own jobs late, and that is told. What is on the store
is the only note of what was stored: a successor of this agent lists it and goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from agent.host.regular_files import read_start
from agent.inside.launcher.mask import Masker, masked
from agent.logs.dump import DUMP
from agent.logs.reading import Place, read_after, with_times
from agent.retry_log import Tell, Trouble, raise_it, require_sound
from recovery.io.deadline import within
from recovery.io.files import mapped_errors
from recovery.logs.segments import (
    MOST_ATTEMPTS,
    MOST_TIMES,
    SEGMENT_BYTES,
    STACKS,
    Segment,
    SegmentName,
    Span,
    attempt_directory,
    attempts_in,
    directory_of,
    encode_segment,
    segments_in,
)
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import CheckpointStore, Clock, Logger
from supervisor.contract.containment import contained
from supervisor.contract.errors import Conflict, StoreUnreachable, TfSupervisorError
from supervisor.contract.ids import AttemptId
from supervisor.contract.observed import LOGS_LATE, Notice

T = TypeVar("T")
LAG_MS = 5_000
LIMIT_BYTES = 256 << 20
STORE_S = 20.0
"""Seconds for one call of a store."""
REFUSED_MS = (1_000, 60_000)
LATE_MS = 30_000
"""Milliseconds after which output that is not stored gives an event."""
GIVE_UP_MS = 3_600_000
"""Milliseconds after an attempt's end for which a store is tried."""
MOST_STALE = 16
PAUSE_S = 0.1
"""Seconds between two segments: no program makes its node send more than some 10 MiB a second."""
_STACKS_BYTES = 1 << 20
MISSING = b"\n[tf-supervisor: output is missing here: the node removed it before it was stored]\n"

LogOpener = Callable[[str], tuple[CheckpointStore, Executor]]
"""Opens the store of a job's logs, with the thread that works for them."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How logs are stored. `lag_ms`: how old output becomes first; `limit_bytes`: of an attempt."""

    lag_ms: int = LAG_MS
    limit_bytes: int = LIMIT_BYTES


@dataclass(slots=True)
class _Filling:
    """The segment that grows now, as far as it was read."""

    data: bytearray = field(default_factory=bytearray)
    spans: list[Span] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self.data) >= SEGMENT_BYTES or len(self.times) >= MOST_TIMES

    def add(self, shown: bytes, place: Place, size: int, times: tuple[tuple[int, int], ...]) -> None:
        """Add `size` bytes of the node's file that end at `place`, as they are `shown`."""
        start, at = place.offset - size, len(self.data)
        last = self.spans[-1] if self.spans else None
        if last is not None and (last.file, last.stop, last.at + last.stop - last.start) == (
            place.file,
            start,
            at,
        ):
            self.spans[-1] = Span(last.at, last.file, last.start, place.offset)
        else:
            self.spans.append(Span(at, place.file, start, place.offset))
        self.times += [(at + min(position, len(shown)), ms) for position, ms in times]
        self.data += shown


class LogSender:
    """Sends the output of one attempt; one pass at a time.

    Args:
        base: the attempt's directory in the store.
        directory: the attempt's directory on this node.
        secrets: the secrets of the attempt that are known now.
    """

    def __init__(
        self,
        store: CheckpointStore,
        base: str,
        directory: Path,
        node: str,
        secrets: Callable[[], Mapping[str, str]],
        threads: Executor | None,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        self._store = store
        self._base = base
        self._directory = directory
        self._node = node
        self._secrets = secrets
        self._threads = threads
        self._limit_bytes = limit_bytes
        self._known: Mapping[str, str] = {}
        self._masker = Masker()
        self._stored: list[SegmentName] | None = None
        """Segments that are closed."""
        self._growing: SegmentName | None = None
        """The newest revision of the one that grows, in the store."""
        self._stale: set[SegmentName | None] = set()
        """Names that may be in the store, and count no more."""
        self._serial = self._revision = 0
        self._filling = _Filling()
        self._place = Place()
        self._stacks = (0, 0)

    async def send(self, *, final: bool) -> None:
        """Store what the attempt has written; `final`: it writes no more, and is wholly stored then.

        Raises the store's errors. The next pass goes on where this one ended.
        """
        if self._stored is None and await self._look():
            return
        more = True
        while more:
            more = await self._run(partial(self._read, final=final))
            await self._put(whole=final and not more)
            if self._filling.is_full:
                self._close()
            await self._tidy()
            if more:
                await asyncio.sleep(PAUSE_S)
        await self._send_stacks()

    async def _look(self) -> bool:
        """Find what an earlier life of the agent has stored; True if that is whole."""
        names = (await self._call(self._store.list(self._base))).files
        found, stale = segments_in(file.path.rpartition("/")[2] for file in names)
        self._stored, self._stale = found, set(stale)
        if found:
            self._serial = found[-1].serial + 1
            self._place = Place(found[-1].file, found[-1].offset)
        return bool(found) and found[-1].whole

    def _read(self, *, final: bool) -> bool:
        """Read more, until the segment is full; returns whether there may be more than that. Blocking."""
        known = self._secrets()
        if known and known != self._known:
            # An attempt that is over has none any more, but what it wrote before is still read.
            self._known, self._masker = dict(known), Masker(known.values())
        with mapped_errors(f"read {self._directory}"):
            while not self._filling.is_full:
                begun = self._place.file != 0
                piece, times = with_times(read_after(self._directory, self._place), self._directory)
                if piece.cut and begun:
                    self._filling.add(MISSING, Place(), 0, ())
                if not piece.data:
                    if final:
                        self._filling.data += self._masker.end()
                    return False
                self._filling.add(self._masker.feed(piece.data), piece.place, len(piece.data), times)
                self._place = piece.place
        return True

    async def _put(self, *, whole: bool) -> None:
        """Write the growing segment, if there is anything new."""
        filling, before = self._filling, self._growing
        size = len(filling.data)
        if not whole and size == (before.size if before is not None else 0):
            return
        now_ms = int(time.time() * 1000)
        times = filling.times
        name = SegmentName(
            serial=self._serial,
            revision=self._revision + 1,
            size=size,
            first_ms=times[0][1] if times else now_ms,
            last_ms=now_ms,
            file=self._place.file,
            offset=max(0, self._place.offset - self._masker.held),
            whole=whole,
        )
        segment = Segment(self._node, bytes(filling.data), tuple(filling.spans), tuple(times))
        raw = await self._run(partial(encode_segment, segment))
        # Whatever becomes of this call: its name is not used again, and goes once a later one is there.
        self._revision += 1
        self._stale.add(name)
        with suppress(Conflict), effect("logs.put", StoreUnreachable):
            await self._call(self._store.write_bytes(f"{self._base}/{name}", raw))
        self._stale.discard(name)
        if before is not None:
            self._stale.add(before)
        self._growing = name

    def _close(self) -> None:
        """Begin the next segment."""
        assert self._stored is not None
        assert self._growing is not None
        self._stored.append(self._growing)
        self._growing, self._filling = None, _Filling()
        self._serial, self._revision = self._serial + 1, 0

    async def _tidy(self) -> None:
        """Delete earlier revisions, and the oldest output beyond the limit."""
        assert self._stored is not None
        size = sum(each.size for each in self._stored)
        while size > self._limit_bytes:
            oldest = self._stored.pop(0)
            size -= oldest.size
            self._stale.add(oldest)
        if len(self._stale) > MOST_STALE:
            # Of most of them it is not known whether they ever came to a store that has failed for long.
            names = (await self._call(self._store.list(self._base))).files
            self._stale &= {SegmentName.parse(file.path.rpartition("/")[2]) for file in names}
        for name in sorted(self._stale, key=str):
            with effect("logs.delete", StoreUnreachable):
                await self._call(self._store.delete_file(f"{self._base}/{name}"))
            self._stale.discard(name)

    async def _send_stacks(self) -> None:
        """Store the dump of the attempt's stacks, if there is a new one."""
        seen, text = await self._run(self._read_stacks)
        if seen == self._stacks:
            return
        raw = await self._run(partial(encode_segment, Segment(self._node, text.encode())))
        with suppress(Conflict), effect("logs.put_stacks", StoreUnreachable):
            await self._call(self._store.write_bytes(f"{self._base}/{STACKS}-{seen[0]}", raw))
        self._stacks = seen

    def _read_stacks(self) -> tuple[tuple[int, int], str]:
        try:
            status = (self._directory / DUMP).lstat()
            seen = status.st_mtime_ns // 1_000_000, status.st_size
            if seen == self._stacks:
                return seen, ""
            text = read_start(self._directory / DUMP, _STACKS_BYTES).decode(errors="replace")
        except OSError:
            return self._stacks, ""
        return seen, masked(text, self._known.values())

    async def _call(self, work: Awaitable[T]) -> T:
        async with within(STORE_S, f"the store has not answered for {STORE_S:g} s"):
            return await work

    async def _run(self, work: Callable[[], T]) -> T:
        """Run work in the store's thread, which may hang."""
        return await self._call(asyncio.get_running_loop().run_in_executor(self._threads, work))


class _Storing:
    """One attempt whose output is stored."""

    def __init__(self, attempt: AttemptId, job_uuid: str, sender: LogSender, trouble: Trouble) -> None:
        self.attempt = attempt
        self.job_uuid = job_uuid
        self.sender = sender
        self.trouble = trouble
        self.over = asyncio.Event()
        self.over_ms = -1
        self.work: asyncio.Task[None] | None = None


class NodeLogs:
    """The stored logs of one node's attempts.

    Args:
        directory: of an attempt of a job, by the job's UUID.
        secrets: of an attempt, those that are known now.
    """

    def __init__(
        self,
        node: str,
        directory: Callable[[str, AttemptId], str],
        opener: LogOpener,
        secrets: Callable[[str], Mapping[str, str]],
        clock: Clock,
        sink: Logger,
        settings: LogSettings,
    ) -> None:
        self._node = node
        self._directory = directory
        self._opener = opener
        self._secrets = secrets
        self._clock = clock
        self._sink = sink
        self._settings = settings
        self._attempts: dict[tuple[str, AttemptId], _Storing] = {}

    def begin(self, attempt: AttemptId, job_uuid: str, uri: str, *, over: bool) -> None:
        """Store the output of an attempt from now on; again for the same one does nothing.

        Raises UserError for a store that may not be used.
        """
        if (job_uuid, attempt) in self._attempts:
            return
        store, threads = self._opener(uri)
        task = attempt.task
        sender = LogSender(
            store,
            attempt_directory(job_uuid, task.member, attempt.generation, attempt.number),
            Path(self._directory(job_uuid, attempt)),
            self._node,
            partial(self._secrets, str(attempt)),
            threads,
            self._settings.limit_bytes,
        )
        trouble = Trouble("logs cannot be stored", f"{attempt}", self._clock, self._sink, REFUSED_MS)
        entry = _Storing(attempt, job_uuid, sender, trouble)
        self._attempts[job_uuid, attempt] = entry
        if over:
            self._end(entry)
        entry.work = asyncio.get_running_loop().create_task(self._tend(entry, store))

    def over(self, attempt: AttemptId) -> None:
        """The attempt is dead: store the rest."""
        for entry in self._attempts.values():
            if entry.attempt == attempt:
                self._end(entry)

    def check(self, tell: Tell = raise_it) -> None:
        """Report each error that ended the storing of a log, once."""
        for key, entry in list(self._attempts.items()):
            work = entry.work
            with contained(partial(tell, entry.attempt)):
                if work is not None and work.done():
                    del self._attempts[key]
                    require_sound((work,))

    def notices(self) -> Iterator[Notice]:
        """Notices about logs that are late."""
        for entry in self._attempts.values():
            trouble, attempt = entry.trouble, entry.attempt
            if trouble.text and self._clock.now_ms() - trouble.since_ms >= LATE_MS:
                text = f"the log of {attempt} stays on {self._node} alone for now: {trouble.text}"
                about = f"{entry.job_uuid} {attempt.dirname} since {trouble.since_ms}"
                yield Notice(attempt.task.job, entry.job_uuid, LOGS_LATE, about, text)

    async def close(self) -> None:
        """Stop; a successor goes on."""
        works = [entry.work for entry in self._attempts.values() if entry.work is not None]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    def _end(self, entry: _Storing) -> None:
        if not entry.over.is_set():
            entry.over_ms = self._clock.now_ms()
            entry.over.set()

    async def _tend(self, entry: _Storing, store: CheckpointStore) -> None:
        pruned = False
        while True:
            final = entry.over.is_set()
            try:
                if not pruned:
                    await _prune(store, entry.job_uuid, entry.attempt)
                    pruned = True
                await entry.sender.send(final=final)
                entry.trouble.over()
            except TfSupervisorError as error:
                if final and self._clock.now_ms() - entry.over_ms > GIVE_UP_MS:
                    text = "the last output of an attempt is not stored: its store has failed for too long"
                    self._sink.warning(text, attempt=str(entry.attempt), reason=str(error))
                    return
                await entry.trouble.failed(error)
                continue
            if final:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.lag_ms / 2000):
                    await entry.over.wait()


async def _prune(store: CheckpointStore, job_uuid: str, attempt: AttemptId) -> None:
    """Delete the logs of the task's oldest attempts."""
    directory, this = directory_of(job_uuid, attempt.task.member), (attempt.generation, attempt.number)
    async with within(STORE_S, f"the store has not answered for {STORE_S:g} s"):
        found = [each for each in attempts_in((await store.list(directory)).directories) if each < this]
        for generation, number in found[: -MOST_ATTEMPTS + 1]:
            with effect("logs.prune", StoreUnreachable):
                await store.delete_tree(f"{directory}/g{generation}.{number}")
