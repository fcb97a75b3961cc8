"""Fetching the outputs of tasks: for a task that starts on another node, and for programs that read them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from recovery.io.deadline import Motion
from recovery.io.files import beneath, mapped_errors
from recovery.outputs.index import OutputFile, OutputIndex, crc_of_pieces, directory_of
from recovery.outputs.note import OutputState, Sent
from recovery.outputs.reading import Changed, Unreadable, crc_of, edges_of
from recovery.outputs.scan import Seen, scan
from recovery.outputs.stored import Fetcher, Have, read_index
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.errors import BadCheckpoint, Conflict, NotFound

T = TypeVar("T")
TRIES = 3


@dataclass(slots=True)
class Brought:
    """The result of `bring`: the new note, the fetched files and bytes, failures with their reasons, files
    put aside.
    """

    sent: dict[str, Sent]
    count: int = 0
    size: int = 0
    missing: dict[str, str] = field(default_factory=dict)
    aside: tuple[str, ...] = ()


class Bringer:
    """Brings into a task's output directory the files that its earlier attempts wrote on other nodes.

    Args:
        directory: the task's output directory; no attempt of the task is alive on this node.
        spool: as for `Fetcher`.
        aside: the directory for local files that were never sent, and whose names another node has used
            since.
        owner: (uid, gid) for the files; None: this process's own.
    """

    def __init__(
        self,
        store: CheckpointStore,
        directory: Path,
        spool: Path,
        aside: Path,
        threads: Executor | None = None,
        owner: tuple[int, int] | None = None,
    ) -> None:
        self._store = store
        self._directory = directory
        self._spool = spool
        self._aside = aside
        self._threads = threads
        self._owner = owner

    async def bring(self, state: OutputState, index: OutputIndex, motion: Motion) -> Brought:
        """Fetch the files of the index that this node lacks. Raises StoreUnreachable, Refused, NotFound.

        NotFound: the index is out of date. What this node has sent last, it may have noted no more; a file
        that has changed since the note is then the one that it sent, or newer.
        """
        base = directory_of(state.job_uuid, state.member)
        fetcher = Fetcher(self._store, base, self._directory, self._spool, self._threads, self._owner)
        found = (await self._run(partial(scan, self._directory))).files
        result = Brought(dict(state.sent))
        for path, file in index.files.items():
            sent, seen = result.sent.get(path), found.get(path)
            if sent is not None and sent.file.is_same(file):
                continue  # what is here is that, or newer
            have = None
            if seen is not None:
                if await self._holds(path, seen, file):
                    await self._note(result, path, file)
                    continue
                if sent is not None and sent.shows(seen):
                    have = Have(sent.file.version, sent.size)
                elif index.node == state.node:
                    continue
                else:
                    await self._run(partial(_put_aside, self._directory, path, self._aside))
                    result.aside += (path,)
            try:
                await fetcher.fetch(path, file, have, motion)
                await self._note(result, path, file)
            except (BadCheckpoint, Conflict) as error:
                result.missing[path] = str(error)
                continue
            result.count, result.size = result.count + 1, result.size + file.size
        for path, sent in list(result.sent.items()):
            if path not in index.files and path in found and sent.shows(found[path]):
                await self._run(partial(remove_file, self._directory, path))
        result.sent = {path: sent for path, sent in result.sent.items() if path in index.files}
        return result

    async def _holds(self, path: str, seen: Seen, file: OutputFile) -> bool:
        if seen.size != file.size:
            return False
        try:
            return await self._run(partial(crc_of, self._directory, path, seen)) == crc_of_pieces(file)
        except (Changed, Unreadable):
            return False

    async def _note(self, result: Brought, path: str, file: OutputFile) -> None:
        try:
            sent = await self._run(partial(_sent_of, self._directory, path, file))
        except (Changed, Unreadable):
            return
        result.sent[path] = sent

    async def _run(self, work: Callable[[], T]) -> T:
        return await _in_thread(self._threads, self._directory, work)


class Mirror:
    """Keeps copies of the outputs of all tasks of a job in `directory/ROLE.INDEX`, for the programs that read
    them.

    A copy of a file that grows grows in place, as TensorBoard expects of event files.
    """

    def __init__(
        self,
        store: CheckpointStore,
        job_uuid: str,
        directory: Path,
        spool: Path,
        threads: Executor | None = None,
        owner: tuple[int, int] | None = None,
    ) -> None:
        self._store = store
        self._job_uuid = job_uuid
        self._directory = directory
        self._spool = spool
        self._threads = threads
        self._owner = owner
        self._known: dict[str, OutputIndex] = {}
        self._have: dict[str, dict[str, Have]] = {}

    async def look(self, members: tuple[str, ...], motion: Motion) -> None:
        """Fetch new outputs of these tasks. Raises StoreUnreachable, Refused, IncompatibleRecord."""
        for member in members:
            base = directory_of(self._job_uuid, member)
            index = await read_index(self._store, base, self._known.get(member))
            if index is not None and index is not self._known.get(member):
                with suppress(NotFound):  # it is out of date: the next look finds a newer one
                    await self._follow(base, index, motion)
                    self._known[member] = index

    async def _follow(self, base: str, index: OutputIndex, motion: Motion) -> None:
        fetcher = Fetcher(self._store, base, self._directory, self._spool, self._threads, self._owner)
        have = self._have.setdefault(index.member, {})
        for path in [path for path in have if path not in index.files]:
            await self._run(partial(remove_file, self._directory, f"{index.member}/{path}"))
            del have[path]
        for path, file in index.files.items():
            now = Have(file.version, file.size)
            if have.get(path) != now:
                with suppress(Conflict, BadCheckpoint):
                    await fetcher.fetch(f"{index.member}/{path}", file, have.get(path), motion)
                    have[path] = now

    async def _run(self, work: Callable[[], T]) -> T:
        return await _in_thread(self._threads, self._directory, work)


async def _in_thread(threads: Executor | None, directory: Path, work: Callable[[], T]) -> T:
    def mapped() -> T:
        with mapped_errors(f"write below {directory}"):
            return work()

    return await asyncio.get_running_loop().run_in_executor(threads, mapped)


def _sent_of(directory: Path, path: str, file: OutputFile) -> Sent:
    """The note for a local file with the content of `file`. Raises OSError."""
    with beneath(directory, path) as (fd, name):
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    seen = Seen(status.st_size, status.st_mtime_ns, status.st_ino)
    return Sent(file, seen.size, seen.modified_ns, seen.inode, *edges_of(directory, path, seen))


def _put_aside(directory: Path, path: str, aside: Path) -> None:
    with effect("outputs.put_aside"):
        aside.mkdir(parents=True, exist_ok=True)
        with beneath(directory, path) as (fd, name), beneath(aside, path, make=True) as (aside_fd, target):
            os.rename(name, target, src_dir_fd=fd, dst_dir_fd=aside_fd)


def remove_file(directory: Path, path: str) -> None:
    """Remove a file and the directories that it leaves empty. Blocking."""
    with suppress(OSError), effect("outputs.remove_file"):
        with beneath(directory, path) as (fd, name):
            os.unlink(name, dir_fd=fd)
        parts = path.split("/")[:-1]
        while parts:
            with beneath(directory, "/".join(parts)) as (fd, name):
                os.rmdir(name, dir_fd=fd)
            parts.pop()
