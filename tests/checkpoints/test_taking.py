"""Rule 7: what is taken of what TensorFlow saves, and when."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from recovery.commit.bundle_outbox import CheckpointWatcher
from recovery.commit.outbox import SavingJob, TakenCheckpoint, generation_directory, read_taken
from recovery.commit.parts import take_files
from recovery.commit.sight import Eyes
from recovery.families.commit_rule import Committed
from recovery.families.families import Family, saves_in
from recovery.families.watch_rule import META_PATIENCE_LOOKS, Idle, Unfinished, Unusable
from recovery.formats.tf_files import MAX_STATE_BYTES, render_state
from recovery.io import files
from supervisor.contract.checkpoint import CheckpointRef, Verify
from tests.checkpoints.world import (
    JOB,
    NODE,
    UUID,
    World,
    contents,
    save,
    snapshot,
)

REF = CheckpointRef(1, 120)


async def test_a_save_is_taken_after_two_equal_looks(world: World) -> None:
    watcher = world.watcher(1)
    assert isinstance(await watcher.look(), Idle)
    save(world.parent, REF)
    assert isinstance(await watcher.look(), Unfinished)
    taken = await watcher.look()
    assert isinstance(taken, TakenCheckpoint)
    assert taken.manifest.ref == REF
    assert taken.manifest.parent is None
    assert {file.name: file.size for file in taken.manifest.files} == {
        name: len(data) for name, data in contents(REF).items()
    }
    assert read_taken(taken.directory) == taken
    assert isinstance(await watcher.look(), Idle)
    assert isinstance(await world.watcher(1).look(final=True), TakenCheckpoint), (
        "a restarted agent finds it again"
    )


async def test_what_is_taken_is_out_of_the_programs_reach(world: World) -> None:
    taken = await world.take(REF)
    directory = generation_directory(world.parent, 1)
    for name in contents(REF):
        if ".data-" in name:
            (directory / name).unlink()
        else:
            (directory / name).write_bytes(b"overwritten in place")
    kept = {name: data for name, data in snapshot(taken.directory).items() if name != "manifest.json"}
    assert kept == contents(REF)


@pytest.mark.parametrize("spoil", ["gone", "replaced", "touched"])
def test_a_save_that_changes_or_goes_while_it_is_taken(tmp_path: Path, spoil: str) -> None:
    save(tmp_path, REF)
    directory = generation_directory(tmp_path, 1)
    target = tmp_path / "target"
    target.mkdir()
    finished = saves_in(Eyes(directory).look())[Family("", "model.ckpt")].newest
    assert finished is not None
    data = directory / "model.ckpt-120.data-00000-of-00001"
    if spoil == "gone":
        data.unlink()
    elif spoil == "replaced":
        data.write_bytes(b"other")
    else:
        os.utime(data, ns=(1, 1))
    assert not take_files(directory, target, finished)


async def test_the_base_itself_is_not_committed_again(world: World) -> None:
    base = (await world.take(REF)).manifest
    for name, data in contents(REF).items():
        target = generation_directory(world.parent, 2)
        target.mkdir(exist_ok=True)
        (target / name).write_bytes(data)
    (generation_directory(world.parent, 2) / "checkpoint").write_bytes(render_state(base.prefix))
    assert isinstance(await world.watcher(2, base).look(final=True), Idle)
    for name, data in contents(REF, "other").items():
        (generation_directory(world.parent, 2) / name).write_bytes(data)
    again = await world.watcher(2, base).look(final=True)
    assert isinstance(again, TakenCheckpoint), "the same step with other tensors is a new checkpoint"
    assert (again.manifest.ref, again.manifest.parent) == (CheckpointRef(2, 120), REF)


@pytest.mark.parametrize("name", ["model.ckpt-120.data-00000-of-00001", "model.ckpt-120.index"])
async def test_what_does_not_verify_is_never_taken(world: World, name: str) -> None:
    """Said once, and looked at again only when a file of it has changed."""
    save(world.parent, REF)
    path = generation_directory(world.parent, 1) / name
    data = path.read_bytes()
    path.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    (path.parent / "checkpoint").touch()
    watcher = world.watcher(1)
    assert isinstance(await watcher.look(), Unfinished)
    seen = [await watcher.look() for _ in range(META_PATIENCE_LOOKS + 5)]
    (found,) = (each for each in seen if isinstance(each, Unusable))
    assert "model.ckpt-120" in found.reason
    assert isinstance(await watcher.look(), Idle)
    path.write_bytes(data)
    (path.parent / "checkpoint").touch()
    assert isinstance(await watcher.look(), Unfinished)
    assert isinstance(await watcher.look(), TakenCheckpoint)


async def test_a_manifest_says_how_many_tensors_were_verified(world: World) -> None:
    await world.put_switch(1)
    outcome = await world.commit(await world.take(REF), await world.register())
    assert isinstance(outcome, Committed)
    assert (outcome.record.tensors, outcome.record.verified) == (1, Verify.READBACK)


async def test_tensorflow_finds_it_where_it_is_stored(world: World) -> None:
    """The state file beside the manifest names the checkpoint relative to its own directory."""
    await world.put_switch(1)
    outcome = await world.commit(await world.take(REF), await world.register())
    assert isinstance(outcome, Committed)
    state = await world.store.read_bytes(f"{outcome.record.path}/checkpoint", 1000)
    assert state == render_state("model.ckpt-120")


async def test_what_cannot_be_committed_is_said_once(world: World) -> None:
    directory = generation_directory(world.parent, 1)
    directory.mkdir(parents=True)
    watcher = world.watcher(1)
    (directory / "checkpoint").write_bytes(render_state("/somewhere/else/model.ckpt-1"))
    first = await watcher.look()
    assert isinstance(first, Unusable)
    assert first.prefix == "/somewhere/else/model.ckpt-1"
    assert isinstance(await watcher.look(), Idle)


async def test_absolute_paths_through_a_symbolic_link(world: World, tmp_path: Path) -> None:
    save(world.parent, REF)
    (tmp_path / "link").symlink_to(world.parent)
    state = generation_directory(world.parent, 1) / "checkpoint"
    state.write_bytes(render_state(f"{world.parent}/g1/model.ckpt-120"))
    through = World(tmp_path / "link", world.store, world.coordination)
    assert isinstance(await through.watcher(1).look(final=True), TakenCheckpoint)


def test_looking_where_something_else_is_leaks_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "checkpoint").write_bytes(bytes(MAX_STATE_BYTES + 1))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        assert Eyes(tmp_path).look().states == {}
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_a_large_file_that_is_called_checkpoint_stops_no_commit(world: World) -> None:
    save(world.parent, REF)
    other = generation_directory(world.parent, 1) / "torch" / "checkpoint"
    other.parent.mkdir()
    other.write_bytes(bytes(MAX_STATE_BYTES + 1))
    seen = await world.watcher(1).look(final=True)
    assert isinstance(seen, TakenCheckpoint)
    assert seen.manifest.ref == REF


async def test_a_state_file_that_lists_thousands_of_saves_names_the_newest(world: World) -> None:
    save(world.parent, REF)
    state = generation_directory(world.parent, 1) / "checkpoint"
    with state.open("ab") as file:
        file.write(b'all_model_checkpoint_paths: "model.ckpt-1"\n' * (MAX_STATE_BYTES // 40))
    assert state.stat().st_size > MAX_STATE_BYTES
    seen = await world.watcher(1).look(final=True)
    assert isinstance(seen, TakenCheckpoint)
    assert seen.manifest.version == 1, "one save and a state file that names it"


async def test_a_state_file_without_a_right_to_read_it_is_told_and_stops_no_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(world.parent, REF)

    def refuse(name: str, *_: object) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", name)

    monkeypatch.setattr(files, "read_head", refuse)
    sight = Eyes(generation_directory(world.parent, 1)).look()
    assert len(sight.marks) == len(contents(REF))
    assert "right to read" in sight.refused["checkpoint"]


async def test_the_version_of_tensorflow_is_the_one_that_runs_where_the_files_tell_none(world: World) -> None:
    save(world.parent, CheckpointRef(1, 5))
    job = SavingJob(UUID, JOB, NODE, "i1", lambda: "2.21.0")
    taken = await CheckpointWatcher(world.parent, job, 1, None, world.clock).look(final=True)
    assert isinstance(taken, TakenCheckpoint)
    assert taken.manifest.tf_version == "2.21.0"
