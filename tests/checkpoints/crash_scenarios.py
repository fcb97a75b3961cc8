"""Scenarios of commit, restore and collection that crash somewhere, and what must hold after each crash."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from recovery.commit.follow import Follower
from recovery.commit.outbox import SavingJob, TakenCheckpoint, generation_directory
from recovery.commit.plain_outbox import PlainWatcher
from recovery.commit.stage import clean_parent
from recovery.families.commit_rule import CommitIdentity, Committed
from recovery.formats.manifest import MANIFEST_FILE
from recovery.formats.tf_files import STATE_FILE
from recovery.retention.collect import (
    clean_store,
    delete_checkpoint,
    delete_uncommitted,
    read_staging,
    scan_store,
)
from recovery.stores.local import LocalStore
from recovery.stores.memory import MemoryDisk
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.contract import keys
from supervisor.contract.boundaries import CheckpointStore, Delete, Put
from supervisor.contract.checkpoint import CheckpointRef, CommitHead, CommitRecord, CommitState
from supervisor.contract.codec import encode
from supervisor.contract.desired import JobPhase, JobSwitch
from supervisor.contract.errors import StoreUnreachable, TfSupervisorError
from tests.checkpoints.crashes import Fuse, HdfsLike, StruckCoordination
from tests.checkpoints.world import (
    JOB,
    NODE,
    QUIET_MS,
    UUID,
    Crash,
    InlineExecutor,
    PointedStore,
    World,
    save,
    snapshot,
    staged_form,
)

OLD = (CheckpointRef(1, 10), CheckpointRef(1, 20))
NEW = CheckpointRef(1, 30)


@dataclass
class Site:
    """A node with its disk, a store and etcd; what is in memory ends with a life, these stay."""

    root: Path
    hdfs: bool
    etcd: MemoryStore = field(default_factory=MemoryStore)
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    lives: int = 0

    def life(self, fuse: Fuse | None = None) -> World:
        """A process on this node, which the fuse strikes."""
        self.lives += 1
        store: CheckpointStore
        if self.hdfs:
            store = HdfsLike(self.disk)
            if fuse is not None:
                store.strike_by(fuse)
        else:
            store = LocalStore(self.root / "store", InlineExecutor())
            if fuse is not None:
                store = PointedStore(store, lambda point: fuse.reach(point, StoreUnreachable))
        etcd = MemoryCoordination(self.etcd) if fuse is None else StruckCoordination(self.etcd, fuse)
        world = World(self.root / "parent", store, etcd)
        world.ids = self.lives * 1000
        return world

    def stored(self) -> set[str]:
        """Every file in the store, also those that no listing shows."""
        if self.hdfs:
            return set(self.disk.files)
        root = self.root / "store"
        found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        return {name for name in found if name != ".tfsup-store"}


Scenario = Callable[[World, CommitIdentity], Coroutine[object, object, None]]


async def commit_new(world: World, identity: CommitIdentity) -> None:
    """The saver's node takes what the program has saved, and commits it."""
    taken = await world.watcher(1).look(final=True)
    assert isinstance(taken, TakenCheckpoint)
    outcome = await world.commit(taken, identity)
    assert isinstance(outcome, Committed)


async def commit_plain(world: World, identity: CommitIdentity) -> None:
    """The same, of files that the program overwrites in place."""
    job = SavingJob(UUID, JOB, NODE, "i2")
    watcher = PlainWatcher(world.parent, job, 1, None, PATTERNS, world.clock, world.executor)
    taken = await watcher.look(NEW.step, final=True, clean=True)
    assert isinstance(taken, TakenCheckpoint)
    outcome = await world.commit(taken, identity)
    assert isinstance(outcome, Committed)


async def restore(world: World, _identity: CommitIdentity) -> None:
    """A node that has no copy stages the newest of the old ones over what a plan that lost has left."""
    record = await record_of(world, OLD[-1])
    await world.stager().stage_base(record, 2, world.next_id(), QUIET_MS, fresh=True)


async def follow(world: World, _identity: CommitIdentity) -> None:
    """An evaluator's node brings it in."""
    record = await record_of(world, OLD[-1])
    await Follower(world.stager(), world.parent, 3).bring(record, world.next_id(), QUIET_MS)


async def collect(world: World, _identity: CommitIdentity) -> None:
    """The leader marks the oldest, deletes its files, then its record; and sweeps the store."""
    for record in await world.records():
        if record.ref != OLD[0]:
            continue
        key = keys.commit(JOB, record.ref)
        doomed = replace(record, state=CommitState.COLLECTING)
        if record.state is CommitState.COMMITTED:
            head = Put(keys.head(JOB), encode(CommitHead(99, OLD[-1])))
            await world.coordination.txn((), (Put(key, encode(doomed)), head))
        await delete_checkpoint(world.store, doomed)
        await world.coordination.txn((), (Delete(key),))
    await sweep(world)


async def sweep(world: World) -> None:
    """As the leader does when generation 2 is in force, and all else is old."""
    scan = await scan_store(world.store)
    switch = JobSwitch(JOB, UUID, JobPhase.RUNNING, 2)
    await delete_uncommitted(world.store, scan, await world.records(), switch)
    await clean_store(world.store, [s.name for s in await read_staging(world.store, scan, switch)])


async def record_of(world: World, ref: CheckpointRef) -> CommitRecord:
    return next(record for record in await world.records() if record.ref == ref)


SCENARIOS: dict[str, Scenario] = {
    "commit": commit_new,
    "commit-plain": commit_plain,
    "restore": restore,
    "restore-own": restore,
    "follow": follow,
    "collect": collect,
}
PATTERNS = ("weights-{step}.bin", "done-{step}.txt")
PLAIN = {"weights-30.bin": b"weights" * 999, "done-30.txt": b"done"}


async def prepared(site: Site, scenario: str) -> None:
    """Two committed checkpoints, and what the scenario begins with."""
    world = site.life()
    await world.store.prepare()
    await world.put_switch(1)
    identity = await world.register()
    for ref in OLD:
        assert isinstance(await world.commit(await world.take(ref), identity), Committed)
    if scenario == "commit":
        save(world.parent, NEW)
        return
    if scenario == "commit-plain":
        for name, data in PLAIN.items():
            (generation_directory(world.parent, 1) / name).write_bytes(data)
        return
    if scenario != "restore-own":
        shutil.rmtree(world.parent / ".outbox")
    if scenario == "collect":
        await world.store.write_bytes(".staging/g00001-s0000000006.left/f", b"left")
        await world.store.write_bytes("g00001-s0000000005.left/f", b"left, and no manifest says what it is")
        shutil.rmtree(generation_directory(world.parent, 1))
    else:
        left = generation_directory(world.parent, 2)
        left.mkdir()
        (left / "junk").write_bytes(b"")
        generation_directory(world.parent, 3).mkdir()


def restored_form(scenario: str, ref: CheckpointRef) -> dict[str, bytes]:
    return PLAIN if (scenario, ref) == ("commit-plain", NEW) else staged_form(ref)


async def check_promises(site: Site, scenario: str) -> None:
    """After any crash a committed checkpoint can be restored, as it was saved, on any machine."""
    world = site.life()
    found = {}
    for record in await world.records():
        if record.state is CommitState.COMMITTED:
            parent = site.root / f"machine-{world.next_id()}"
            staged = await world.stager(parent).stage_base(record, 9, "x", QUIET_MS, fresh=True)
            found[record.ref] = snapshot(staged.directory)
    assert found == {ref: restored_form(scenario, ref) for ref in found}, "one that can be restored is bad"
    safe = set(OLD) if scenario != "collect" else {OLD[-1]}
    assert safe <= set(found), "one that was committed is lost"
    based = generation_directory(world.parent, 2)
    if scenario.startswith("restore") and based.exists():
        assert snapshot(based) in ({"junk": b""}, staged_form(OLD[-1])), "half a base is in place"
    state = generation_directory(world.parent, 3) / STATE_FILE
    if scenario == "follow" and state.exists():
        assert snapshot(state.parent) == staged_form(OLD[-1]), "what is named is not there"


async def check_leftovers(site: Site, scenario: str) -> None:
    """In the end there is what should be, and nothing else."""
    world = site.life()
    await sweep(world)
    records = await world.records()
    expected = {*OLD, NEW} if scenario.startswith("commit") else set(OLD[scenario == "collect" :])
    assert {record.ref for record in records} == expected
    head = await world.head()
    assert head is not None
    assert head.newest == max(expected)
    named = {
        f"{record.path}/{name}"
        for record in records
        for name in (*restored_form(scenario, record.ref), MANIFEST_FILE)
    }
    junk = {"g00001-s0000000005.left/f"} if scenario == "collect" else set()
    assert site.stored() - junk == named
    brought = {"restore": 2, "restore-own": 2, "follow": 3}.get(scenario)
    if brought is not None:
        assert snapshot(generation_directory(world.parent, brought)) == staged_form(OLD[-1])
    for entry in (*world.parent.glob(".st*"), *(world.parent / ".outbox").glob(".taking-*")):
        os.utime(entry, (0, 0))
    for entry in (world.parent / ".bases").glob("*"):
        os.utime(entry, (0, 0))
    clean_parent(world.parent, [2, 3])
    kept = {str(path.relative_to(world.parent)) for path in world.parent.glob("*/*")}
    assert {name for name in kept if not name.startswith(("g2/", "g3/"))} == KEPT[scenario]


KEPT = {
    "commit": {f".outbox/{ref}" for ref in (*OLD, NEW)},
    "commit-plain": {f".outbox/{ref}" for ref in (*OLD, NEW)},
    "restore": {".bases/g2.json"},
    "restore-own": {".bases/g2.json", *(f".outbox/{ref}" for ref in OLD)},
    "follow": set(),
    "collect": set(),
}


async def strike_at(root: Path, scenario: str, fuse: Fuse, *, hdfs: bool) -> None:
    site = Site(root, hdfs)
    await prepared(site, scenario)
    identity = await site.life().register("i2")
    with suppress(Crash, asyncio.CancelledError, TfSupervisorError):
        await fuse.run(SCENARIOS[scenario](site.life(fuse), identity))
    await check_promises(site, scenario)
    again = site.life()
    await SCENARIOS[scenario](again, await again.register("i3"))
    await check_promises(site, scenario)
    await check_leftovers(site, scenario)
