"""The saver's agent dies at every effect on the store while it takes and commits: nothing is lost or bad.

The mount and the program live on; the next agent finds what was begun by its links.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from recovery.mount.backend import Backend, Entry, Reader, Writer
from recovery.mount.base import stage_live
from recovery.mount.commit import MountedCommitter
from recovery.mount.live import LiveDirectory
from recovery.mount.take import MountedGeneration, MountedWatcher
from recovery.outbox import SavingJob, TakenCheckpoint
from recovery.verify import verify_files
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord
from supervisor.contract.errors import StoreUnreachable
from tests.checkpoints.world import JOB, QUIET_MS, UUID, Crash, contents
from tests.mount.test_take import Saving, save, shown
from tests.mount.world import Site

T = TypeVar("T")
Call = Callable[[str, Callable[[], Awaitable[None]]], Awaitable[None]]


class PointedWriter:
    def __init__(self, inner: Writer, call: Call) -> None:
        self.inner = inner
        self.call = call

    async def copy(self, read: Callable[[], bytes]) -> None:
        await self.call("copy", lambda: self.inner.copy(read))

    async def close(self) -> None:
        await self.call("close", self.inner.close)

    async def abandon(self) -> None:
        await self.inner.abandon()


class PointedBackend:
    """Fails before or after the `strike`-th effect, and from then on at every one: its process is dead."""

    def __init__(self, inner: Backend, strike: int, kind: type[BaseException]) -> None:
        self.inner = inner
        self.left = strike
        self.kind = kind
        self.effects = 0

    def _at(self, point: str) -> None:
        self.effects += 1
        self.left -= 1
        if self.left < 0:
            raise self.kind(point)

    async def _call(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        self._at(f"before {name}")
        result = await work()
        self._at(f"after {name}")
        return result

    async def info(self, path: str) -> Entry | None:
        return await self.inner.info(path)

    async def list(self, path: str) -> tuple[Entry, ...]:
        return await self.inner.list(path)

    async def open(self, path: str) -> Reader:
        return await self.inner.open(path)

    async def mkdirs(self, path: str) -> None:
        await self._call("mkdirs", lambda: self.inner.mkdirs(path))

    async def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        await self._call("rename", lambda: self.inner.rename(source, target, overwrite=overwrite))

    async def delete(self, path: str, *, recursive: bool) -> bool:
        return await self._call("delete", lambda: self.inner.delete(path, recursive=recursive))

    async def create(self, path: str) -> Writer:
        return PointedWriter(await self._call("create", lambda: self.inner.create(path)), self._call)

    async def append(self, path: str) -> Writer:
        return PointedWriter(await self._call("append", lambda: self.inner.append(path)), self._call)

    async def close(self) -> None:
        await self.inner.close()


async def take_and_commit(saving: Saving, backend: Backend) -> bool:
    """One life of an agent; whether it came to the end."""
    world = saving.world
    what = MountedGeneration(LiveDirectory(backend, saving.what.live.root), saving.what.directory, 1, None)
    watcher = MountedWatcher(what, SavingJob(UUID, JOB, "n1", "i1"), world.clock, world.next_id)
    taken = await saving.take(watcher)
    assert isinstance(taken, TakenCheckpoint)
    identity = await world.register()
    committer = MountedCommitter(backend, world.store, world.coordination, world.clock)
    await committer.commit(taken, identity, world.next_id(), QUIET_MS)
    return True


@pytest.mark.parametrize("kind", [Crash, StoreUnreachable])
async def test_at_every_effect(local: Site, kind: type[BaseException]) -> None:
    await stage_live(local.store(), local.live(), None)
    store = Path(local.uri.removeprefix("file://"))
    strike, effects = 0, 0
    with local.mounted() as directory:
        saving = Saving(local, directory)
        await saving.world.put_switch(1)
        while strike <= effects:
            ref = CheckpointRef(1, strike + 1)
            await asyncio.to_thread(save, directory, ref)
            before = await asyncio.to_thread(shown, directory)
            backend = PointedBackend(local.live().backend, strike, kind)
            with suppress(Crash, StoreUnreachable):
                await take_and_commit(saving, backend)
            effects = max(effects, backend.effects)
            # Whatever happened, programs go on seeing what they saved.
            assert await asyncio.to_thread(shown, directory) == before, strike
            for record in await saving.world.records():
                assert_whole(store, record)
            await take_and_commit(saving, local.live().backend)
            (record,) = (each for each in await saving.world.records() if each.ref == ref)
            assert_whole(store, record)
            assert await asyncio.to_thread(shown, directory) == before, strike
            for name in contents(ref):
                await asyncio.to_thread((directory / name).unlink)
            strike += 1
    assert effects > 20


def assert_whole(store: Path, record: CommitRecord) -> None:
    files = contents(record.ref)
    verified = verify_files(store / record.path, f"model.ckpt-{record.ref.step}", sorted(files))
    assert {file.name: file.size for file in verified.files} == {
        name: len(data) for name, data in files.items()
    }
