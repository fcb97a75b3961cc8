"""Failpoints at every effect of commit, restore and collection: on files, in the store, in etcd.

A `Fuse` counts what is about to happen and strikes at one of these points. Effects on local files are seen by
an audit hook of the interpreter, so that none is forgotten.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TypeVar

from recovery.formats.paths import PART_PREFIX, split_path
from recovery.io import files
from recovery.stores.memory import MemoryCheckpointStore, MemoryDisk, Moment
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.contract.boundaries import Compare, Listing, Op, StoredDirectory, TxnResult
from supervisor.contract.errors import Conflict, CoordinationUnreachable, StoreUnreachable
from tests.checkpoints.world import Crash

T = TypeVar("T")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_EFFECTS = frozenset({"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.truncate"})


class Strike(Enum):
    """The event at the point."""

    CRASH = "crash"
    CANCEL = "cancel"
    ERROR = "error"


class Fuse:
    """Strikes at the point with this number. After a crash nothing has an effect any more.

    Attributes:
        struck: where it did; empty before.
        reached: points so far.
        watch: called at each point, before anything strikes there.
    """

    def __init__(self, at: int, strike: Strike) -> None:
        self.watch: Callable[[], None] = lambda: None
        self._at = at
        self._strike = strike
        self._task: asyncio.Task[object] | None = None
        self._dead = False
        self.struck = ""
        self.reached = 0

    def reach(self, point: str, error: type[Exception] = OSError) -> None:
        """This is about to happen, or has just happened."""
        if self._dead:
            raise Crash(point)
        self.watch()
        self.reached += 1
        if self.reached - 1 != self._at:
            return
        self.struck = point
        if self._strike is Strike.CRASH:
            self._dead = True
            raise Crash(point)
        if self._strike is Strike.CANCEL:
            assert self._task is not None
            self._task.cancel()
            return
        raise OSError(5, "Input/output error") if error is OSError else error(f"failpoint: {point}")

    async def run(self, work: Coroutine[object, object, T]) -> T:
        """Do this with the fuse in force. Raises what comes of the strike."""
        self._task = asyncio.ensure_future(work)
        with _armed(self):
            return await self._task


_in_force: list[Fuse] = []
_hooked: list[bool] = []


def _audit(event: str, args: tuple[object, ...]) -> None:
    if not _in_force:
        return
    effect = event in _EFFECTS
    if event == "open" and isinstance(args[2], int):
        effect = bool(args[2] & _WRITING)
    elif event == "ctypes.dlsym":
        effect = args[1] == "renameat2"
    if effect:
        _in_force[-1].reach(f"{event} {args[0] if event != 'ctypes.dlsym' else ''}")


@contextmanager
def _armed(fuse: Fuse) -> Iterator[None]:
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked.append(True)
    whole = files.write_all

    def torn(fd: int, data: bytes) -> None:
        fuse.reach("write")
        whole(fd, data[: len(data) // 2])
        fuse.reach("half written")
        whole(fd, data[len(data) // 2 :])

    _in_force.append(fuse)
    files.write_all = torn
    try:
        yield
    finally:
        files.write_all = whole
        _in_force.remove(fuse)


async def strike_all(
    root: Path, strike: Strike, stride: int, strike_at: Callable[[Path, Fuse], Awaitable[None]]
) -> int:
    """Until one run of `strike_at` ends without being struck; returns how many points there are."""
    for at in range(0, 10_000, stride):
        fuse = Fuse(at, strike)
        try:
            await strike_at(root / str(at), fuse)
        except Exception as error:
            error.add_note(f"struck at point {at}: {fuse.struck}")
            raise
        if not fuse.struck:
            return fuse.reached
        shutil.rmtree(root / str(at))
    raise AssertionError("it never survives")


class StruckCoordination(MemoryCoordination):
    """Coordination with a point before and after each call that the code under test makes."""

    def __init__(self, store: MemoryStore, fuse: Fuse) -> None:
        super().__init__(store)
        self._fuse = fuse

    async def list(self, prefix: str) -> Listing:
        self._fuse.reach(f"before list {prefix}", CoordinationUnreachable)
        return await super().list(prefix)

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        self._fuse.reach("before txn", CoordinationUnreachable)
        result = await super().txn(compares, then, otherwise)
        self._fuse.reach("after txn", CoordinationUnreachable)
        return result


class HdfsLike(MemoryCheckpointStore):
    """In memory, with what a crash leaves in HDFS: unfinished files, which no listing shows."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self._parts = 0

    def strike_by(self, fuse: Fuse) -> None:
        async def hook(operation: str, path: str, moment: Moment) -> None:
            fuse.reach(f"{moment.value} {operation} {path}", StoreUnreachable)

        self.hook = hook

    async def list(self, path: str) -> StoredDirectory:
        found = await super().list(path)
        shown = tuple(
            file for file in found.files if not file.path.rpartition("/")[2].startswith(PART_PREFIX)
        )
        return StoredDirectory(shown, found.directories)

    async def _create(self, operation: str, path: str, data: bytes) -> None:
        parts = split_path(path)
        await self._ready(operation, path)
        self._parts += 1
        part = "/".join((*parts[:-1], f"{PART_PREFIX}{self._parts:016x}"))
        if self._taken(path):
            raise Conflict(f"{path} exists already")
        self.disk.files[part] = data[: len(data) // 2]
        try:
            await self.hook(operation, path, Moment.HALF)
        except asyncio.CancelledError:
            del self.disk.files[part]
            raise
        except StoreUnreachable:
            del self.disk.files[part]
            raise
        del self.disk.files[part]
        self.disk.files[path] = data
        await self.hook(operation, path, Moment.AFTER)
