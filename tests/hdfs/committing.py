"""Saves, commits, restores and collects on real servers, in lives that are killed one after the other.

Arguments: etcd endpoint, checkpoint URI, directory. Each line on standard input begins a life, a fork of this
process: nothing has to be imported again. What a life has done it says in lines of standard output.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from chaos.bundles import bundle, plain
from recovery.commit.bundle_outbox import CheckpointWatcher
from recovery.commit.commit import Committer
from recovery.commit.outbox import SavingJob, TakenCheckpoint, generation_directory
from recovery.commit.stage import Stager
from recovery.families.commit_rule import CommitIdentity, Committed
from recovery.formats.tf_files import render_state
from recovery.retention.collect import (
    clean_store,
    delete_checkpoint,
    delete_uncommitted,
    read_staging,
    scan_store,
)
from recovery.stores.hdfs import HdfsStore
from recovery.stores.hdfs_client import HdfsClient
from recovery.stores.hdfs_sending import PARTED_BYTES
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.adapters.files.store_uri import parse_uri
from supervisor.contract import keys
from supervisor.contract.boundaries import CheckpointStore, Coordination, Delete, ModifiedAt, Put
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.codec import decode, encode
from supervisor.contract.desired import JobPhase, JobSwitch

JOB, UUID, NODE = "kills", "k" * 32, "n1"
QUIET_MS = 60_000
KEPT = 3
SIZE = 300_000
BLOCK_BYTES = 1 << 16
"""The block size that $HADOOP_CONF_DIR must set, so that a file of SIZE can go in parts."""
STAGED = 2


def contents(ref: CheckpointRef) -> dict[str, bytes]:
    """The files of a save of this step: two shards and an index."""
    body = f"{ref} ".encode() * (SIZE // len(f"{ref} "))
    weights = plain(4, [len(body)], body)
    return bundle(f"model.ckpt-{ref.step}", [{b"a": weights}, {b"b": weights}])


def save(directory: Path, ref: CheckpointRef) -> None:
    """As TensorFlow does: the state file comes last, by a rename; the save before the last one is removed."""
    for name, data in contents(ref).items():
        (directory / name).write_bytes(data)
    state = directory / "checkpoint.tmp"
    state.write_bytes(render_state(f"model.ckpt-{ref.step}"))
    state.rename(directory / "checkpoint")
    for path in directory.glob(f"model.ckpt-{ref.step - 2}.*"):
        path.unlink()


def connect(endpoint: str) -> Coordination:
    return EtcdCoordination([endpoint], "kills", rpc_deadline_ms=5000, silence_ms=10_000)


def store_of(uri: str, number: int) -> CheckpointStore:
    """Every other life sends its files in parts."""
    place = parse_uri(uri)
    parted_bytes = BLOCK_BYTES if number % 2 else PARTED_BYTES
    return HdfsStore(HdfsClient(place.authority), place.path, parted_bytes=parted_bytes)


async def records_of(etcd: Coordination) -> list[CommitRecord]:
    listing = await etcd.list(keys.commits_of(JOB))
    return [decode(CommitRecord, entry.value) for entry in listing.entries]


async def collect_oldest(etcd: Coordination, store: CheckpointStore) -> None:
    """As the leader does: what is collecting is deleted; of the others the oldest surplus one is marked."""
    records = await records_of(etcd)
    doomed = [record for record in records if record.state is CommitState.COLLECTING]
    committed = [record for record in records if record.state is CommitState.COMMITTED]
    if len(committed) > KEPT:
        doomed.append(replace(committed[0], state=CommitState.COLLECTING))
        say(f"collecting {committed[0].ref.step}")
        await etcd.txn((), [Put(keys.commit(JOB, committed[0].ref), encode(doomed[-1]))])
    for record in doomed:
        await delete_checkpoint(store, record)
        await etcd.txn((), [Delete(keys.commit(JOB, record.ref))])


async def sweep(etcd: Coordination, store: CheckpointStore) -> None:
    """As the leader does in the next generation, when all that is left over is old."""
    scan = await scan_store(store)
    records = await records_of(etcd)
    switch = JobSwitch(JOB, UUID, JobPhase.RUNNING, STAGED)
    await delete_uncommitted(store, scan, records, switch)
    await clean_store(store, [each.name for each in await read_staging(store, scan, switch)])


def remove_stale(parent: Path) -> None:
    """Remove the leftovers of interrupted work: this machine's disk is not under test here."""
    for stale in parent.glob(".st*"):
        if stale.is_dir():
            shutil.rmtree(stale)
        else:
            stale.unlink()


async def life(endpoint: str, uri: str, parent: Path, number: int) -> None:
    """Go on from what is there, until killed."""
    etcd, store, clock = connect(endpoint), store_of(uri, number), BootClock()
    result = await etcd.txn((), [Put(keys.node(NODE), str(number).encode())])
    identity = CommitIdentity(NODE, str(number), ModifiedAt(keys.node(NODE), result.revision))
    watcher = CheckpointWatcher(parent, SavingJob(UUID, JOB, NODE, str(number)), 1, None, clock)
    committer, stager = Committer(store, etcd, clock), Stager(store, parent / "elsewhere", clock)
    directory = generation_directory(parent, 1)
    step = max((record.ref.step for record in await records_of(etcd)), default=0)
    for turn in range(10**6):
        taken = await watcher.look(final=True)
        if isinstance(taken, TakenCheckpoint):
            committer.offer(taken)
        done = await committer.run_once(identity, f"{number}-{turn}", QUIET_MS)
        if isinstance(done, Committed):
            step = max(step, done.record.ref.step)
            say(f"committed {done.record.ref.step}")
            await stager.stage_base(done.record, STAGED, f"{number}-{turn}", QUIET_MS, fresh=True)
            remove_stale(parent / "elsewhere")
        await collect_oldest(etcd, store)
        step += 1
        await asyncio.to_thread(save, directory, CheckpointRef(1, step))


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main() -> None:
    endpoint, uri, parent = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    for number, _ in enumerate(sys.stdin):
        pid = os.fork()
        if pid == 0:
            asyncio.run(life(endpoint, uri, parent, number))
        say(f"pid {pid}")
        os.waitpid(pid, 0)
        say("dead")


if __name__ == "__main__":
    main()
