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

from recovery.commit.outbox import SavingJob, TakenCheckpoint
from recovery.commit.verify import verify_files
from recovery.formats.manifest import MANIFEST_FILE, parse_manifest
from recovery.mount.backends.backend import Backend, Entry, Reader, Writer
from recovery.mount.base import stage_live
from recovery.mount.commit import MountedCommitter
from recovery.mount.live import LiveDirectory
from recovery.mount.take import MountedGeneration, MountedWatcher
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord
from supervisor.contract.errors import StoreUnreachable
from tests.checkpoints.saves import below, put
from tests.checkpoints.world import JOB, QUIET_MS, UUID, Crash, contents
from tests.mount.saving import Saving, save
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

    def _at(self, point: str) -> None:
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

    async def probe(self, path: str) -> None:
        await self.inner.probe(path)

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
    steps = [record.ref.step for record in await world.records()]
    job = SavingJob(UUID, JOB, "n1", "i1")
    watcher = MountedWatcher(what, job, world.clock, world.next_id, max(steps, default=-1))
    taken = await saving.take(watcher)
    assert isinstance(taken, TakenCheckpoint)
    identity = await world.register()
    committer = MountedCommitter(backend, world.store, world.coordination, world.clock)
    await committer.commit(taken, identity, world.next_id(), QUIET_MS)
    return True


def save_beside(directory: Path, step: int) -> None:
    """Saves that are copied on, overwritten and joined: one of each kind beside `save`'s."""
    if step % 4 == 1:
        put(directory, "best/model", f"b{step}")
    put(directory, "mlp.ckpt", f"m{step}", state=False)


@pytest.mark.parametrize("kind", [Crash, StoreUnreachable])
async def test_at_every_effect(local: Site, kind: type[BaseException]) -> None:
    """Other families are taken, or carried on, together with the save that counts steps."""
    await stage_live(local.store(), local.live(), None)
    store = Path(local.uri.removeprefix("file://"))
    strike, struck = 0, True
    with local.mounted() as directory:
        saving = Saving(local, directory)
        await saving.world.put_switch(1)
        while struck:
            ref = CheckpointRef(1, strike + 1)
            if kind is Crash:
                save_beside(directory, ref.step)
            await asyncio.to_thread(save, directory, ref)
            before = below(directory)
            backend = PointedBackend(local.live().backend, strike, kind)
            with suppress(Crash, StoreUnreachable):
                await take_and_commit(saving, backend)
            struck = backend.left < 0
            # Whatever happened, programs go on seeing what they saved.
            assert below(directory) == before, strike
            for record in await saving.world.records():
                assert_whole(store, record)
            await take_and_commit(saving, local.live().backend)
            record = max(await saving.world.records(), key=lambda each: each.ref)
            assert record.ref.step >= ref.step
            assert_whole(store, record)
            stored = below(store / record.path)
            assert {name: stored[name] for name in before if "model.ckpt" in name} == contents(ref)
            assert {name for name in before if name not in stored} == set()
            assert below(directory) == before, strike
            for name in contents(ref):
                await asyncio.to_thread((directory / name).unlink)
            # A crash after one effect is as one before the next.
            strike += 2 if kind is Crash else 1
    assert strike > 20


def assert_whole(store: Path, record: CommitRecord) -> None:
    """All that its manifest names is there, and each tensor has its checksum."""
    directory = store / record.path
    manifest = parse_manifest((directory / MANIFEST_FILE).read_bytes())
    verified = verify_files(directory, "", [file.name for file in manifest.files])
    assert verified.files == manifest.files
    assert verified.tensors == manifest.tensors
