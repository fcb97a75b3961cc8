"""Output of a task that is read from its job's store: of a node that is lost or away, or of long ago."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from itertools import chain

from recovery.io.deadline import within
from recovery.logs.stored import StoredLog, stored_attempts
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.views.jobs import OutputPlace, TailChunk
from supervisor.control.decide.snapshot import JobState, Snapshot

SUSPECTED = "node_suspected"
LIST_S = 2.0
READ_S = 5.0
LogOpener = Callable[[str], CheckpointStore]
"""Opens the store of a job's logs. Raises UserError."""


class StoredOutput:
    """The stored output of one task.

    Attributes:
        attempts: those that have some, by the last `look`.
        trouble: why the last call failed, or has not given all; empty for none.
        until_ms: up to when the output that was read last is stored, on its node's wall clock; 0: wholly.
    """

    def __init__(self, opener: LogOpener, task: TaskId) -> None:
        self.attempts: frozenset[AttemptId] = frozenset()
        self.trouble = ""
        self.until_ms = 0
        self._opener = opener
        self._task = task

    async def look(self, job: JobState) -> None:
        """List the attempts."""
        self.attempts, self.trouble = frozenset(), ""
        try:
            async with within(LIST_S, f"the job's store has not answered for {LIST_S:g} s"):
                store = self._opener(job.record.value.store_uri)
                self.attempts = frozenset(await stored_attempts(store, job.switch.value.job_uuid, self._task))
        except TfSupervisorError as error:
            self.trouble = str(error)

    async def stacks(self, job: JobState) -> AsyncGenerator[TailChunk, None]:
        """The newest dump of each attempt's stacks, oldest attempt first. Raises errors of the store."""
        store = self._opener(job.record.value.store_uri)
        for attempt in sorted(self.attempts):
            log = StoredLog(store, job.switch.value.job_uuid, attempt)
            async with within(READ_S, f"the job's store has not answered for {READ_S:g} s"):
                node, text = await log.stacks()
            if text:
                yield TailChunk(OutputPlace(str(attempt)), base64.b64encode(text).decode(), node)

    async def rest_of(
        self,
        job: JobState,
        place: OutputPlace,
        last_bytes: int,
        since_ms: int,
        last_lines: int,
        *,
        timed: bool,
    ) -> AsyncGenerator[TailChunk, None]:
        """The output of the attempt of a place, after that place; `trouble` then says why it is not all."""
        attempt, doing = AttemptId.parse(place.attempt), f"the job's store has not answered for {READ_S:g} s"
        self.trouble, self.until_ms = "", 0
        try:
            store = self._opener(job.record.value.store_uri)
            log = StoredLog(store, job.switch.value.job_uuid, attempt)
            async with within(READ_S, doing):
                await log.begin(place.file, place.offset, last_bytes, since_ms, last_lines)
            while True:
                async with within(READ_S, doing):
                    chunk = await log.next()
                if chunk is None:
                    break
                yield TailChunk(
                    OutputPlace(place.attempt, chunk.file, chunk.offset),
                    base64.b64encode(chunk.data).decode(),
                    chunk.node,
                    chunk.cut,
                    times=tuple(chain.from_iterable(chunk.times)) if timed else (),
                )
        except TfSupervisorError as error:
            self.trouble = f"its stored output cannot be read: {error}"
            return
        self.trouble = "" if log.is_whole else "its last output is not stored"
        self.until_ms = 0 if log.is_whole else log.until_ms


def missing(snap: Snapshot, node: str, until_ms: int) -> str:
    """A sentence about output of a node that is stored up to a time alone."""
    missed_ms = lost_ms(snap, node)
    stored = f"its output is stored up to {clock_time(until_ms)}"
    if not 0 < until_ms <= missed_ms:
        return f"{stored}: what came later is not shown"
    gap_s = (missed_ms - until_ms) / 1000
    return (
        f"{node} was heard until {clock_time(missed_ms)}, and {stored}: "
        f"what it wrote in the {gap_s:.1f} s between, if anything, is not stored"
    )


def lost_ms(snap: Snapshot, node: str) -> int:
    """When the leader began to miss a node, on its wall clock; 0 if it misses none of its lives."""
    picture = snap.nodes.get(node)
    if picture is not None and picture.beat is not None and picture.incarnation is not None:
        return snap.wall_ms - (snap.now_ms - picture.beat.received_ms)
    events = (each.value for each in reversed(snap.events))
    missed = (each.wall_ms for each in events if each.kind == SUSPECTED and each.fields.get("node") == node)
    return next(missed, 0)


def clock_time(ms: int) -> str:
    """A time of day, for people."""
    with suppress(OverflowError, ValueError, OSError):
        return time.strftime("%H:%M:%S UTC", time.gmtime(ms / 1000))
    return "an unknown time"
