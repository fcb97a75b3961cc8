"""A task's outputs are sent by an agent that crashes somewhere, and what must hold after each crash."""

from __future__ import annotations

import asyncio
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agent.outputs.directories import OWN, OWNER, OutputFiles
from agent.outputs.sender import NodeOutputs
from recovery.outputs.index import PIECES, OutputIndex, directory_of
from recovery.outputs.stored import read_index
from recovery.stores.local import LocalStore
from recovery.stores.memory import MemoryDisk
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.adapters.etcd.memory_store import MemoryStore
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.errors import StoreUnreachable, TfSupervisorError
from tests.checkpoints.crashes import Fuse, HdfsLike
from tests.checkpoints.world import Crash, InlineExecutor, PointedStore
from tests.outputs.task import FIRST, TASK, UUID
from tests.support.sinks import ListSink

BASE = directory_of(UUID, TASK.member)
BOUND_S = 20.0


@dataclass
class Site:
    """A node's disk, a store, and a program that writes; what is in memory ends with a life, these stay.

    Attributes:
        prepared: the agent has told that the task's directory is ready.
        grown: the program has written for the second time.
    """

    root: Path
    hdfs: bool
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    prepared: bool = False
    grown: bool = False

    def __post_init__(self) -> None:
        self.own.mkdir(parents=True)
        (self.own / "model").write_bytes(b"m" * 5000)
        # Opened now, as the fuse takes what is opened later for an effect of the agent.
        self._events = os.open(self.own / "events", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(self._events, b"1" * 1000)

    @property
    def own(self) -> Path:
        """The directory of the task."""
        return self.root / "node" / UUID / f"{OWN}{TASK.member}"

    @property
    def mark(self) -> Path:
        """Says whose directory that is."""
        return self.own.with_name(f"{OWNER}{TASK.member}")

    @property
    def written(self) -> dict[str, bytes]:
        """The files that the task has written."""
        return {"model": b"m" * 5000, "events": b"1" * 1000 + b"2" * 500 * self.grown}

    def grow(self) -> None:
        """The program writes for the second time, and ends."""
        if not self.grown:
            os.write(self._events, b"2" * 500)
            self.grown = True

    def close(self) -> None:
        """The program is gone."""
        os.close(self._events)

    def store(self, fuse: Fuse | None = None) -> CheckpointStore:
        """The store, as a life sees it that the fuse strikes."""
        if self.hdfs:
            found = HdfsLike(self.disk)
            if fuse is not None:
                found.strike_by(fuse)
            return found
        local = LocalStore(self.root / "store", InlineExecutor())
        if fuse is None:
            return local
        return PointedStore(local, lambda point: fuse.reach(point, StoreUnreachable))

    def node(self, fuse: Fuse | None) -> NodeOutputs:
        """A life of the agent."""
        made = NodeOutputs(
            OutputFiles("n1", self.root / "node", self.root / "notes"),
            MemoryCoordination(MemoryStore()),
            lambda _uri: self.store(fuse),
            BootClock(),
            ListSink(),
            lambda: uuid.uuid4().hex,
        )
        made.send_s = 0.01
        return made

    async def index(self) -> OutputIndex | None:
        """The index in the store."""
        return await read_index(self.store(), BASE)

    async def stored(self) -> dict[str, bytes]:
        """The files that the index names, as their pieces give them."""
        index, store = await self.index(), self.store()
        found = {}
        for path, file in index.files.items() if index is not None else ():
            pieces = [await store.read_bytes(f"{BASE}/{PIECES}/{each.name}", 1 << 20) for each in file.pieces]
            found[path] = b"".join(pieces)
        return found


async def life(site: Site, fuse: Fuse | None = None) -> None:
    """An agent prepares the task's directory, sends what is in it, and removes it at the job's end."""
    node = site.node(fuse)
    try:
        await node.run(lambda: [FIRST.attempt])
        if not site.prepared:
            await node.prepare(FIRST)
            site.prepared = True
        async with asyncio.timeout(BOUND_S):
            while not site.grown and not await site.stored():
                node.check()
                await asyncio.sleep(0.005)
            site.grow()
            node.over(FIRST.attempt)
            node.job_ended(UUID)
            while node._tasks:
                node.check()
                await asyncio.sleep(0.005)
    finally:
        with suppress(Crash):
            await node.close()


async def check_promises(site: Site) -> None:
    """After any crash, the bytes that the task wrote are on the node or in the store."""
    stored = await site.stored()
    for path, data in site.written.items():
        here = site.own / path
        kept = here.read_bytes() if here.exists() else None
        assert data in (kept, stored.get(path)), f"{path} is nowhere as it was written"


async def check_leftovers(site: Site) -> None:
    """In the end there is what should be, and nothing else."""
    index = await site.index()
    assert index is not None
    assert not index.writing
    assert await site.stored() == site.written
    # One that could not be marked as this node's is removed with the job's directory, after it was named.
    assert not site.own.exists() or not site.mark.exists()
    assert list((site.root / "notes").rglob("*.*")) == []
    pieces = {file.path for file in (await site.store().list(f"{BASE}/{PIECES}")).files}
    assert pieces == {f"{BASE}/{PIECES}/{each.name}" for file in index.files.values() for each in file.pieces}


async def strike_at(root: Path, fuse: Fuse, *, hdfs: bool) -> None:
    """One life that the fuse strikes, and another."""
    site = Site(root, hdfs)
    try:
        await site.store().prepare()
        with suppress(Crash, asyncio.CancelledError, TfSupervisorError):
            await fuse.run(life(site, fuse))
        await check_promises(site)
        await life(site)
        await check_promises(site)
        await check_leftovers(site)
    finally:
        site.close()
