"""Taking finished checkpoints out of TensorFlow's reach, before its `max_to_keep` deletes them.

`PARENT/.outbox/g<generation>-s<step>/` holds the files of one checkpoint and its manifest. It is this node's
own copy. A restart may be staged from it, and a restarted agent finds there the checkpoints that it has not
committed yet. Nothing here is fsynced: each use of a copy compares it with checksums from etcd or the store.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from recovery.families.saves import Content
from recovery.families.watch_rule import Idle, Unfinished, Unusable
from recovery.formats.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    Manifest,
    encode_manifest,
    parse_manifest,
)
from recovery.io import files, trees
from recovery.io.files import mapped_errors
from supervisor.adapters.failpoints import effect
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import BadCheckpoint, IncompatibleRecord

OUTBOX = ".outbox"
TAKING_PREFIX = ".taking-"
_COPY = re.compile(r"g(\d{1,8})-s(\d{1,12})", re.ASCII)


@dataclass(frozen=True, slots=True)
class SavingJob:
    """The job whose checkpoints are taken, and the agent that takes them.

    `tensorflow` returns the version that runs, if it is known. `adopt`: a path of the program's own that
    leads to `$CHECKPOINT_DIR`, and that its state files may use; empty: none.
    """

    job_uuid: str
    job: str
    node: str
    incarnation: str
    tensorflow: Callable[[], str] = lambda: ""
    adopt: str = ""


@dataclass(frozen=True, slots=True)
class TakenCheckpoint:
    """A checkpoint in the outbox. `raw` is its manifest, byte for byte."""

    directory: Path
    manifest: Manifest
    raw: bytes


def manifest_of(
    job: SavingJob, generation: int, base: CheckpointRef | None, content: Content, wall_ms: int
) -> Manifest:
    """The manifest of a generation's save; `base`: the checkpoint that the generation started from."""
    return Manifest(
        job_uuid=job.job_uuid,
        job=job.job,
        ref=CheckpointRef(generation, content.step),
        parent=base,
        node=job.node,
        incarnation=job.incarnation,
        prefix=content.prefix,
        wall_ms=wall_ms,
        files=content.files,
        tensors=content.tensors,
        tf_version=content.tf_version or job.tensorflow(),
        version=content.version,
    )


def generation_directory(parent: Path, generation: int) -> Path:
    """`$CHECKPOINT_DIR` of a generation."""
    return parent / f"g{generation}"


def outbox_directory(parent: Path, ref: CheckpointRef) -> Path:
    """The directory of the node's own copy of a checkpoint, if it has one."""
    return parent / OUTBOX / str(ref)


def read_taken(directory: Path) -> TakenCheckpoint | None:
    """The checkpoint in an outbox directory; None when it is absent or its manifest or a size is wrong.

    Blocking. The caller checks the checksums of the files.
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


def taken_of(parent: Path, generation: int) -> Iterator[TakenCheckpoint]:
    """The whole checkpoints of a generation that this node has a copy of, newest first. Blocking."""
    found = map(_COPY.fullmatch, (path.name for path in (parent / OUTBOX).glob(f"g{generation}-s*")))
    for step in sorted((int(match[2]) for match in found if match), reverse=True):
        taken = read_taken(outbox_directory(parent, CheckpointRef(generation, step)))
        if taken is not None:
            yield taken


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

    Checkpoints that are taken meanwhile are newer, and stay. An absent outbox is an empty one.
    """
    kept = {str(ref) for ref in keep}
    with mapped_errors(f"clean {parent / OUTBOX}"), suppress(FileNotFoundError):
        for entry in sorted(os.scandir(parent / OUTBOX), key=lambda entry: entry.name):
            match = _COPY.fullmatch(entry.name)
            if match and entry.name not in kept and CheckpointRef(int(match[1]), int(match[2])) < below:
                with effect("outbox.prune"):
                    trees.remove_tree(Path(entry.path))


def drop_copy(parent: Path, ref: CheckpointRef) -> None:
    """Remove the node's copy of this checkpoint. Blocking; not an error if it is absent."""
    directory = outbox_directory(parent, ref)
    with mapped_errors(f"remove {directory}"), effect("outbox.drop"):
        trees.remove_tree(directory)


Seen = TakenCheckpoint | Idle | Unfinished | Unusable


class Looks:
    """Looks of one watcher, each in a thread, one at a time.

    A look finds each save once. If its caller was cancelled, the next call gets its result.
    """

    def __init__(self, executor: Executor | None) -> None:
        self._executor = executor
        self._running: asyncio.Future[Seen] | None = None

    async def run(self, look: Callable[[], Seen]) -> Seen:
        """Look, or return the result of an earlier look whose caller was cancelled."""
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


def put_in_outbox(parent: Path, fill: Callable[[Path], Manifest | None]) -> TakenCheckpoint | None:
    """Keep the files that `fill` brings into a directory, under the name that their manifest gives. Blocking.

    `fill` returns the manifest of the files that it brought, all verified, or None for none: then this
    returns None too. A damaged copy under that name is removed. Raises BadCheckpoint for files that can never
    be a checkpoint.
    """
    temporary = parent / OUTBOX / f"{TAKING_PREFIX}{secrets.token_hex(8)}"
    with effect("outbox.make"):
        temporary.mkdir(parents=True)
    try:
        with effect("outbox.take"):
            manifest = fill(temporary)
        if manifest is None:
            return None
        raw = encode_manifest(manifest)
        with effect("outbox.manifest"):
            (temporary / MANIFEST_FILE).write_bytes(raw)
        target = outbox_directory(parent, manifest.ref)
        known = read_taken(target)
        if known is not None:
            return known
        with effect("outbox.remove_damaged"):
            trees.remove_tree(target)
        try:
            with effect("outbox.rename"):
                files.move_directory(temporary, target)
        except FileExistsError:
            return read_taken(target)
        return TakenCheckpoint(target, manifest, raw)
    finally:
        with effect("outbox.clear"), suppress(OSError):
            trees.remove_tree(temporary)
