"""Leftover work: files that tasks wrote in places that are not sent to a store.

They are reported, and kept for a while.

When the directory of a generation, or of an ended job, is removed, files that are no checkpoints stay in
place. A note beside them has the end of their time. The leader writes an event for each; before its event no
file is removed, and after it the oldest goes first when the node's budget is used up.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

from agent.inside import clock as machine
from agent.inside.child.adopt import RECORDS
from agent.outputs.directories import ASIDE, COPIES, OWN, OWNER
from recovery.commit.outbox import OUTBOX
from recovery.commit.stage import BASES, BUILD_PREFIX, STALE_PREFIX
from recovery.io import files
from recovery.io.files import mapped_errors
from recovery.io.trees import remove_tree
from recovery.outputs.bring import remove_file
from recovery.outputs.scan import scan, shown
from supervisor.adapters.failpoints import effect
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Clock, Coordination, Logger
from supervisor.contract.errors import IncompatibleRecord, TfSupervisorError
from supervisor.contract.incident import Event
from supervisor.contract.job.file_pattern import compile_pattern
from supervisor.contract.job.spec import JobRecord, Limits
from supervisor.contract.observed import WORK_KEPT, Notice

T = TypeVar("T")
NOTE_PREFIX = ".kept-"
"""Prefix of notes in a job's directory. Each node has its own, as agents of one machine may share the
directory."""

_NOT_WORK = (BUILD_PREFIX, STALE_PREFIX, NOTE_PREFIX, OWN, COPIES, OWNER, ASIDE, RECORDS)
TIDY_S = 10.0
MOST_NAMED = 5
_MAX_NOTE_BYTES = 4 << 20
_GENERATION = re.compile(r"g\d{1,8}", re.ASCII)
_CHECKPOINT = re.compile(
    r"graph\.pbtxt(\.tmp.*)?|checkpoint(\.tmp.*)?|.+\.(index|meta|data-\d{5}-of-\d{5})(\.tempstate\d+|\.tmp.*)?",
    re.ASCII,
)
_MODEL = frozenset({"saved_model.pb", "saved_model.pbtxt"})


@dataclass(frozen=True, slots=True)
class Kept:
    """A directory or file below the job's directory that is kept until `until_ms` of the boot `boot_id`.

    `named`: an event reports it.
    """

    path: str
    count: int
    size: int
    names: tuple[str, ...]
    boot_id: str
    until_ms: int
    keep_ms: int
    named: bool = False


@dataclass(frozen=True, slots=True)
class KeptNote:
    """The kept entries of one job, the oldest first."""

    job: str
    job_uuid: str
    entries: tuple[Kept, ...] = ()


def strays(names: Iterable[str], patterns: tuple[str, ...]) -> list[str]:
    """The paths, among those of files in a generation's directory, that belong to no checkpoint.

    Files in the directory of an exported model belong to that, including its variables, whose files have
    names like a checkpoint's. `patterns`: those of `CheckpointSpec`.
    """
    found, compiled = list(names), [compile_pattern(pattern) for pattern in patterns]
    models = {PurePosixPath(name).parent for name in found if PurePosixPath(name).name in _MODEL}

    def is_stray(name: str) -> bool:
        if any(pattern.fullmatch(name) for pattern in compiled):
            return False
        path = PurePosixPath(name)
        if models.intersection(path.parents):
            return True
        return _CHECKPOINT.fullmatch(path.name) is None

    return [name for name in found if is_stray(name)]


class NodeWork:
    """Keeps leftover work below `parent/JOB_UUID`, within `budget_bytes` for all jobs of this node."""

    def __init__(
        self,
        node: str,
        parent: Path,
        coordination: Coordination,
        clock: Clock,
        sink: Logger,
        budget_bytes: int | None = None,
    ) -> None:
        self._node = node
        self._parent = parent
        self._coordination = coordination
        self._clock = clock
        self._sink = sink
        self._budget_bytes = budget_bytes
        self._notes: dict[str, KeptNote] = {}
        self._lock = asyncio.Lock()
        self._stuck: set[tuple[str, str]] = set()

    async def clean(self, job: str, job_uuid: str, keep: tuple[int, ...], *, ended: bool) -> None:
        """Before directories of a job are removed: note the files without another copy, and remove the rest.

        The directories of the generations in `keep` stay as they are. `ended`: all other directories of the
        job are removed too, except those of outputs.

        Raises Refused, Unreachable, CoordinationUnreachable. Then the caller must not remove the directories.
        """
        patterns, keep_ms, saved = await self._terms(job, job_uuid)
        root = self._parent / job_uuid
        names = {OUTBOX, BASES}

        def work() -> list[Kept]:
            found = []
            for entry in sorted(root.iterdir()) if root.is_dir() else []:
                is_generation = _GENERATION.fullmatch(entry.name) is not None
                if entry.name in names or entry.name.startswith(_NOT_WORK):
                    continue
                if (is_generation and int(entry.name[1:]) in keep) or not (is_generation or ended):
                    continue
                with effect("work.keep"):
                    kept = self._strip(root, entry, patterns if is_generation and saved else None, keep_ms)
                if kept is not None:
                    found.append(kept)
            return found

        async with self._lock:
            note = await self._read(job_uuid) or KeptNote(job, job_uuid)
            names |= await self._run(partial(self._names_of_others, job_uuid))
            found = await self._run(work)
            known = {each.path: each for each in note.entries}
            new = [each for each in found if not self._is_known(known.get(each.path), each)]
            await self._add(note, new)

    async def keep(self, job: str, job_uuid: str, path: str, keep_ms: int) -> None:
        """Note a directory below the job's that was moved to a place that no task writes to.

        Raises as `clean`.
        """
        root = self._parent / job_uuid
        async with self._lock:
            note = await self._read(job_uuid) or KeptNote(job, job_uuid)
            kept = await self._run(partial(self._strip, root, root / path, None, keep_ms))
            await self._add(note, [kept] if kept is not None else [])

    async def in_use(self, job_uuid: str) -> None:
        """A task of the job is about to start here: it may write to directories that were kept. Raises as
        `clean`.
        """
        async with self._lock:
            note = await self._read(job_uuid)
            if note is None:
                return
            still = tuple(each for each in note.entries if self._is_out_of_use(each.path))
            if still != note.entries:
                await self._write(replace(note, entries=still))

    @staticmethod
    def _is_out_of_use(path: str) -> bool:
        return path.startswith(ASIDE) or _GENERATION.fullmatch(path) is not None

    async def _add(self, note: KeptNote, new: list[Kept]) -> None:
        if not new:
            if note.entries:
                self._notes[note.job_uuid] = note
            return
        paths = {each.path for each in new}
        stay = tuple(each for each in note.entries if each.path not in paths)
        await self._write(replace(note, entries=(*stay, *new)))
        for each in new:
            self._sink.warning(
                "work that is in no store is kept for a while",
                job=note.job,
                directory=str(self._parent / note.job_uuid / each.path),
                files=each.count,
                bytes=each.size,
                hours=round(each.keep_ms / 3_600_000, 1),
            )

    async def kept_names(self, job_uuid: str) -> frozenset[str]:
        """Names in a job's directory that must stay: kept entries, and notes.

        Raises as `clean`.
        """
        note = self._notes.get(job_uuid)
        mine = {each.path for each in note.entries} if note is not None else set()
        return frozenset(mine | await self._run(partial(self._names_of_others, job_uuid)))

    def _names_of_others(self, job_uuid: str) -> set[str]:
        """The names that other agents of this machine keep, and all notes."""
        found = set()
        for path in (self._parent / job_uuid).glob(f"{NOTE_PREFIX}*.json"):
            found.add(path.name)
            note = _parse(path) if path != self._path(job_uuid) else None
            found |= {each.path for each in note.entries} if note is not None else set()
        return found

    def _path(self, job_uuid: str) -> Path:
        return self._parent / job_uuid / f"{NOTE_PREFIX}{self._node}.json"

    def notices(self) -> tuple[Notice, ...]:
        """Notices about kept work for the leader: first those without an event yet, each group the newest
        first.

        A beat has room for `MOST_NOTICES`, and only work with an event is ever removed.
        """
        found = [(note, each) for note in self._notes.values() for each in note.entries]
        found.reverse()
        found.sort(key=lambda pair: pair[1].named)
        return tuple(
            Notice(note.job, note.job_uuid, WORK_KEPT, self._about(note, each), self._text(note, each))
            for note, each in found
        )

    async def run(self) -> None:
        """Remove kept work whose time is over, in a loop."""
        await self.load()
        while True:
            try:
                await self.tidy()
            except TfSupervisorError as error:
                self._sink.debug("cannot look through kept work; trying again", reason=str(error))
            await asyncio.sleep(TIDY_S)

    async def load(self) -> None:
        """Read the notes of earlier lives of this agent."""
        for path in await asyncio.to_thread(_notes, self._parent, self._node):
            with suppress(TfSupervisorError):
                note = await self._read(path.parent.name)
                if note is not None and note.job_uuid == path.parent.name:
                    self._notes.setdefault(note.job_uuid, note)

    async def tidy(self) -> None:
        """Remove work with an event once its time is over or the budget is used up. Raises as `clean`."""
        async with self._lock:
            await self._see_named()
            now_ms, boot_id = self._clock.now_ms(), machine.boot_id()
            total = sum(each.size for note in self._notes.values() for each in note.entries)
            order = [(note.job_uuid, each) for note in self._notes.values() for each in note.entries]
            for job_uuid, each in sorted(
                order, key=lambda pair: (pair[1].boot_id == boot_id, pair[1].until_ms)
            ):
                if each.boot_id != boot_id:
                    # Nobody knows for how long the machine was off: its time begins anew.
                    await self._change(
                        job_uuid, each, replace(each, boot_id=boot_id, until_ms=now_ms + each.keep_ms)
                    )
                    continue
                full = self._budget_bytes is not None and total > self._budget_bytes
                if each.named and (now_ms >= each.until_ms or full):
                    try:
                        await self._run(partial(self._remove, job_uuid, each.path))
                    except TfSupervisorError as error:
                        # The other jobs' turn comes all the same, and this one's again.
                        if (job_uuid, each.path) not in self._stuck:
                            self._stuck.add((job_uuid, each.path))
                            place = {"directory": each.path, "job": job_uuid}
                            self._sink.warning(
                                "kept work cannot be removed; trying again", reason=str(error), **place
                            )
                        continue
                    await self._change(job_uuid, each, None)
                    total -= each.size
                    why = "its time is over" if now_ms >= each.until_ms else "the budget for it is used up"
                    self._sink.info("removed kept work", directory=each.path, job=job_uuid, reason=why)

    async def _terms(self, job: str, job_uuid: str) -> tuple[tuple[str, ...], int, bool]:
        """The job's patterns, the time for which its work is kept, and whether any checkpoint is
        committed.
        """
        found = await self._coordination.get(keys.job_record(job))
        head = await self._coordination.get(keys.head(job))
        record = codec.decode(JobRecord, found.value) if found is not None else None
        if record is None or record.uuid != job_uuid:
            return (), Limits().keep_work_ms, True
        return record.spec.checkpoint.patterns, record.spec.limits.keep_work_ms, head is not None

    def _strip(self, root: Path, entry: Path, patterns: tuple[str, ...] | None, keep_ms: int) -> Kept | None:
        """Reduce an entry to the files to keep; None if there are none. `patterns`: None to keep all."""
        if entry.is_symlink() or not entry.is_dir():
            status = entry.lstat()
            size = min(status.st_size, 512 * status.st_blocks)
            names, sizes, whole = [entry.name], {entry.name: size}, True
            if entry.is_symlink():
                return None
        else:
            found = scan(entry)
            sizes = {path: min(seen.size, seen.on_disk) for path, seen in found.files.items()}
            names, whole = list(sizes), patterns is None or not found.complete
            if not whole and patterns is not None:
                names = strays(names, patterns)
        if not names:
            return None
        if not whole:
            for path in sizes.keys() - set(names):
                remove_file(entry, path)
        size, until_ms = sum(sizes[name] for name in names), self._clock.now_ms() + keep_ms
        first = tuple(shown(name) for name in sorted(names)[:MOST_NAMED])
        return Kept(
            entry.relative_to(root).as_posix(), len(names), size, first, machine.boot_id(), until_ms, keep_ms
        )

    @staticmethod
    def _is_known(known: Kept | None, found: Kept) -> bool:
        return known is not None and (known.count, known.size) == (found.count, found.size)

    def _about(self, note: KeptNote, each: Kept) -> str:
        return f"{self._parent / note.job_uuid / each.path} ({each.count}, {each.size})"

    def _text(self, note: KeptNote, each: Kept) -> str:
        more = f" and {each.count - len(each.names)} more" if each.count > len(each.names) else ""
        return (
            f"kept on {self._node} for {each.keep_ms / 3_600_000:g} h, as no store has them: "
            f"{self._parent / note.job_uuid / each.path} (files: {each.count}, bytes: {each.size}): "
            f"{', '.join(each.names)}{more}; write what should stay to {{output_dir}}"
        )

    async def _see_named(self) -> None:
        """Note entries that have an event by now, or whose job is deleted, so that no event will be
        written.
        """
        unnamed = [(note, each) for note in self._notes.values() for each in note.entries if not each.named]
        if not unnamed:
            return
        listing = await self._coordination.list("events/")
        told = set()
        for entry in listing.entries:
            with suppress(IncompatibleRecord):
                event = codec.decode(Event, entry.value)
                if event.kind == WORK_KEPT and event.fields.get("node") == self._node:
                    told.add(event.fields.get("about"))
        for note, each in unnamed:
            known = self._about(note, each) in told
            if known or await self._coordination.get(keys.job_record(note.job)) is None:
                await self._change(note.job_uuid, each, replace(each, named=True))

    async def _change(self, job_uuid: str, before: Kept, after: Kept | None) -> None:
        note = self._notes[job_uuid]
        changed = [after if each == before else each for each in note.entries]
        await self._write(replace(note, entries=tuple(each for each in changed if each is not None)))

    async def _read(self, job_uuid: str) -> KeptNote | None:
        if job_uuid in self._notes:
            return self._notes[job_uuid]

        return await self._run(partial(_parse, self._path(job_uuid)))

    async def _write(self, note: KeptNote) -> None:
        path = self._path(note.job_uuid)

        def write() -> None:
            if not note.entries:
                with effect("work.forget"):
                    path.unlink(missing_ok=True)
                    with suppress(OSError):
                        path.parent.rmdir()
                return
            part = path.with_name(f"{path.name}.part")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with effect("work.note"):
                part.unlink(missing_ok=True)
                fd = os.open(part, flags, 0o600)
                try:
                    files.write_all(fd, codec.encode(note))
                    os.fsync(fd)
                finally:
                    os.close(fd)
                part.replace(path)

        await self._run(write)
        if note.entries:
            self._notes[note.job_uuid] = note
        else:
            self._notes.pop(note.job_uuid, None)

    def _remove(self, job_uuid: str, path: str) -> None:
        place = self._parent / job_uuid / path
        with effect("work.remove"):
            if place.is_dir() and not place.is_symlink():
                remove_tree(place)
            else:
                place.unlink(missing_ok=True)

    async def _run(self, work: Callable[[], T]) -> T:
        def mapped() -> T:
            with mapped_errors(f"keep work below {self._parent}"):
                return work()

        return await asyncio.to_thread(mapped)


def _parse(path: Path) -> KeptNote | None:
    """Read a note. A program of the agent's own user may have written it, so only names in its own directory
    count.
    """
    with suppress(OSError, IncompatibleRecord):
        note = codec.decode(KeptNote, files.read_small(path, _MAX_NOTE_BYTES))
        wrong = [each for each in note.entries if "/" in each.path or each.path in {"", ".", ".."}]
        return note if note.job_uuid == path.parent.name and not wrong else None
    return None


def _notes(parent: Path, node: str) -> list[Path]:
    with suppress(OSError):
        return sorted(parent.glob(f"*/{NOTE_PREFIX}{node}.json"))
    return []
