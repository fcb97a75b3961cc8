"""Sender of a task's outputs: it sends them to the job's store while the program writes, and wholly at its
end.

A pass scans the directory, sends changed files, and writes the next index. A file that changes while it is
read is sent again at the next pass. Once the program is dead, a file that was sent as it grew is read once
more, and sent anew if its pieces do not match.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TypeVar

from recovery.io.deadline import Motion, while_moving
from recovery.io.in_thread import Worker
from recovery.outputs.index import (
    INDEX,
    MAX_FILES,
    MAX_INDEX_BYTES,
    PIECE_BYTES,
    PIECES,
    Change,
    OutputFile,
    OutputIndex,
    Piece,
    crc_of_pieces,
    encode_index,
    index_name,
    joined_index,
    pieces_kept,
)
from recovery.outputs.note import OutputState, Sent, save_state
from recovery.outputs.reading import Changed, Unreadable, copy_range, crc_of, edges_of, has_grown
from recovery.outputs.scan import Scan, Seen, scan, shown
from recovery.outputs.stored import read_index
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import CheckpointStore, Clock
from supervisor.contract.errors import Conflict, NotFound, Refused, StoreUnreachable

T = TypeVar("T")
QUIET_MS = 60_000
BATCH_MS = 20_000
"""Milliseconds after which a pass writes an index, although there is more to send."""
TRIES = 8
KEPT_INDEXES = 2
MOST_LEFT_OUT = 500


class _Left(Enum):
    """The rest after a pass: nothing, files that it had no time for, or files that changed while they were
    read.
    """

    NOTHING = "nothing"
    MORE = "more"
    CHANGED = "changed"


class OutputSender:
    """Sends one task's outputs; one pass at a time.

    Args:
        directory: the task's output directory.
        spool: a directory for the piece that is being sent; tasks of another user cannot write to it.
        uid: the owner whose files are taken; None: any owner.

    Attributes:
        state: the note after the last pass.
        waiting: (files, bytes) that the last scan found unsent.
        turn: a lock that is held during each scan of the directory.
    """

    def __init__(
        self,
        store: CheckpointStore,
        directory: Path,
        spool: Path,
        state: OutputState,
        clock: Clock,
        new_id: Callable[[], str],
        threads: Executor | None = None,
        uid: int | None = None,
    ) -> None:
        self.state = state
        self.waiting = (0, 0)
        self._store = store
        self._directory = directory
        self._spool = spool
        self._clock = clock
        self._new_id = new_id
        self._worker = Worker(threads, f"read {directory}")
        self._uid = uid
        self._ready: dict[str, Sent] = {}
        self._index: OutputIndex | None = None
        self._known = False
        self._tidied = False
        self._unreadable: dict[str, tuple[Seen, str]] = {}
        self.turn: AbstractAsyncContextManager[object] = nullcontext()

    async def send(self, *, final: bool) -> None:
        """Make one pass. `final`: the program is dead, and all files are wholly in the store when this
        returns.

        Raises the store's errors. Files that were sent before that are not sent again.
        """
        what = f"sending outputs of {self.state.job}/{self.state.member}"
        unsteady = 0
        while True:
            # Each time anew: others wait for their turn.
            async with self.turn:
                motion = Motion(self._clock)
                async with while_moving(motion, self._clock, QUIET_MS, what):
                    left = await self._pass(motion, final=final)
            if left is _Left.NOTHING or (left is _Left.CHANGED and not final):
                return
            unsteady += left is _Left.CHANGED
            if unsteady == TRIES:
                raise StoreUnreachable(f"{self._directory} is still changed although its task has ended")

    async def _pass(self, motion: Motion, *, final: bool) -> _Left:
        """Send for up to BATCH_MS and write the index; returns the rest."""
        found = await self._worker.run(partial(scan, self._directory, self._uid, self.state.sent.keys()))
        if not found.files and not found.left_out and not self.state.sent and not self.state.left_out:
            return _Left.NOTHING
        if not self._known:
            self._index, self._known = await read_index(self._store, self.state.base), True
        self._ready = {path: sent for path, sent in self._ready.items() if path in found.files}
        left_out = dict(found.left_out)
        changed = await self._worker.run(partial(self._plan, found, left_out, final=final))
        gone: tuple[str, ...] = ()
        if found.complete:
            # What could not be looked at may be there.
            gone = tuple(path for path in self.state.sent if path not in found.files)
        self.waiting = len(changed), sum(found.files[path].size for path in changed)
        named = dict(list(left_out.items())[:MOST_LEFT_OUT])
        if not changed and not gone and named == self.state.left_out and not self._flag_is_wrong(final=final):
            return _Left.NOTHING
        began_ms, left = self._clock.now_ms(), _Left.NOTHING
        for count, path in enumerate(changed, 1):
            try:
                self._ready[path] = await self._send_file(path, found.files[path], motion, final=final)
            except (Changed, NotFound):
                left = _Left.CHANGED
            except Unreadable as error:
                self._unreadable[path] = found.files[path], str(error)
                left_out[shown(path)] = str(error)
            self.waiting = len(changed) - count, self.waiting[1] - found.files[path].size
            if self._clock.now_ms() - began_ms > BATCH_MS and count < len(changed):
                left = _Left.MORE
                break
        if final and left is _Left.NOTHING and any(not sent.whole for sent in self._ready.values()):
            left = _Left.MORE
        await self._publish(gone, left_out, writing=not final or left is not _Left.NOTHING)
        return left

    def _flag_is_wrong(self, *, final: bool) -> bool:
        index = self._index
        if not self._known:
            # After a restart of the agent, or of the task here: what the index says is not known.
            return bool(self.state.sent) or (final and bool(self.state.left_out))
        return (
            index is not None
            and index.writer <= (self.state.generation, self.state.attempt)
            and (index.writing == final or index.writer != (self.state.generation, self.state.attempt))
        )

    def _plan(self, found: Scan, left_out: dict[str, str], *, final: bool) -> list[str]:
        """Paths to send: first those that are in the store already, then the oldest.

        The others go to `left_out`.

        Blocking: there may be very many.
        """

        def is_new(path: str, seen: Seen) -> bool:
            sent = self._ready.get(path) or self.state.sent.get(path)
            return sent is None or not sent.shows(seen) or (final and not sent.whole)

        new = {path for path, seen in found.files.items() if is_new(path, seen)}
        for path in list(new):
            seen, why = self._unreadable.get(path, (None, ""))
            if seen == found.files[path]:
                new.discard(path)
                left_out[shown(path)] = why
        waiting = [path for path in self._ready if path not in new]
        order = sorted(new, key=lambda path: (path not in self.state.sent, found.files[path].modified_ns))
        return self._fitting([*waiting, *order], found, left_out)

    def _fitting(self, paths: list[str], found: Scan, left_out: dict[str, str]) -> list[str]:
        """The paths that fit into the budget and the index, beside the files of other nodes."""
        budget, sent = self.state.budget_bytes, self.state.sent
        stored = self._index.files if self._index is not None else {}
        there = {path: file for path, file in stored.items() if path not in sent}
        there |= {path: each.file for path, each in sent.items() if path in found.files or not found.complete}
        total, count = sum(file.size for file in there.values()), len(there)
        room = MAX_INDEX_BYTES * 3 // 4 - sum(_entry_bytes(path, file.size) for path, file in there.items())
        fitting = []
        for path in paths:
            size, before = found.files[path].size, there.get(path)
            more = size - (before.size if before is not None else 0)
            entry = _entry_bytes(path, size) if before is None else 0
            if more > 0 and total + more > budget:
                left_out[shown(path)] = f"limits.output_budget ({budget} bytes) has no room for it"
            elif before is None and (count >= MAX_FILES or entry > room):
                left_out[shown(path)] = "the task has too many files for one index"
            else:
                total, count, room = total + more, count + (before is None), room - entry
                fitting.append(path)
        return fitting

    async def _send_file(self, path: str, seen: Seen, motion: Motion, *, final: bool) -> Sent:
        sent = self._ready.get(path) or self.state.sent.get(path)
        if sent is not None and sent.shows(seen) and (sent.whole or not final):
            return sent  # it was sent before, and the index could not be written
        kept: tuple[Piece, ...] = ()
        version = self._new_id()[:16]
        if sent is not None:
            if sent.size == seen.size and await self._is_whole(path, seen, sent.file, motion):
                edges = await self._worker.run(partial(edges_of, self._directory, path, seen))
                return Sent(self._stamped(sent.file, seen), *_stat(seen), *edges)
            grown = partial(has_grown, self._directory, path, sent, seen)
            if sent.size < seen.size and await self._worker.run(grown):
                kept, version = pieces_kept(sent.file.pieces, seen.size), sent.file.version
        pieces = list(kept)
        end = kept[-1].offset + kept[-1].size if kept else 0
        while end < seen.size:
            piece = await self._send_piece(path, seen, end, min(PIECE_BYTES, seen.size - end), motion)
            pieces.append(piece)
            end += piece.size
        edges = await self._worker.run(partial(edges_of, self._directory, path, seen))
        file = OutputFile(
            seen.size,
            seen.modified_ns // 1_000_000,
            version,
            tuple(pieces),
            self.state.generation,
            self.state.attempt,
        )
        # The program may have changed it while it was read; once it is dead nothing does.
        return Sent(file, *_stat(seen), *edges, whole=final and not kept)

    def _stamped(self, file: OutputFile, seen: Seen) -> OutputFile:
        return replace(file, modified_ms=seen.modified_ns // 1_000_000)

    async def _is_whole(self, path: str, seen: Seen, file: OutputFile, motion: Motion) -> bool:
        crc = await self._worker.run_stoppable(partial(crc_of, self._directory, path, seen, moved=motion))
        return crc == crc_of_pieces(file)

    async def _send_piece(self, path: str, seen: Seen, start: int, size: int, motion: Motion) -> Piece:
        spool = self._spool / f"{self.state.member}.spool"
        copy = partial(copy_range, self._directory, path, seen, start, size, spool, moved=motion)
        crc = await self._worker.run_stoppable(copy)
        motion()
        name = f"{self.state.node}@{self._new_id()}"
        # After an error it may be there all the same, and is sent again under another name.
        tidied, self._tidied = self._tidied, False
        try:
            with effect("outputs.upload", StoreUnreachable):
                stored = await self._store.upload(str(spool), f"{self.state.base}/{PIECES}/{name}", motion)
        finally:
            await self._worker.run(partial(spool.unlink, missing_ok=True))
        if stored.size != size or stored.crc32c not in {None, crc}:
            raise StoreUnreachable(f"{self.state.base}/{PIECES}/{name} is not what was sent")
        self._tidied = tidied
        return Piece(name, start, size, crc)

    async def _publish(self, gone: tuple[str, ...], left_out: Mapping[str, str], *, writing: bool) -> None:
        """Write the next index, and remove pieces that it no longer names."""
        state, ready = self.state, dict(self._ready)
        change = Change(
            state.node,
            state.generation,
            state.attempt,
            writing,
            {path: sent.file for path, sent in ready.items()},
            {path: sent.file for path, sent in state.sent.items()},
            gone,
            left_out,
        )
        before, after, late = await self._write_index(change)
        sent = {path: each for path, each in (state.sent | ready).items() if path not in gone}
        # Whether the attempt is over may have been said meanwhile.
        self.state = replace(
            self.state,
            sent=sent,
            late=tuple(sorted({*state.late, *late} - set(gone))),
            left_out=dict(list(left_out.items())[:MOST_LEFT_OUT]),
        )
        self._ready = {}
        await self._worker.run(partial(save_state, self._spool, self.state))
        await self._remove(before, after)

    async def _write_index(self, change: Change) -> tuple[OutputIndex, OutputIndex, tuple[str, ...]]:
        base = self.state.base
        for _ in range(TRIES):
            if not self._known:
                self._index, self._known = await read_index(self._store, base), True
            before = self._index or OutputIndex(self.state.job, self.state.member, 0)
            after, late = joined_index(before, change)
            raw = await self._worker.run(partial(encode_index, after))
            if len(after.files) > MAX_FILES or len(raw) > MAX_INDEX_BYTES:
                raise Refused(f"the index below {base} would be larger than its readers accept")
            self._known = False
            try:
                with effect("outputs.index", StoreUnreachable):
                    await self._store.write_bytes(f"{base}/{INDEX}/{index_name(after.serial)}", raw)
            except Conflict:
                continue
            self._index, self._known = after, True
            return before, after, late
        raise StoreUnreachable(f"the index below {base} is written by somebody else all the time")

    async def _remove(self, before: OutputIndex, after: OutputIndex) -> None:
        """Remove pieces that no index names.

        Those that stay because of an error go at the agent's next start.
        """
        base, named = self.state.base, _names(after)
        doomed = {f"{base}/{PIECES}/{name}" for name in _names(before) - named}
        if after.serial > KEPT_INDEXES:
            doomed.add(f"{base}/{INDEX}/{index_name(after.serial - KEPT_INDEXES)}")
        if not self._tidied:
            self._tidied = True
            mine = f"{base}/{PIECES}/{self.state.node}@"
            stored = {file.path for file in (await self._store.list(f"{base}/{PIECES}")).files}
            doomed |= {path for path in stored if path.startswith(mine)} - {
                f"{base}/{PIECES}/{name}" for name in named
            }
            indexes = sorted(file.path for file in (await self._store.list(f"{base}/{INDEX}")).files)
            doomed |= set(indexes[:-KEPT_INDEXES])
        for path in sorted(doomed):
            with effect("outputs.remove", StoreUnreachable):
                await self._store.delete_file(path)


def _names(index: OutputIndex) -> set[str]:
    return {piece.name for file in index.files.values() for piece in file.pieces}


def _entry_bytes(path: str, size: int) -> int:
    """Estimated size of a file's entry in an index, with its usual number of pieces."""
    return len(json.dumps(path)) + 150 + 200 * (size // PIECE_BYTES + 4)


def _stat(seen: Seen) -> tuple[int, int, int]:
    return seen.size, seen.modified_ns, seen.inode
