"""A node's part as a whole: a full disk, what stays of a job that has ended, what is forgotten."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.checkpoints.keeper import NodeCheckpoints
from agent.core.instructions import Commit, FollowCommits, Stage
from recovery.commit.follow import mark_saver
from recovery.commit.outbox import outbox_directory
from recovery.families.commit_rule import Committed
from recovery.stores.memory import MemoryCheckpointStore, Moment
from supervisor.contract import keys
from supervisor.contract.boundaries import ModifiedAt, Put
from supervisor.contract.checkpoint import CheckpointRef, CommitHead, Verify
from supervisor.contract.codec import encode
from supervisor.contract.desired import JobPhase, JobSwitch
from supervisor.contract.errors import NoRoom, OutOfSpace, StoreUnreachable, UserError
from supervisor.contract.ids import TaskId
from tests.checkpoints.moody_store import MoodyStore
from tests.checkpoints.world import JOB, UUID, World, contents, save, snapshot, staged_form
from tests.support.sinks import ListSink
from tests.support.waiting import until

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
REF = CheckpointRef(1, 10)
STAGE = Stage(JOB, UUID, "plan", 2, REF, "memory://")
DISK_BYTES = 256 << 10


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own."""
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def node_of(world: World, parent: Path) -> NodeCheckpoints:
    return NodeCheckpoints(
        "n1", parent, world.coordination, lambda _uri: world.store, world.clock, ListSink(), world.next_id
    )


def fill(directory: Path, left: int) -> None:
    """Until so many bytes are left."""
    with (directory / "filler").open("wb", buffering=0) as file:
        file.write(bytes(shutil.disk_usage(directory).free - left))


async def test_a_node_that_cannot_use_the_store_says_that_the_last_save_is_not_committed(
    world: World, tmp_path: Path
) -> None:
    def refuses(_uri: str) -> MemoryCheckpointStore:
        raise UserError("no such store")

    node = NodeCheckpoints(
        "n1", tmp_path, world.coordination, refuses, world.clock, ListSink(), world.next_id
    )
    commit = Commit(JOB, UUID, 1, None, "x://", TaskId(JOB, "worker", 0), (), Verify.CRC)
    node.commit(commit, lambda: ModifiedAt("", 1), "i1", lambda: 1)
    assert (await node.drain(UUID, 1, 1_000, clean=True)).startswith("the last save (")


async def test_a_base_that_does_not_fit_takes_the_place_of_copies(world: World, small: Path) -> None:
    await world.put_switch(1)
    identity = await world.register()
    assert isinstance(await world.commit(await world.take(REF), identity), Committed)
    node = node_of(world, small)
    copy = outbox_directory(small / "other", CheckpointRef(1, 7))
    copy.mkdir(parents=True)
    (copy / "data").write_bytes(bytes(64 << 10))
    await node._copies.committed("other", CheckpointRef(1, 7), 64 << 10)
    fill(small, 4096)
    await node.stage(STAGE)
    assert snapshot(Path(node.directory(UUID, 2))) == staged_form(REF)
    assert not copy.exists()
    assert node._staging == {}, "nobody stages any more"


async def test_a_full_disk_is_named_and_loses_nothing(world: World, small: Path) -> None:
    await world.put_switch(1)
    identity = await world.register()
    assert isinstance(await world.commit(await world.take(REF), identity), Committed)
    node = node_of(world, small)
    fill(small, 4096)
    with pytest.raises(NoRoom, match="No space left on device; free some space"):
        await node.stage(STAGE)
    assert node._staging == {}
    (small / "filler").unlink()
    await node.stage(STAGE)
    assert snapshot(Path(node.directory(UUID, 2))) == staged_form(REF)


async def test_no_room_in_the_store_for_a_jobs_directory_is_not_this_nodes(
    world: World, tmp_path: Path
) -> None:
    store = world.store
    assert isinstance(store, MemoryCheckpointStore)
    await world.put_switch(1)
    refused = OutOfSpace("mkdir: The NameSpace quota is exceeded")

    async def full(operation: str, _path: str, _moment: Moment) -> None:
        if operation == "prepare":
            raise refused

    store.hook = full
    with pytest.raises(OutOfSpace) as raised:
        await node_of(world, tmp_path).stage(replace(STAGE, base=None))
    assert raised.value is refused


@pytest.mark.parametrize(
    ("gives_up", "newest", "stays"),
    [
        (True, None, True),
        (True, CheckpointRef(1, 9), True),
        # The job has gone on elsewhere since, from an older one.
        (True, CheckpointRef(2, 9), False),
        (False, None, False),
    ],
)
async def test_of_a_job_that_has_ended_only_an_uncommitted_last_save_stays(
    world: World, tmp_path: Path, gives_up: bool, newest: CheckpointRef | None, stays: bool
) -> None:
    store = MoodyStore()
    await store.prepare()
    world.store = store
    store.error = StoreUnreachable("no answer") if gives_up else None
    await world.put_switch(1)
    identity = await world.register()
    node = node_of(world, tmp_path / "node")
    parent = tmp_path / "node" / UUID
    commit = Commit(JOB, UUID, 1, None, "memory://", TaskId(JOB, "worker", 0), (), Verify.CRC)
    held = await world.coordination.get(identity.compare.key)
    assert held is not None
    fence = ModifiedAt(held.key, held.mod_revision)
    node.commit(commit, lambda: fence, "i1", lambda: 1)
    save(parent, REF)
    await until(lambda: store.uploads > 0)
    await node.drain(UUID, 1, 1_000, clean=True)
    (beat,) = node.beats()
    assert beat.pending == (REF if gives_up else None)
    ended = JobSwitch(JOB, UUID, JobPhase.SUCCEEDED, 1)
    await world.coordination.txn((), [Put(keys.switch(JOB), encode(ended))])
    if newest is not None:
        await world.coordination.txn((), [Put(keys.head(JOB), encode(CommitHead(9, newest)))])
    node.stop_commit(UUID, 1)
    await node.clean(JOB, UUID, 1, ended=True)
    if stays:
        (kept,) = [path for path in parent.glob("*/*") if path.is_dir()]
        assert kept == outbox_directory(parent, REF)
        assert {path.name for path in kept.iterdir()} == {*contents(REF), "manifest.json"}
    else:
        assert not parent.exists()


@pytest.mark.parametrize(
    ("newest", "stays"),
    [(None, True), (CheckpointRef(1, REF.step - 1), True), (REF, False), (CheckpointRef(2, 0), False)],
)
async def test_of_what_another_life_took_only_a_save_newer_than_all_commits_stays(
    world: World, tmp_path: Path, newest: CheckpointRef | None, stays: bool
) -> None:
    """Its agent died before it could clean up, and the next one knows only what it finds."""
    world.parent = parent = tmp_path / "node" / UUID
    for name in ("g1/model.ckpt-1.index", ".outbox/.taking-1/half", ".bases/g1.json"):
        (parent / name).parent.mkdir(parents=True, exist_ok=True)
        (parent / name).write_text("")
    for ref in (CheckpointRef(1, 1), REF):
        await world.take(ref)
    ended = JobSwitch(JOB, UUID, JobPhase.SUCCEEDED, 1)
    await world.coordination.txn((), [Put(keys.switch(JOB), encode(ended))])
    if newest is not None:
        await world.coordination.txn((), [Put(keys.head(JOB), encode(CommitHead(9, newest)))])
    await node_of(world, tmp_path / "node").clean(JOB, UUID, 1, ended=True)
    left = {str(path.relative_to(parent)) for path in parent.glob("*/*")}
    assert left == ({f".outbox/{REF}"} if stays else set())


async def test_a_copy_that_is_not_whole_is_no_last_save(world: World, tmp_path: Path) -> None:
    world.parent = parent = tmp_path / "node" / UUID
    await world.take(REF)
    (outbox_directory(parent, REF) / "manifest.json").unlink()
    ended = JobSwitch(JOB, UUID, JobPhase.SUCCEEDED, 1)
    await world.coordination.txn((), [Put(keys.switch(JOB), encode(ended))])
    await node_of(world, tmp_path / "node").clean(JOB, UUID, 1, ended=True)
    assert not parent.exists()


@pytest.mark.parametrize(
    ("newest", "marked", "named"),
    [
        (None, "", True),
        (CheckpointRef(1, REF.step - 1), "", True),
        (REF, "", False),
        # The saver's node sees this directory.
        (None, "n2", False),
    ],
)
async def test_a_save_of_a_task_that_is_not_the_saver_is_named_and_kept_if_it_is_newer_than_all_commits(
    world: World, tmp_path: Path, newest: CheckpointRef | None, marked: str, named: bool
) -> None:
    node, parent = node_of(world, tmp_path / "node"), tmp_path / "node" / UUID
    commit = Commit(JOB, UUID, 1, None, "memory://", TaskId(JOB, "worker", 1), (), Verify.CRC)
    save(parent, CheckpointRef(1, 4))
    save(parent, REF)
    if newest is not None:
        await world.coordination.txn((), [Put(keys.head(JOB), encode(CommitHead(9, newest)))])
    if marked:
        mark_saver(parent, 1, marked)
    assert await node.look_aside(commit, "i1", 99, 5_000, clean=True) == (str(REF) if named else "")
    ended = JobSwitch(JOB, UUID, JobPhase.SUCCEEDED, 1)
    await world.coordination.txn((), [Put(keys.switch(JOB), encode(ended))])
    await node.clean(JOB, UUID, 1, ended=True)
    assert outbox_directory(parent, REF).exists() == named


@pytest.mark.parametrize("brings", [True, False])
async def test_files_of_a_commit_that_was_brought_here_are_no_save_of_its_own(
    world: World, tmp_path: Path, brings: bool
) -> None:
    """Only the reported step says how old a file without a number is."""
    node = node_of(world, tmp_path / "node")
    task = TaskId(JOB, "evaluator", 0)
    await world.coordination.txn((), [Put(keys.head(JOB), encode(CommitHead(9, REF)))])
    node.follow(FollowCommits(JOB, UUID, 1, None, "memory://", brings=brings))
    directory = Path(node.directory(UUID, 1))
    directory.mkdir(parents=True)
    (directory / "model.npy").write_bytes(b"0")
    commit = Commit(JOB, UUID, 1, None, "memory://", task, ("model.npy",), Verify.CRC)
    node.stop_following(UUID, 1)
    assert bool(await node.look_aside(commit, "i1", REF.step + 1, 5_000, clean=True)) != brings


async def test_what_jobs_have_left_here_is_found(world: World, tmp_path: Path) -> None:
    node = node_of(world, tmp_path / "tasks")
    assert await node.found() == frozenset()
    Path(node.directory(UUID, 2)).mkdir(parents=True)
    assert await node.found() == {UUID}
