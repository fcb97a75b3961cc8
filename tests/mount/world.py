"""Mounts of one machine for tests, on a local store or on a real HDFS."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from recovery.mount import control
from recovery.mount.layout import live_path
from recovery.mount.live import LiveDirectory
from recovery.mount.open import open_backend
from recovery.mount.points import layers
from recovery.mount.record import MountFiles, MountWish
from recovery.stores.open import Stores
from supervisor.adapters.files.hadoop import HadoopSettings
from supervisor.contract.boundaries import CheckpointStore
from tests.checkpoints.world import JOB, UUID

PLAN = "plan"


def wait(condition: Callable[[], bool], within_s: float, what: str) -> None:
    """Until it holds; fails with `what` when it does not in time."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Site:
    """One job's store, and where its mounts are: nodes have parents of their own."""

    uri: str
    stores: Stores
    home: Path

    def live(self, generation: int = 1, plan: str = PLAN) -> LiveDirectory:
        return LiveDirectory(open_backend(self.uri, self.stores), live_path(generation, plan))

    def store(self) -> CheckpointStore:
        return self.stores.open(self.uri)

    def parent(self, node: str = "n1") -> Path:
        return self.home / node

    def wish(self, generation: int = 1, node: str = "n1", plan: str = PLAN) -> MountWish:
        directory = str(self.parent(node) / f"g{generation}")
        wish = MountWish(JOB, UUID, generation, self.uri, live_path(generation, plan), directory)
        return replace(wish, call_ms=20_000, flush_ms=120_000)

    @contextlib.contextmanager
    def mounted(self, generation: int = 1, node: str = "n1", wish: MountWish | None = None) -> Iterator[Path]:
        with control.mounted(
            self.parent(node), wish or self.wish(generation, node), patience_s=60
        ) as directory:
            yield directory

    def files(self, generation: int = 1, node: str = "n1") -> MountFiles:
        return MountFiles(self.parent(node), generation)

    def assert_clean(self) -> None:
        """Nothing is mounted, no process serves."""
        for parent in self.home.glob("n*"):
            for generation in range(5):
                assert layers(parent / f"g{generation}") == 0, parent
                assert not MountFiles(parent, generation).served()


def local_site(tmp_path: Path) -> Site:
    home = tmp_path / "nodes"
    home.mkdir()
    return Site(f"file://{tmp_path}/store", Stores(HadoopSettings()), home)


def hdfs_site(uri: str, conf_dir: Path, tmp_path: Path) -> Site:
    home = tmp_path / "nodes"
    home.mkdir()
    return Site(uri, Stores(HadoopSettings(conf_dir=str(conf_dir))), home)


def remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def patterned(size: int, seed: int = 1) -> bytes:
    block = bytes((seed * each * each + each) % 251 for each in range(65_536))
    return (block * (size // len(block) + 1))[:size]
