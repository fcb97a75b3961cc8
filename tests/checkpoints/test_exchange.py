"""Reading a stored checkpoint back, restoring one to somebody's directory, and importing one from there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.bundles import bundle, plain
from recovery.commit.exchange import (
    IMPORTED,
    Candidate,
    bring,
    building_directory,
    bytes_below,
    describe,
    find_candidate,
    restore_to,
)
from recovery.formats.manifest import MANIFEST_FILE, Manifest, crc32c_of_bytes, encode_manifest
from recovery.formats.paths import STAGING
from recovery.formats.tf_files import render_state
from recovery.retention.audit import audit, audit_files
from recovery.stores.local import LocalStore
from supervisor.adapters.clock import BootClock
from supervisor.contract.boundaries import CheckpointStore, Moved, StoredFile, unwatched
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord
from supervisor.contract.errors import BadCheckpoint, Conflict, Refused, StoreUnreachable, UserError
from supervisor.contract.views.checkpoints import ImportPlace
from tests.checkpoints.world import InlineExecutor, PointedStore

REF = CheckpointRef(3, 400)
PLACE = ImportPlace("digits", "u" * 32, "file:///c", REF)
PREFIX = "model.ckpt-400"
TENSORS = {b"a": plain(1, [100], b"abcd" * 100), b"b": plain(1, [2], b"12345678")}


def saved(directory: Path, prefix: str = PREFIX) -> dict[str, bytes]:
    """A bundle with two shards, as TensorFlow would have it."""
    directory.mkdir(parents=True, exist_ok=True)
    files = bundle(prefix, [{key: value} for key, value in TENSORS.items()])
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return files


async def imported(store: CheckpointStore, directory: Path) -> CommitRecord:
    """An import that is in the store, and the record that it would get."""
    saved(directory)
    manifest = describe(find_candidate(directory, "", (), None), PLACE, "host", 5, unwatched)
    path = await bring(store, Candidate(directory, PREFIX, _names(manifest), 400), manifest, unwatched)
    crc = crc32c_of_bytes(encode_manifest(manifest))
    return CommitRecord(PLACE.job_uuid, REF, None, path, manifest.size, crc, "host", "adopted", 5)


def _names(manifest: Manifest) -> tuple[str, ...]:
    return tuple(file.name for file in manifest.files)


async def test_an_import_is_in_the_store_as_a_commit_would_be(store: CheckpointStore, tmp_path: Path) -> None:
    record = await imported(store, tmp_path / "mine")
    moved: list[int] = []
    manifest = await audit(store, record, moved.append)
    assert (manifest.tensors, manifest.parent, manifest.incarnation) == (2, None, IMPORTED)
    assert sum(moved) == record.size
    listed = await store.list(record.path)
    assert {file.path.rpartition("/")[2] for file in listed.files} == {
        *_names(manifest),
        MANIFEST_FILE,
        "checkpoint",
    }
    assert (await store.list(STAGING)).directories == ()


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[:0],
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda _data: None,
    ],
)
@pytest.mark.parametrize("ending", [".index", ".data-00000-of-00002", ".data-00001-of-00002", MANIFEST_FILE])
async def test_whatever_is_wrong_in_the_store_is_found(
    tmp_path: Path, ending: str, harm: Callable[[bytes], bytes | None]
) -> None:
    store = LocalStore(tmp_path / "store", InlineExecutor())
    await store.prepare()
    record = await imported(store, tmp_path / "mine")
    name = ending if ending == MANIFEST_FILE else f"{PREFIX}{ending}"
    path = tmp_path / "store" / record.path / name
    data = harm(path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(BadCheckpoint, match=name.replace(".", r"\.")):
        await audit(store, record)
    with pytest.raises(BadCheckpoint):
        await restore_to(store, record, tmp_path / "to", building_directory(tmp_path / "to"), BootClock())
    assert {path.name for path in tmp_path.iterdir()} == {"store", "mine"}


async def test_a_manifest_that_counts_other_tensors_than_the_index_is_bad(
    store: CheckpointStore, tmp_path: Path
) -> None:
    record = await imported(store, tmp_path / "mine")
    manifest = await audit(store, record)
    with pytest.raises(BadCheckpoint, match="have 2 tensors in 2 files; its manifest 3 in 2"):
        await audit_files(store, record.path, replace(manifest, tensors=3))


async def test_a_store_that_cannot_be_read_says_nothing_of_the_checkpoint(
    store: CheckpointStore, tmp_path: Path
) -> None:
    record = await imported(store, tmp_path / "mine")

    def away(point: str) -> None:
        if point == "before crc32c":
            raise StoreUnreachable("away")

    with pytest.raises(StoreUnreachable):
        await audit(PointedStore(store, away), record)


async def test_an_index_that_vanishes_while_it_is_read_back_is_missing(tmp_path: Path) -> None:
    inner = LocalStore(tmp_path / "store", InlineExecutor())
    await inner.prepare()
    record = await imported(inner, tmp_path / "mine")
    index = tmp_path / "store" / record.path / f"{PREFIX}.index"
    reads = 0

    def vanish(point: str) -> None:
        nonlocal reads
        reads += point == "before read_bytes"
        if reads == 2:  # the manifest is the first
            index.unlink(missing_ok=True)

    with pytest.raises(BadCheckpoint, match="index is missing"):
        await audit(PointedStore(inner, vanish), record)


async def test_a_restore_is_whole_and_exact_or_not_there(store: CheckpointStore, tmp_path: Path) -> None:
    record = await imported(store, tmp_path / "mine")
    target = tmp_path / "deep" / "down"
    build = building_directory(target)
    assert bytes_below(build) == 0
    await restore_to(store, record, target, build, BootClock())
    state = f'model_checkpoint_path: "{PREFIX}"\nall_model_checkpoint_paths: "{PREFIX}"\n'.encode()
    found = {path.name: path.read_bytes() for path in target.iterdir()}
    assert found == saved(tmp_path / "mine") | {"checkpoint": state}
    assert bytes_below(target) == sum(map(len, found.values()))
    with pytest.raises(Conflict, match="not an empty directory"):
        await restore_to(store, record, target, building_directory(target), BootClock())
    (tmp_path / "file").write_text("")
    with pytest.raises(Conflict):
        await restore_to(store, record, tmp_path / "file", building_directory(target), BootClock())
    assert [path.name for path in target.parent.iterdir()] == ["down"]


async def test_a_restore_that_is_given_up_leaves_nothing(store: CheckpointStore, tmp_path: Path) -> None:
    record = await imported(store, tmp_path / "mine")
    begun = asyncio.Event()

    async def stuck(point: str) -> None:
        if point == "before download":
            begun.set()
            await asyncio.Event().wait()

    target = tmp_path / "to"
    slow = PointedStore(store, stuck)
    work = asyncio.ensure_future(restore_to(slow, record, target, building_directory(target), BootClock()))
    await begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert not any("to" in path.name for path in tmp_path.iterdir() if path.name != "store")


async def test_an_import_that_fails_on_its_way_leaves_nothing(store: CheckpointStore, tmp_path: Path) -> None:
    saved(tmp_path / "mine")
    found = find_candidate(tmp_path / "mine", "", (), None)
    manifest = describe(found, PLACE, "host", 5, unwatched)

    def full(point: str) -> None:
        if point == "before rename":
            raise Refused("quota")

    with pytest.raises(Refused):
        await bring(PointedStore(store, full), found, manifest, unwatched)
    assert (await store.list(STAGING)).directories == ()
    (tmp_path / "mine" / f"{PREFIX}.data-00000-of-00002").write_bytes(b"abcD" * 100)
    with pytest.raises(BadCheckpoint, match="has changed since"):
        await bring(store, found, manifest, unwatched)
    assert (await store.list(STAGING)).directories == ()
    assert [name for name in (await store.list("")).directories if name.startswith("g")] == []


async def test_a_store_that_takes_other_bytes_than_were_sent_is_noticed(tmp_path: Path) -> None:
    class Lying(LocalStore):
        async def upload(self, source: str, path: str, moved: Moved = unwatched) -> StoredFile:
            stored = await super().upload(source, path, moved)
            return replace(stored, crc32c=1)

    store = Lying(tmp_path / "store", InlineExecutor())
    await store.prepare()
    saved(tmp_path / "mine")
    found = find_candidate(tmp_path / "mine", "", (), None)
    manifest = describe(found, PLACE, "host", 5, unwatched)
    with pytest.raises(StoreUnreachable, match="is not what was sent"):
        await bring(store, found, manifest, unwatched)


def test_what_is_meant_is_found_in_a_directory(tmp_path: Path) -> None:
    saved(tmp_path, "model.ckpt-300")
    assert find_candidate(tmp_path, "", (), None).step == 300, "the only one"
    saved(tmp_path)
    with pytest.raises(UserError, match="has 2 checkpoints of TensorFlow; name one with --prefix"):
        find_candidate(tmp_path, "", (), None)
    (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{PREFIX}"\n')
    assert find_candidate(tmp_path, "", (), None).step == 400, "what TensorFlow would take"
    assert find_candidate(tmp_path, "model.ckpt-300", (), 7).step == 7
    with pytest.raises(UserError, match="no complete checkpoint 'nothing'"):
        find_candidate(tmp_path, "nothing", (), None)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "weights.json").write_text("{}")
    found = find_candidate(tmp_path, "", ("sub/weights.json",), 9)
    assert (found.prefix, found.names, found.step) == ("", ("sub/weights.json",), 9)
    for name in ("../x", "/etc/passwd", "manifest.json", "sub/../x"):
        with pytest.raises(UserError):
            find_candidate(tmp_path, "", (name,), 9)


@pytest.mark.parametrize("prefix", ["", "run/mlp.ckpt"])
async def test_an_import_of_several_families_is_stored_as_it_was(
    store: CheckpointStore, tmp_path: Path, prefix: str
) -> None:
    mine = tmp_path / "mine"
    saved(mine)
    (mine / "run").mkdir()
    counter = plain(9, [], (900).to_bytes(8, "little"))
    for name, data in bundle("mlp.ckpt", [{b"global_step": counter}]).items():
        (mine / "run" / name).write_bytes(data)
    (mine / "run" / "checkpoint").write_bytes(render_state(f"{mine}/run/mlp.ckpt"))
    found = find_candidate(mine, prefix, (), None)
    assert (found.prefix, found.step) == (("run/mlp.ckpt", 900) if prefix else (PREFIX, 400))
    manifest = describe(found, PLACE, "host", 5, unwatched)
    assert manifest.bundles == (("run/mlp.ckpt",) if prefix else (PREFIX, "run/mlp.ckpt"))
    await store.prepare()
    path = await bring(store, found, manifest, unwatched)
    stored = {name: await store.read_bytes(f"{path}/{name}", 10**6) for name in (*found.names, *found.states)}
    assert stored["run/checkpoint"] == render_state("mlp.ckpt")
    await audit_files(store, path, manifest)


def test_what_is_torn_or_strange_is_not_described(tmp_path: Path) -> None:
    files = saved(tmp_path)
    found = find_candidate(tmp_path, "", (), None)
    shard = tmp_path / f"{PREFIX}.data-00001-of-00002"
    shard.write_bytes(b"1234567x")
    with pytest.raises(BadCheckpoint):
        describe(found, PLACE, "host", 5, unwatched)
    shard.unlink()
    shard.symlink_to(tmp_path / f"{PREFIX}.data-00000-of-00002")
    with pytest.raises(UserError):
        describe(found, PLACE, "host", 5, unwatched)
    shard.unlink()
    shard.write_bytes(files[shard.name])
    with pytest.raises(UserError, match="cannot be a checkpoint"):
        describe(found, replace(PLACE, ref=CheckpointRef(10**9, 1)), "host", 5, unwatched)
