"""The recording of a checkpoint store: what the product has committed is whole, and any damage shows."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.history.formats import ABSENT, BROKEN, STORE, WHOLE, StoreLine
from chaos.history.lines import read
from chaos.history.store_recorder import CHECKPOINT, MANIFEST, NOTHING, StoreRecorder, examine
from recovery.families.commit_rule import Committed
from recovery.stores.local import LocalStore
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.adapters.etcd.memory_store import MemoryStore
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord
from tests.checkpoints.world import QUIET_MS, World

REF = CheckpointRef(1, 7)


@pytest.fixture
async def stored(tmp_path: Path) -> tuple[Path, CommitRecord]:
    """A store of files with one committed checkpoint, and its record."""
    root = tmp_path / "store"
    store = LocalStore(root)
    await store.prepare()
    world = World(tmp_path / "parent", store, MemoryCoordination(MemoryStore()))
    await world.put_switch(1)
    taken, identity = await world.take(REF), await world.register()
    done = await world.committer().commit(taken, identity, "0123456789abcdef", QUIET_MS)
    assert isinstance(done, Committed)
    (record,) = await world.records()
    return root / record.path, record


def flip(path: Path) -> None:
    """In one write: whoever looks meanwhile sees the file before it or after it."""
    at = path.stat().st_size // 2
    with path.open("r+b", buffering=0) as file:
        (byte,) = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte ^ 1]), at)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_what_the_product_commits_is_whole(stored: tuple[Path, CommitRecord]) -> None:
    directory, record = stored
    assert CHECKPOINT.fullmatch(directory.name)
    found = examine(directory)
    assert (found.found, found.manifest, found.size) == (WHOLE, record.manifest_crc32c, record.size)


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink], ids=["flip", "cut", "unlink"])
@pytest.mark.parametrize("kind", ["data-00000-of-00001", "index"])
def test_any_damage_shows(
    stored: tuple[Path, CommitRecord], kind: str, damage: Callable[[Path], None]
) -> None:
    directory, _ = stored
    damage(directory / f"model.ckpt-7.{kind}")
    assert examine(directory).found == BROKEN


def test_another_manifest_is_another_checkpoint(stored: tuple[Path, CommitRecord]) -> None:
    directory, record = stored
    path = directory / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert examine(directory).manifest != record.manifest_crc32c
    shutil.rmtree(directory)
    assert examine(directory) == NOTHING


def test_what_changes_is_told_once(stored: tuple[Path, CommitRecord], tmp_path: Path) -> None:
    directory, _ = stored
    recorder = StoreRecorder(directory.parent, tmp_path)
    recorder.start()
    told(tmp_path, [WHOLE])
    flip(directory / "model.ckpt-7.index")
    told(tmp_path, [WHOLE, BROKEN])
    directory.rename(tmp_path / "gone")
    recorder.stop()
    told(tmp_path, [WHOLE, BROKEN, ABSENT])


def told(directory: Path, expected: list[str]) -> None:
    deadline = time.monotonic() + 30
    while (found := [line.found for line in read(StoreLine, directory / STORE)]) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
