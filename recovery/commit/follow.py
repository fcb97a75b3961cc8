"""Bringing new commits to programs that only read them: evaluators and TensorBoards on other machines.

TensorFlow reads the `checkpoint` state file and then the files that it names. So that file is replaced last,
when the checkpoint is complete. Each file appears by a rename. The newest few stay, as a program may still
read an older one. Files that were in the directory before are left alone.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from recovery.commit.outbox import generation_directory
from recovery.commit.stage import BASES, BUILD_PREFIX, Stager
from recovery.formats.manifest import Manifest
from recovery.formats.tf_files import STATE_FILE
from recovery.io import files, trees
from recovery.io.files import mapped_errors
from supervisor.adapters.failpoints import effect
from supervisor.contract.checkpoint import CommitRecord
from supervisor.contract.errors import TfSupervisorError

KEPT = 3
MAX_MARK_BYTES = 1024
_MARKING = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def mark_saver(parent: Path, generation: int, node: str = "") -> None:
    """Mark that a program saves into this generation's directory on this machine, so that no commit is
    brought there.

    The mark is made before the generation's first commit, so that a follower that sees a commit sees the mark
    too. Blocking. A program may have put anything in its place: links are not followed, and a FIFO is not
    waited for.
    """
    path = _saver_mark(parent, generation)
    with mapped_errors(f"write {path}"), effect("follow.mark"):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, _MARKING, 0o644)
        try:
            files.write_all(fd, node.encode())
        finally:
            os.close(fd)


def unmark_saver(parent: Path, generation: int, node: str) -> None:
    """Remove this node's mark. The mark of another agent with the same parent stays. Blocking."""
    path = _saver_mark(parent, generation)
    with mapped_errors(f"remove {path}"), suppress(FileNotFoundError), effect("follow.unmark"):
        if files.read_small(path, MAX_MARK_BYTES) == node.encode():
            path.unlink()


def saved_here(parent: Path, generation: int) -> bool:
    """Whether the program of this generation saves on this machine. Blocking."""
    return _saver_mark(parent, generation).exists()


class Follower:
    """Brings commits into one generation's directory."""

    def __init__(self, stager: Stager, parent: Path, generation: int) -> None:
        self._stager = stager
        self._parent = parent
        self._directory = generation_directory(parent, generation)
        self._brought: list[Manifest] = []

    async def bring(self, record: CommitRecord, owner_id: str, quiet_ms: int) -> None:
        """Make this checkpoint the one that programs find, unless the program saves here itself.

        Args:
            record: the commit to bring; newer than the ones before.
            owner_id: unique to this call.
            quiet_ms: give up when nothing has moved for so long.

        Raises:
            BadCheckpoint, StoreUnreachable, Refused: as `Stager.stage_base`.
        """
        build = self._parent / f"{BUILD_PREFIX}{self._directory.name}-{owner_id}"
        try:
            manifest = await self._stager.fetch(record, build, quiet_ms)
            await asyncio.to_thread(self._move_in, build, manifest)
        finally:
            with suppress(TfSupervisorError):
                await asyncio.to_thread(_remove, build)

    def _move_in(self, build: Path, manifest: Manifest) -> None:
        names = sorted((file.name for file in manifest.files), key=_turn)
        with mapped_errors(f"bring {manifest.ref} into {self._directory}"):
            with effect("follow.make"):
                self._directory.mkdir(parents=True, exist_ok=True)
            for name in (*names, *([STATE_FILE] if manifest.state else [])):
                beneath = files.beneath(self._directory, name, make=True)
                with beneath as (target_fd, target), effect("follow.rename"):
                    os.replace(build / name, target, dst_dir_fd=target_fd)
            self._brought.append(manifest)
            self._forget_old()

    def _forget_old(self) -> None:
        kept = {file.name for manifest in self._brought[-KEPT:] for file in manifest.files}
        for manifest in self._brought[:-KEPT]:
            for file in manifest.files:
                if file.name not in kept:
                    beneath = files.beneath(self._directory, file.name)
                    with suppress(FileNotFoundError), beneath as (fd, name), effect("follow.forget"):
                        os.unlink(name, dir_fd=fd)
        del self._brought[:-KEPT]


def _turn(name: str) -> int:
    """Sort key: a file comes after the files that it names.

    An index names data files, a state file an index.
    """
    last = name.rpartition("/")[2]
    return 2 if last == STATE_FILE else 1 if last.endswith(".index") else 0


def _remove(build: Path) -> None:
    with mapped_errors(f"remove {build}"), effect("follow.remove_build"):
        trees.remove_tree(build)


def _saver_mark(parent: Path, generation: int) -> Path:
    return parent / BASES / f"g{generation}.saver"
