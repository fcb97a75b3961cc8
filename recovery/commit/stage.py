"""Staging a base: after it `PARENT/g<generation>/` holds exactly one verified checkpoint, or nothing.

It is built beside its place and renamed into it whole. Several agents of one machine may share PARENT and
stage at the same time: one of them moves its directory in, and the others verify that.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from recovery.commit.outbox import OUTBOX, TAKING_PREFIX, generation_directory, outbox_directory, read_taken
from recovery.formats.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    Manifest,
    ManifestFile,
    crc32c_of_bytes,
    hex_crc32c,
    parse_manifest,
)
from recovery.formats.tf_files import MAX_STATE_BYTES, STATE_FILE
from recovery.io import files, trees
from recovery.io.deadline import Motion, while_moving
from recovery.io.files import mapped_errors
from recovery.io.parallel import in_parallel
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import CheckpointStore, Clock, Moved
from supervisor.contract.checkpoint import CommitRecord
from supervisor.contract.errors import (
    BadCheckpoint,
    Conflict,
    NotFound,
    StoreUnreachable,
    TfSupervisorError,
    UserError,
)

T = TypeVar("T")
BASES = ".bases"
STALE_PREFIX = ".stale-"
BUILD_PREFIX = ".staging-"
LEFTOVER_AGE_S = 3600.0
FILES_AT_ONCE = 4
_TRIES = 8
_MOST_DEEP = 32
_MOST_ENTRIES = 50_000
_GENERATION = re.compile(r"g(\d{1,8})", re.ASCII)


@dataclass(frozen=True, slots=True)
class StagedBase:
    """`$CHECKPOINT_DIR` of a generation, and the base in it; None for a start from scratch."""

    directory: Path
    base: Manifest | None


def read_base(parent: Path, generation: int) -> Manifest | None:
    """The base that this machine staged for a generation; None for a start from scratch. Blocking.

    Raises NotFound when no base was ever staged here.
    """
    path = parent / BASES / f"g{generation}.json"
    with mapped_errors(f"read {path}"):
        raw = files.read_small(path, MAX_MANIFEST_BYTES)
    return parse_manifest(raw) if raw else None


class Stager:
    """Stages bases of one job into `parent`, from the node's own copy if it is good, else from the store.

    It does not fsync. The program reads the files from the page cache, the store has them in any case, and
    after a restart of the machine no program goes on in a directory that was staged before.
    """

    def __init__(
        self, store: CheckpointStore, parent: Path, clock: Clock, executor: Executor | None = None
    ) -> None:
        self._store = store
        self._parent = parent
        self._clock = clock
        self._executor = executor

    async def stage_base(
        self, record: CommitRecord | None, generation: int, owner_id: str, quiet_ms: int, *, fresh: bool
    ) -> StagedBase:
        """Make the generation's directory hold exactly the base. Safe to repeat, and to run on every node.

        Args:
            record: the base; None prepares the store and makes an empty directory.
            generation: the generation of the directory.
            owner_id: unique to this call; part of the names of what is being built.
            quiet_ms: give up when nothing has moved for so long.
            fresh: no attempt of this generation was ever started. Only then may a directory that is there and
                is not exactly the base (left by a plan that failed) be moved away; otherwise the program uses
                it, and it is left as it is.

        Raises:
            BadCheckpoint: a size or checksum is wrong, or a file is missing while the store is healthy.
            StoreUnreachable: the store or the local disk could not be read or written: unknown (rule 8).
            Refused: no space or no right on the local disk.
        """
        directory = generation_directory(self._parent, generation)
        build = self._parent / f"{BUILD_PREFIX}{directory.name}-{owner_id}"
        what = str(record.ref) if record else "an empty base"
        motion = Motion(self._clock)
        async with while_moving(motion, self._clock, quiet_ms, f"staging {what} into {directory}"):
            if record is None:
                with effect("stage.prepare", StoreUnreachable):
                    await self._store.prepare()
            manifest, raw = (None, b"") if record is None else await self._manifest(record)
            motion()
            in_place = partial(self._in_place, directory, manifest, owner_id, motion, fresh=fresh)
            for _ in range(_TRIES):
                if await self._run(in_place):
                    break
                try:
                    with effect("stage.build", StoreUnreachable):
                        await self._build(build, record, manifest, motion)
                    with effect("stage.rename", StoreUnreachable):
                        await self._run(lambda: _move_in(build, directory))
                except BaseException:
                    # What is left half of a large one fills the disk; work that still ends makes this fail.
                    with suppress(TfSupervisorError), effect("stage.remove_build", StoreUnreachable):
                        await self._run(lambda: trees.remove_tree(build))
                    raise
            else:
                raise StoreUnreachable(f"{directory} keeps changing while a base is staged into it")
            await self._run(lambda: self._note_base(generation, raw, owner_id))
            return StagedBase(directory, manifest)

    async def fetch(self, record: CommitRecord, build: Path, quiet_ms: int) -> Manifest:
        """Make the new directory `build` hold this checkpoint, verified. Raises as `stage_base`.

        After an error the caller removes `build`.
        """
        motion = Motion(self._clock)
        async with while_moving(motion, self._clock, quiet_ms, f"fetching {record.ref}"):
            manifest, _ = await self._manifest(record)
            motion()
            with effect("follow.build", StoreUnreachable):
                await self._build(build, record, manifest, motion)
            return manifest

    async def _manifest(self, record: CommitRecord) -> tuple[Manifest, bytes]:
        own = await self._run(lambda: read_taken(outbox_directory(self._parent, record.ref)))
        if own is not None and crc32c_of_bytes(own.raw) == record.manifest_crc32c:
            return own.manifest, own.raw
        return await read_manifest(self._store, record)

    async def _build(
        self, build: Path, record: CommitRecord | None, manifest: Manifest | None, moved: Moved
    ) -> None:
        await self._run(lambda: _fresh_directory(build))
        if record is None or manifest is None:
            return
        own = outbox_directory(self._parent, record.ref)
        if not await self._run(lambda: _copy_own(own, build, manifest, moved)):
            # With all that its files are in, before any: work that is given up makes nothing more here.
            await self._run(lambda: _fresh_directory(build, manifest))
            fetch = partial(self._download, record, build, moved)
            await in_parallel(fetch, _largest_first(manifest), FILES_AT_ONCE)
        if state := manifest.state:
            await self._run(lambda: _write(build / STATE_FILE, state))

    async def _download(self, record: CommitRecord, build: Path, moved: Moved, file: ManifestFile) -> None:
        source, target = f"{record.path}/{file.name}", build / file.name
        try:
            with effect("stage.download", StoreUnreachable):
                came = await self._store.download(source, str(target), moved)
            moved(0)
            if (came.size, came.crc32c) == (file.size, int(file.crc32c, 16)):
                return
            intact = (
                came.size == file.size and hex_crc32c(await self._store.crc32c(source, moved)) == file.crc32c
            )
        except NotFound as error:
            raise BadCheckpoint(f"{record.ref}: {source} is missing") from error
        except UserError as error:
            raise BadCheckpoint(f"{record.ref}: {error}") from error
        if intact:
            raise StoreUnreachable(f"{source} is intact in the store but arrived damaged in {target}")
        raise BadCheckpoint(f"{record.ref}: {source} has a wrong size or checksum")

    def _in_place(
        self, directory: Path, manifest: Manifest | None, owner_id: str, moved: Moved, *, fresh: bool
    ) -> bool:
        """Whether the directory can stay; if `fresh`, one that is not exactly the base is moved away."""
        try:
            seen = directory.lstat().st_ino
            if not fresh or _is_exactly(directory, manifest, moved):
                return True
        except FileNotFoundError:
            return False
        stale = self._parent / f"{STALE_PREFIX}{directory.name}-{owner_id}"
        with effect("stage.move_away"):
            trees.remove_tree(stale)
            move_away(directory, stale, seen)
        return False

    def _note_base(self, generation: int, raw: bytes, owner_id: str) -> None:
        """Write the note for `read_base`. Every agent of the machine writes the same bytes."""
        target = self._parent / BASES / f"g{generation}.json"
        with effect("stage.note_write"):
            target.parent.mkdir(exist_ok=True)
            temporary = self._parent / f"{BUILD_PREFIX}base-{target.stem}-{owner_id}"
            temporary.write_bytes(raw)
        with effect("stage.note_rename"):
            temporary.replace(target)

    async def _run(self, work: Callable[[], T]) -> T:
        def mapped() -> T:
            try:
                with mapped_errors(f"stage a base in {self._parent}"):
                    return work()
            except (NotFound, Conflict) as error:
                # What is built here belongs to this call alone: somebody interferes, the base is good.
                raise StoreUnreachable(str(error)) from error

        return await asyncio.get_running_loop().run_in_executor(self._executor, mapped)


async def read_manifest(store: CheckpointStore, record: CommitRecord) -> tuple[Manifest, bytes]:
    """The manifest of a committed checkpoint, parsed and as stored; it is exactly what was committed.

    Raises BadCheckpoint, StoreUnreachable, Refused.
    """
    path = f"{record.path}/{MANIFEST_FILE}"
    try:
        raw = await store.read_bytes(path, MAX_MANIFEST_BYTES)
    except NotFound as error:
        raise BadCheckpoint(f"{record.ref}: {path} is missing") from error
    except UserError as error:
        raise BadCheckpoint(f"{record.ref}: {error}") from error
    if crc32c_of_bytes(raw) != record.manifest_crc32c:
        raise BadCheckpoint(f"{record.ref}: {path} has a wrong checksum")
    manifest = parse_manifest(raw)
    if (manifest.job_uuid, manifest.ref) != (record.job_uuid, record.ref):
        raise BadCheckpoint(f"{record.ref}: {path} describes {manifest.ref} of job {manifest.job_uuid}")
    return manifest, raw


def move_away(directory: Path, stale: Path, inode: int) -> None:
    """Move the directory with this inode to `stale`; one that another agent has put there since stays."""
    with suppress(FileNotFoundError):
        files.move_directory(directory, stale)
        if stale.lstat().st_ino != inode:
            with suppress(FileExistsError):
                files.move_directory(stale, directory)


def clean_parent(
    parent: Path, keep_generations: Collection[int], stay: Collection[str] = frozenset()
) -> None:
    """Remove directories of other generations, and those that interrupted work left an hour ago. Blocking.

    Names in `stay` stay. Call it only when no task of those generations is alive on this machine.
    """
    oldest = time.time() - LEFTOVER_AGE_S
    with mapped_errors(f"clean {parent}"), suppress(FileNotFoundError):
        for entry in _entries(parent):
            match = _GENERATION.fullmatch(entry.name)
            if match and int(match[1]) not in keep_generations and entry.name not in stay:
                with effect("stage.remove_generation"):
                    trees.remove_tree(entry)
                    (parent / BASES / f"{entry.name}.json").unlink(missing_ok=True)
                    (parent / BASES / f"{entry.name}.saver").unlink(missing_ok=True)
            elif entry.name.startswith((STALE_PREFIX, BUILD_PREFIX)):
                _remove_if_older(entry, oldest)
        for entry in _entries(parent / OUTBOX):
            if entry.name.startswith(TAKING_PREFIX):
                _remove_if_older(entry, oldest)


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []


def _remove_if_older(path: Path, oldest: float) -> None:
    with suppress(FileNotFoundError):
        if path.lstat().st_mtime >= oldest:
            return
        with effect("stage.remove_leftover"):
            if path.is_dir() and not path.is_symlink():
                trees.remove_tree(path)
            else:
                path.unlink()


def _fresh_directory(path: Path, manifest: Manifest | None = None) -> None:
    trees.remove_tree(path)
    path.mkdir(parents=True)
    for file in manifest.files if manifest is not None else ():
        _make_parent(path / file.name)


def _move_in(build: Path, directory: Path) -> None:
    """Move `build` to `directory`, unless another agent was faster: its directory is verified next."""
    try:
        files.move_directory(build, directory)
    except FileExistsError:
        trees.remove_tree(build)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _make_parent(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)


def _largest_first(manifest: Manifest) -> list[ManifestFile]:
    return sorted(manifest.files, key=lambda file: file.size, reverse=True)


def _copy_own(own: Path, build: Path, manifest: Manifest, moved: Moved) -> bool:
    """Build from the node's own copy; False when it is absent, damaged or unreadable."""
    try:
        for file in manifest.files:
            with effect("stage.copy_own"):
                _make_parent(build / file.name)
                if manifest.in_place(file.name):
                    files.copy_file(own / file.name, build / file.name, moved=moved)
                else:
                    files.link_or_copy(own / file.name, build / file.name, moved=moved)
        return _verify(build, manifest, moved)
    except OSError:
        return False


def _verify(directory: Path, manifest: Manifest, moved: Moved) -> bool:
    return all(
        files.crc32c_of_file(directory / file.name, moved=moved) == (file.size, int(file.crc32c, 16))
        for file in manifest.files
    )


def _is_exactly(directory: Path, manifest: Manifest | None, moved: Moved) -> bool:
    names = set()
    try:
        for path, _, entry in trees.entries_below(directory, _MOST_DEEP, _MOST_ENTRIES):
            if entry.is_file(follow_symlinks=False):
                names.add(path)
            elif not entry.is_dir(follow_symlinks=False) or path.count("/") + 1 >= _MOST_DEEP:
                return False
    except trees.TooMany:
        return False
    if manifest is None:
        return not any(directory.iterdir())
    wanted = {file.name for file in manifest.files}
    if not manifest.state:
        return names == wanted and _verify(directory, manifest, moved)
    if names != {STATE_FILE, *wanted}:
        return False
    found = files.read_small(directory / STATE_FILE, MAX_STATE_BYTES)
    return found == manifest.state and _verify(directory, manifest, moved)
