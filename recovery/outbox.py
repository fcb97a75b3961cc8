"""Taking finished checkpoints out of TensorFlow's reach, before its `max_to_keep` deletes them (DESIGN 8).

`PARENT/.outbox/g<generation>-s<step>/` holds the files of one checkpoint and its manifest. It is this node's
own copy: a restart may be staged from it, and a restarted agent finds there what it has not committed yet.
Nothing here is fsynced: whoever uses a copy checks it against checksums that come from elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from recovery import files
from recovery.checkpoints.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    Manifest,
    encode_manifest,
    hex_crc32c,
    parse_manifest,
)
from recovery.checkpoints.tf_files import MAX_STATE_BYTES, STATE_FILE, local_prefix, parse_state
from recovery.checkpoints.watch_rule import (
    IDLE,
    FileMark,
    Finished,
    Idle,
    Look,
    Unfinished,
    Unusable,
    Watch,
)
from recovery.deadline import Motion
from recovery.files import mapped_errors
from recovery.verify import verify_files
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Clock, Moved, unwatched
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import BadCheckpoint, IncompatibleRecord

OUTBOX = ".outbox"
TAKING_PREFIX = ".taking-"
_COPY = re.compile(r"g(\d{1,8})-s(\d{1,12})", re.ASCII)


@dataclass(frozen=True, slots=True)
class SavingJob:
    """Whose checkpoints are taken, and by whom. `tensorflow` gives the version that runs, if it is known."""

    job_uuid: str
    job: str
    node: str
    incarnation: str
    tensorflow: Callable[[], str] = lambda: ""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a checkpoint's manifest says beside its files; `prefix` is empty for the program's own files."""

    job: SavingJob
    ref: CheckpointRef
    parent: CheckpointRef | None
    prefix: str


@dataclass(frozen=True, slots=True)
class TakenCheckpoint:
    """A checkpoint in the outbox. `raw` is its manifest, byte for byte."""

    directory: Path
    manifest: Manifest
    raw: bytes


def generation_directory(parent: Path, generation: int) -> Path:
    """`$CHECKPOINT_DIR` of a generation."""
    return parent / f"g{generation}"


def outbox_directory(parent: Path, ref: CheckpointRef) -> Path:
    """Where the node's own copy of a checkpoint is, if it has one."""
    return parent / OUTBOX / str(ref)


def read_taken(directory: Path) -> TakenCheckpoint | None:
    """The checkpoint in an outbox directory; None when it is absent or its manifest or a size is wrong.

    Blocking. Checksums of the files are for the caller to check.
    """
    try:
        raw = files.read_small(directory / MANIFEST_FILE, MAX_MANIFEST_BYTES)
        manifest = parse_manifest(raw)
        for file in manifest.files:
            if (directory / file.name).stat().st_size != file.size:
                return None
    except (OSError, BadCheckpoint, IncompatibleRecord):
        return None
    return TakenCheckpoint(directory, manifest, raw)


def newest_taken(parent: Path) -> TakenCheckpoint | None:
    """The newest whole checkpoint that this node has a copy of. Blocking."""
    with mapped_errors(f"read {parent / OUTBOX}"):
        try:
            names = [entry.name for entry in (parent / OUTBOX).iterdir()]
        except FileNotFoundError:
            return None
    matches = filter(None, map(_COPY.fullmatch, names))
    refs = sorted((CheckpointRef(int(found[1]), int(found[2])) for found in matches), reverse=True)
    return next(filter(None, (read_taken(outbox_directory(parent, ref)) for ref in refs)), None)


def prune_outbox(parent: Path, keep: Collection[CheckpointRef], below: CheckpointRef) -> None:
    """Remove the node's copies of all other checkpoints that are older than `below`. Blocking.

    What has been taken meanwhile is newer. An absent outbox is an empty one.
    """
    kept = {str(ref) for ref in keep}
    with mapped_errors(f"clean {parent / OUTBOX}"), suppress(FileNotFoundError):
        for entry in sorted(os.scandir(parent / OUTBOX), key=lambda entry: entry.name):
            match = _COPY.fullmatch(entry.name)
            if match and entry.name not in kept and CheckpointRef(int(match[1]), int(match[2])) < below:
                with effect("outbox.prune"):
                    files.remove_tree(Path(entry.path))


def drop_copy(parent: Path, ref: CheckpointRef) -> None:
    """Remove the node's copy of this checkpoint. Blocking; not an error if it is absent."""
    directory = outbox_directory(parent, ref)
    with mapped_errors(f"remove {directory}"), effect("outbox.drop"):
        files.remove_tree(directory)


Seen = TakenCheckpoint | Idle | Unfinished | Unusable


class Looks:
    """Looks of one watcher, each in a thread, one at a time.

    What a look has taken it does not find again. So when its caller was cancelled, the next one gets that.
    """

    def __init__(self, executor: Executor | None) -> None:
        self._executor = executor
        self._running: asyncio.Future[Seen] | None = None

    async def run(self, look: Callable[[], Seen]) -> Seen:
        """Look; or hear what an earlier look has found that nobody has heard yet."""
        if self._running is not None:
            left = await self._heard(self._running)
            if isinstance(left, TakenCheckpoint | Unusable):
                return left
        self._running = asyncio.get_running_loop().run_in_executor(self._executor, look)
        return await self._heard(self._running)

    async def _heard(self, running: asyncio.Future[Seen]) -> Seen:
        try:
            found = await asyncio.shield(running)
        except BaseException:
            if running.done():
                self._running = None
            raise
        self._running = None
        return found


class CheckpointWatcher:
    """Notices what the saver of one generation finishes, and takes it. Call `look` about each 100 ms.

    The base itself, staged at the start and found again by its step and its index file (which holds the
    checksums of all tensors), is not taken; nor is a step a second time. `motion` is told while one is taken.
    """

    def __init__(
        self,
        parent: Path,
        job: SavingJob,
        generation: int,
        base: Manifest | None,
        clock: Clock,
        executor: Executor | None = None,
    ) -> None:
        self._parent = parent
        self._directory = generation_directory(parent, generation)
        self._job = job
        self._generation = generation
        self._base = base
        self._clock = clock
        self._looks = Looks(executor)
        self._watch = Watch()
        self._refused: tuple[FileMark, ...] = ()
        self.motion = Motion(clock)

    async def look(self, *, final: bool = False) -> Seen:
        """Look once. `final`: the saver is confirmed dead; after that, Idle means that all is taken.

        An Unusable is returned once, then Idle. Raises Refused (no space, no right) and StoreUnreachable (the
        local disk failed); look again later. Do not run two looks of one watcher at a time.
        """
        return await self._looks.run(lambda: self._look(final=final))

    def _look(self, *, final: bool) -> Seen:
        with mapped_errors(f"take a checkpoint from {self._directory}"):
            now = look_at(self._directory)
            judgement = self._watch.judge(now, final=final)
            if not isinstance(judgement, Finished):
                return judgement
            if self._is_base(judgement):
                self._watch.settle(judgement.step)
                return IDLE
            if judgement.marks == self._refused:
                return IDLE
            try:
                return self._take(judgement) or Unfinished(now.prefix)
            except BadCheckpoint as error:
                # Until one of its files changes: it may have been looked at while it was being written.
                self._refused = judgement.marks
                return Unusable(now.prefix, str(error))

    def _is_base(self, finished: Finished) -> bool:
        base = self._base
        if base is None or base.prefix != finished.files.prefix:
            return False
        (index,) = (file for file in base.files if file.name == finished.files.index)
        try:
            size, crc = files.crc32c_of_file(self._directory / index.name)
        except FileNotFoundError:
            return False
        return (size, hex_crc32c(crc)) == (index.size, index.crc32c)

    def _take(self, finished: Finished) -> TakenCheckpoint | None:
        ref = CheckpointRef(self._generation, finished.step)
        target = outbox_directory(self._parent, ref)
        taken = read_taken(target)
        if taken is None:
            with effect("outbox.remove_damaged"):
                files.remove_tree(target)
            origin = Origin(self._job, ref, self._base.ref if self._base else None, finished.files.prefix)
            taken = put_in_outbox(
                self._parent,
                origin,
                self._clock.wall_ms(),
                lambda into: take_files(self._directory, into, finished),
                self.motion,
            )
        if taken is not None:
            self._watch.taken(finished.step)
        return taken


def put_in_outbox(
    parent: Path,
    origin: Origin,
    wall_ms: int,
    take: Callable[[Path], dict[str, int] | None],
    moved: Moved = unwatched,
) -> TakenCheckpoint | None:
    """Keep the files that `take` brings into a directory, if they are a whole checkpoint. Blocking.

    `take` says which files these are, and how long; if it says None, or one has another length, so does this.
    Raises BadCheckpoint for what will never be one.
    """
    target = outbox_directory(parent, origin.ref)
    temporary = target.parent / f"{TAKING_PREFIX}{secrets.token_hex(8)}"
    with effect("outbox.make"):
        temporary.mkdir(parents=True)
    try:
        with effect("outbox.take"):
            sizes = take(temporary)
        if sizes is None:
            return None
        found = verify_files(temporary, origin.prefix, sorted(sizes), moved=moved)
        if {file.name: file.size for file in found.files} != sizes:
            return None
        manifest = Manifest(
            job_uuid=origin.job.job_uuid,
            job=origin.job.job,
            ref=origin.ref,
            parent=origin.parent,
            node=origin.job.node,
            incarnation=origin.job.incarnation,
            prefix=origin.prefix,
            wall_ms=wall_ms,
            files=found.files,
            tensors=found.tensors,
            tf_version=found.tf_version or origin.job.tensorflow(),
        )
        raw = encode_manifest(manifest)
        with effect("outbox.manifest"):
            (temporary / MANIFEST_FILE).write_bytes(raw)
        try:
            with effect("outbox.rename"):
                files.move_directory(temporary, target)
        except FileExistsError:
            return read_taken(target)
        return TakenCheckpoint(target, manifest, raw)
    finally:
        with effect("outbox.clear"):
            shutil.rmtree(temporary, ignore_errors=True)


def take_files(source: Path, target: Path, finished: Finished) -> dict[str, int] | None:
    """Shards by hard link, the rest by copy; None when TensorFlow touched one of them meanwhile."""
    try:
        for shard in finished.files.shards:
            with effect("outbox.link_file"):
                files.link_or_copy(source / shard, target / shard)
        for name in (finished.files.index, *finished.files.others):
            with effect("outbox.copy_file"):
                files.copy_file(source / name, target / name)
        if any(mark_of(source / mark.name, mark.name) != mark for mark in finished.marks):
            return None
    except FileNotFoundError:
        return None
    return {mark.name: mark.size for mark in finished.marks}


def look_at(directory: Path) -> Look:
    """What the directory shows now. Blocking; raises OSError."""
    with suppress(FileNotFoundError):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _look_inside(directory, fd)
        finally:
            os.close(fd)
    return Look("")


def _look_inside(directory: Path, fd: int) -> Look:
    """By its descriptor: this is done ten times a second."""
    state = parse_state(files.read_small(STATE_FILE, MAX_STATE_BYTES, fd).decode(errors="replace"))
    if state is None:
        return Look("")
    names = os.listdir(fd)
    prefix = local_prefix(state.newest, str(directory))
    prefix = prefix or local_prefix(state.newest, str(directory.resolve()))
    if prefix is None:
        return Look("", elsewhere=state.newest)
    marks, own = [], f"{prefix}."
    for name in sorted(name for name in names if name.startswith(own)):
        with suppress(FileNotFoundError):
            marks.append(mark_of(name, name, dir_fd=fd))
    writes_meta = any(name.endswith(".meta") and not name.startswith(own) for name in names)
    return Look(prefix, tuple(marks), writes_meta=writes_meta)


def mark_of(path: Path | str, name: str, *, dir_fd: int | None = None) -> FileMark:
    """How the file looks now, under `name`. Blocking; raises FileNotFoundError."""
    return mark_by(os.stat(path, dir_fd=dir_fd, follow_symlinks=False), name)


def mark_by(status: os.stat_result, name: str) -> FileMark:
    """How the file looked, under `name`."""
    return FileMark(name, status.st_size, status.st_mtime_ns, status.st_ino)
