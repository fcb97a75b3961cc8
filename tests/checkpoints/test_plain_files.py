"""Saves that are not TensorFlow's own: noticed, copied whole or not at all, committed, and staged again."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from chaos.bundles import bundle, plain
from recovery.commit.outbox import SavingJob, TakenCheckpoint, generation_directory
from recovery.commit.plain_outbox import PlainWatcher, is_being_written, take_plain
from recovery.commit.sight import mark_by
from recovery.families.commit_rule import Committed
from recovery.families.plain_files import Save, gather
from recovery.families.watch_rule import FileMark, Idle, Unfinished, Unusable
from recovery.formats.manifest import Manifest, ManifestFile, encode_manifest, parse_manifest
from recovery.formats.soundness import HEAD_BYTES, TAIL_BYTES, is_whole
from recovery.formats.tf_files import render_state
from recovery.io import files
from supervisor.contract.boundaries import Moved
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import BadCheckpoint, UserError
from supervisor.contract.job.file_pattern import compile_pattern
from tests.checkpoints.world import JOB, NODE, QUIET_MS, UUID, World

BACKUP = ("backup/model.bin", "backup/meta.json")


def watcher(
    world: World, patterns: tuple[str, ...] = BACKUP, generation: int = 1, base: Manifest | None = None
) -> PlainWatcher:
    job = SavingJob(UUID, JOB, NODE, "i1")
    return PlainWatcher(world.parent, job, generation, base, patterns, world.clock, world.executor)


def write(world: World, name: str, data: bytes, generation: int = 1, at_ns: int | None = None) -> Path:
    path = generation_directory(world.parent, generation) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if at_ns is not None:
        os.utime(path, ns=(at_ns, at_ns))
    return path


async def settled(found: PlainWatcher, step: int = -1) -> object:
    """Two looks: the first sees something new."""
    await found.look(step)
    return await found.look(step)


def marks(**mtimes: int) -> list[FileMark]:
    return [FileMark(name.replace("__", "/").replace("_", "."), 1, at, 1) for name, at in mtimes.items()]


@pytest.mark.parametrize(
    ("pattern", "name", "step"),
    [
        ("a/b.h5", "a/b.h5", ""),
        ("a/*.h5", "a/b.h5", ""),
        ("a/*.h5", "a/b/c.h5", None),
        ("*.h5", "a/b.h5", None),
        ("m-{step}.keras", "m-0042.keras", "0042"),
        ("m-{step}.keras", "m-x.keras", None),
        ("m.keras", "mxkeras", None),
        ("m{1}?.h5", "m{1}a.h5", ""),
    ],
)
def test_patterns(pattern: str, name: str, step: str | None) -> None:
    match = compile_pattern(pattern).fullmatch(name)
    assert (match and "".join(match.groups())) == step


@pytest.mark.parametrize("pattern", ["", "/a", "a//b", "../a", "a/**/b", "{step}-{step}", "a/" * 9 + "b"])
def test_patterns_that_can_name_no_file_are_refused(pattern: str) -> None:
    with pytest.raises(UserError):
        compile_pattern(pattern)


def test_a_save_is_whole_when_no_file_is_older_than_those_before_it() -> None:
    assert gather(BACKUP, marks(backup__model_bin=5)) is None
    assert gather(BACKUP, marks(backup__model_bin=5, backup__meta_json=4)) is None
    assert gather(BACKUP, marks(backup__model_bin=5, backup__meta_json=5, other=9)) is not None


def test_the_newest_step_that_is_complete_is_the_save() -> None:
    found = gather(
        ("m-{step}.h5", "m-{step}.json"),
        [
            FileMark(name, 1, at, 1)
            for name, at in [("m-2.h5", 1), ("m-2.json", 2), ("m-10.h5", 3), ("m-10.json", 4), ("m-11.h5", 5)]
        ],
    )
    assert isinstance(found, Save)
    assert (found.step, [mark.name for mark in found.marks]) == (10, ["m-10.h5", "m-10.json"])


@pytest.mark.parametrize("patterns", [("run/ckpt-*",), ("run/ckpt-*", "run/checkpoint"), ("checkpoint",)])
async def test_state_files_are_kept_beside_what_patterns_name(
    world: World, patterns: tuple[str, ...]
) -> None:
    """They name what they did, by paths that are right in the directory of the next generation."""
    directory = generation_directory(world.parent, 1)
    inside = "" if patterns == ("checkpoint",) else "run"
    if not inside:
        patterns = ("ckpt-*", *patterns)
    for name, data in bundle("ckpt-7", [{b"w": plain(4, [1], b"w")}]).items():
        write(world, f"{inside}/{name}".lstrip("/"), data)
    write(world, f"{inside}/checkpoint".lstrip("/"), render_state(f"{directory / inside}/ckpt-7"))
    found = watcher(world, patterns=patterns)
    taken = await found.look(5, final=True)
    assert isinstance(taken, TakenCheckpoint), "killed, and whole: its tensors are verified"
    names = {file.name for file in taken.manifest.files}
    state = f"{inside}/checkpoint".lstrip("/")
    assert state in names
    assert (taken.directory / state).read_bytes() == render_state("ckpt-7")
    assert taken.manifest.version == (1 if inside else 2)
    await world.put_switch(1)
    outcome = await world.commit(taken, await world.register())
    assert isinstance(outcome, Committed)
    staged = await world.stager().stage_base(outcome.record, 2, "x", QUIET_MS, fresh=True)
    assert (staged.directory / state).read_bytes() == render_state("ckpt-7")
    assert await watcher(world, patterns=patterns).look(5, final=True) == taken, "a new life knows it"
    assert isinstance(await watcher(world, patterns, 2, staged.base).look(5, final=True), Idle)


async def test_a_save_is_taken_once_with_the_step_that_was_reported(world: World) -> None:
    found = watcher(world)
    write(world, "backup/model.bin", b"weights", at_ns=1)
    write(world, "backup/meta.json", b"{}", at_ns=2)
    assert isinstance(await found.look(20), Unfinished)
    taken = await found.look(25)
    assert isinstance(taken, TakenCheckpoint)
    assert taken.manifest.ref == CheckpointRef(1, 20)
    assert [file.name for file in taken.manifest.files] == ["backup/meta.json", "backup/model.bin"]
    assert isinstance(await found.look(30), Idle)
    write(world, "backup/model.bin", b"newer weights", at_ns=3)
    assert isinstance(await settled(found, 40), Idle)
    write(world, "backup/meta.json", b"{}", at_ns=4)
    next_one = await settled(found, 20)
    assert isinstance(next_one, TakenCheckpoint)
    assert next_one.manifest.ref.step == 21


async def test_nothing_is_taken_while_a_file_is_open_for_writing(world: World) -> None:
    found = watcher(world)
    path = write(world, "backup/model.bin", b"half")
    write(world, "backup/meta.json", b"{}")
    with path.open("ab"):
        assert is_being_written(path.parent, path.name)
        for _ in range(3):
            assert isinstance(await found.look(1), Unfinished)
    assert not is_being_written(path.parent, path.name)
    assert isinstance(await found.look(1), TakenCheckpoint)


async def test_what_a_kill_left_is_taken_only_if_it_shows_that_it_is_whole(world: World) -> None:
    write(world, "backup/model.bin", b"who knows", at_ns=1)
    write(world, "backup/meta.json", b"{}", at_ns=2)
    killed = watcher(world)
    assert isinstance(await killed.look(7, final=True), Unusable)
    assert isinstance(await killed.look(7, final=True), Idle)
    exited = await watcher(world).look(7, final=True, clean=True)
    assert isinstance(exited, TakenCheckpoint)


async def test_a_torn_file_is_never_taken(world: World) -> None:
    for torn in (b'{"epoch": 3', b'{"epoch": [1, 2'):
        write(world, "state.json", torn)
        state = watcher(world, ("state.json",))
        assert isinstance(await settled(state), Unusable)
        assert isinstance(await state.look(1, final=True), Idle)
    found = watcher(world, ("model.keras",))
    for clean in (False, True):
        write(world, "model.keras", archive()[:-30])
        found = watcher(world, ("model.keras",))
        assert isinstance(await settled(found), Unusable)
        assert isinstance(await found.look(1, final=True, clean=clean), Idle)
    write(world, "model.keras", archive())
    assert isinstance(await found.look(1, final=True), TakenCheckpoint)


async def test_a_copy_that_was_overwritten_meanwhile_does_not_count(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(world, "m.bin", b"one")
    copy = files.copy_file

    def overwritten(source: Path, target: Path, moved: Moved, dir_fd: int) -> tuple[int, int]:
        copied = copy(source, target, moved=moved, dir_fd=dir_fd)
        path.write_bytes(b"two")
        return copied

    found = watcher(world, ("m.bin",))
    await found.look(1)
    with monkeypatch.context() as patch:
        patch.setattr(files, "copy_file", overwritten)
        assert isinstance(await found.look(1), Unfinished)
    taken = await settled(found)
    assert isinstance(taken, TakenCheckpoint)
    assert (taken.directory / "m.bin").read_bytes() == b"two"


def test_a_save_that_does_not_fit_fills_no_disk(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.mkdir()
    copy.mkdir()
    (source / "m.h5").touch()
    disk = os.statvfs(copy)
    whole = disk.f_blocks * disk.f_frsize
    for size, error, said in (
        (whole, OSError, os.strerror(errno.ENOSPC)),
        # For this one no copy of another job need go.
        (whole + 1, BadCheckpoint, "more than all of this node's disk"),
    ):
        os.truncate(source / "m.h5", size)
        seen = mark_by((source / "m.h5").lstat(), "m.h5")
        with pytest.raises(error, match=said):
            take_plain(source, copy, [seen], lambda _: None, trusting=True)
        assert not list(copy.iterdir())


async def test_a_link_in_the_place_of_a_directory_leads_nowhere(world: World, tmp_path: Path) -> None:
    """The agent that copies may be root, and may read what the program's user may not."""
    path, directory = write(world, "backup/model.bin", b"weights"), generation_directory(world.parent, 1)
    seen = mark_by(path.lstat(), "backup/model.bin")
    others, copy = tmp_path / "others", tmp_path / "copy"
    path.parent.rename(others)
    path.parent.symlink_to(others)
    copy.mkdir()
    with pytest.raises(OSError, match=os.strerror(errno.ENOTDIR)):
        take_plain(directory, copy, [seen], lambda _: None, trusting=True)
    with pytest.raises(OSError, match=os.strerror(errno.ENOTDIR)):
        is_being_written(directory, seen.name)
    assert not [each for each in copy.rglob("*") if each.is_file() and each.read_bytes()]
    assert isinstance(await settled(watcher(world, (seen.name,))), Idle)


async def test_committed_files_are_staged_under_their_names_and_not_taken_again(world: World) -> None:
    identity = await world.register()
    await world.put_switch(1)
    await world.store.prepare()
    write(world, "backup/model.bin", b"weights", at_ns=1)
    write(world, "backup/meta.json", b"{}", at_ns=2)
    taken = await settled(watcher(world), 30)
    assert isinstance(taken, TakenCheckpoint)
    done = await world.commit(taken, identity)
    assert isinstance(done, Committed)
    for parent in (world.parent, world.parent.with_name("another-node")):
        stager = world.stager(parent)
        staged = await stager.stage_base(done.record, 2, "o", QUIET_MS, fresh=True)
        names = {
            str(each.relative_to(staged.directory)) for each in staged.directory.rglob("*") if each.is_file()
        }
        assert names == set(BACKUP)
        assert (staged.directory / "backup/model.bin").read_bytes() == b"weights"
        assert (staged.directory / "backup/model.bin").stat().st_nlink == 1
        again = await stager.stage_base(done.record, 2, "p", QUIET_MS, fresh=True)
        assert again.directory.lstat().st_ino == staged.directory.lstat().st_ino
    found = watcher(world, generation=2, base=taken.manifest)
    assert isinstance(await settled(found, 35), Idle)
    write(world, "backup/model.bin", b"more", generation=2)
    assert isinstance(await settled(found, 40), Idle)
    write(world, "backup/meta.json", b"{}", generation=2)
    newer = await settled(found, 40)
    assert isinstance(newer, TakenCheckpoint)
    assert (newer.manifest.ref, newer.manifest.parent) == (CheckpointRef(2, 40), CheckpointRef(1, 30))
    # A restarted agent knows it from its own copy.
    assert isinstance(await settled(watcher(world, generation=2, base=taken.manifest), 50), Idle)


def test_a_manifest_of_plain_files_keeps_its_names_inside() -> None:
    def manifest(name: str) -> bytes:
        inside = (ManifestFile(name, 1, "00000000"),)
        return encode_manifest(Manifest(UUID, JOB, CheckpointRef(1, 2), None, NODE, "i1", "", 0, inside))

    assert parse_manifest(manifest("a/b.h5")).prefix == ""
    for name in ("../b", "/b", "a//b", "manifest.json", "checkpoint", "a/" * 8 + "b"):
        with pytest.raises(BadCheckpoint):
            parse_manifest(manifest(name))


def archive() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("config.json", "{}")
        file.writestr("model.weights.h5", b"x" * 5000)
    return data.getvalue()


def looks_whole(name: str, data: bytes) -> bool | None:
    return is_whole(name, len(data), data[:HEAD_BYTES], data[-TAIL_BYTES:])


def test_every_prefix_of_an_archive_is_torn() -> None:
    data = archive()
    assert looks_whole("m.keras", data) is True
    assert all(looks_whole("m.keras", data[:size]) is False for size in range(len(data)))
    assert looks_whole("m.zip", data + b"x") is False
    assert looks_whole("m.json", json.dumps({"epoch": 3}).encode()) is True
    assert looks_whole("m.json", b'{"epoch": 3') is False
    assert looks_whole("m.pickle", data) is None


OPENS = """
import sys
for _ in range(3000):
    open(sys.argv[1], "r+b").close()
"""

READS = """
import sys, h5py
with h5py.File(sys.argv[1]) as file:
    assert len(file["layers"]) == 8
"""

KERAS = """
import sys
import h5py, numpy
while True:
    with h5py.File(sys.argv[1], "w") as file:
        for layer in range(8):
            file.create_group(f"layers/dense_{layer}").create_dataset("0", data=numpy.ones(20_000))
    print("saved", flush=True)
"""


def test_to_ask_who_writes_harms_neither_side(tmp_path: Path) -> None:
    """A program that opens the file just then is let in, and the kernel's signal does not end the agent."""
    path = tmp_path / "file"
    path.touch()
    with subprocess.Popen([sys.executable, "-c", OPENS, str(path)]) as program:
        while program.poll() is None:
            is_being_written(path.parent, path.name)
    assert program.returncode == 0


def test_an_hdf5_file_that_a_kill_tore_is_seen_and_a_whole_one_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "latest.weights.h5"
    seen = set()
    for tries in range(12):
        with subprocess.Popen(
            [sys.executable, "-c", KERAS, str(path)], stdout=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout is not None
            for _ in range(tries + 1):
                program.stdout.readline()
            # Killed when the file is open and something of the next save is in it.
            while not is_being_written(path.parent, path.name):
                pass
            program.send_signal(signal.SIGKILL)
        whole = looks_whole(path.name, path.read_bytes())
        seen.add(whole)
        if whole:
            subprocess.run([sys.executable, "-c", READS, str(path)], check=True)
    assert False in seen


async def test_after_a_restart_of_the_agent_what_was_taken_is_found_again(world: World) -> None:
    """It may not have been committed. An older step that is still there hides nothing newer."""
    patterns = ("m-{step}.bin",)
    write(world, "m-10.bin", b"ten")
    assert isinstance(await settled(watcher(world, patterns)), TakenCheckpoint)
    again = await watcher(world, patterns).look(-1)
    assert isinstance(again, TakenCheckpoint)
    assert again.manifest.ref == CheckpointRef(1, 10)
    write(world, "m-20.bin", b"twenty")
    newest = await settled(watcher(world, patterns))
    assert isinstance(newest, TakenCheckpoint)
    assert newest.manifest.ref == CheckpointRef(1, 20)
