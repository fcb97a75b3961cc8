"""Checkpoints that leave the store for a directory of somebody's, or come into it from one.

Both ends are read whole: what leaves is what its manifest says, what comes in is what its own kind shows to
be whole.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from recovery import files
from recovery.checkpoints.manifest import (
    MANIFEST_FILE,
    Manifest,
    check_file_name,
    encode_manifest,
    parse_manifest,
)
from recovery.checkpoints.paths import staging_path, stored_path
from recovery.checkpoints.tf_files import STATE_FILE, complete_set, step_of
from recovery.files import mapped_errors
from recovery.outbox import TakenCheckpoint
from recovery.sight import Eyes
from recovery.stage import Stager
from recovery.upload import Uploader
from recovery.verify import verify_files
from supervisor.contract.boundaries import CheckpointStore, Clock, Moved
from supervisor.contract.checkpoint import CommitRecord, Verify
from supervisor.contract.checkpoint_views import ImportPlace
from supervisor.contract.errors import BadCheckpoint, Conflict, TfSupervisorError, UserError

QUIET_MS = 120_000
"""Nothing has moved for so long: the store is given up."""

IMPORTED = "import"
_RESTORING = ".restoring-"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint in somebody's directory. Without a prefix it is not a tensor bundle."""

    directory: Path
    prefix: str
    names: tuple[str, ...]
    step: int


def check_target(target: Path) -> None:
    """Raise Conflict unless `target` is absent or an empty directory. Blocking."""
    with mapped_errors(f"look into {target}"):
        if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
            raise Conflict(f"{target} exists and is not an empty directory; give another --to")


def building_directory(target: Path) -> Path:
    """Where a checkpoint is put together before it moves to `target`: beside it, so that it moves at once."""
    return target.parent / f".{target.name}{_RESTORING}{secrets.token_hex(4)}"


async def restore_to(
    store: CheckpointStore, record: CommitRecord, target: Path, build: Path, clock: Clock
) -> Manifest:
    """Make `target` hold this checkpoint and TensorFlow's `checkpoint` file, verified, or nothing.

    Args:
        store: where it is.
        record: what it is.
        target: absent, or an empty directory; its parents are made.
        build: from `building_directory`; whoever is curious sees there how far it is.
        clock: for giving up.

    Raises:
        Conflict: `target` holds something.
        BadCheckpoint: what the store has is not what was committed.
        StoreUnreachable, Refused: the store, or the disk, could not be used.
    """
    check_target(target)
    with mapped_errors(f"make {target.parent}"):
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        manifest = await Stager(store, build.parent / f"{build.name}.none", clock).fetch(
            record, build, QUIET_MS
        )
        with mapped_errors(f"move a checkpoint to {target}"):
            files.sync_tree(build)
            _move_in(build, target)
        return manifest
    finally:
        with suppress(OSError):
            files.remove_tree(build)


def bytes_below(directory: Path) -> int:
    """How much has arrived there so far, while files come and change their names. Blocking."""
    total = 0
    with suppress(OSError):
        for path in directory.rglob("*"):
            total += path.lstat().st_size if path.is_file() else 0
    return total


def _move_in(build: Path, target: Path) -> None:
    with suppress(FileNotFoundError):
        target.rmdir()
    files.move_directory(build, target)


def find_candidate(directory: Path, prefix: str, names: Sequence[str], step: int | None) -> Candidate:
    """The checkpoint in a directory. Blocking.

    Args:
        directory: where.
        prefix: of a tensor bundle; empty for the one that the `checkpoint` file names, else the only.
        names: of files that are not a tensor bundle; then there is no prefix.
        step: which it has; None for the number at the end of the prefix.

    Raises UserError that says what to give.
    """
    with mapped_errors(f"look into {directory}"):
        there = sorted(entry.name for entry in os.scandir(directory) if entry.is_file())
        if names:
            chosen, prefix = tuple(sorted({check_file_name(name, version=1) for name in names})), ""
            if missing := [name for name in chosen if not (directory / name).is_file()]:
                raise UserError(f"{directory} has no file {missing[0]!r}")
        else:
            state = Eyes(directory).look().states.get("")
            named = state.prefix if state is not None and "/" not in state.prefix else ""
            prefix = prefix or named or _only_prefix(directory, there)
            found = complete_set(prefix, there)
            if found is None:
                raise UserError(
                    f"{directory} has no complete checkpoint {prefix!r}: its index or a shard is missing"
                )
            chosen = found.names
    number = step if step is not None else step_of(prefix)
    if number is None:
        raise UserError("nothing tells the step of this checkpoint; give it with --step")
    return Candidate(directory, prefix, chosen, number)


def _only_prefix(directory: Path, names: Collection[str]) -> str:
    prefixes = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    if len(prefixes) != 1:
        has = (
            f"has {len(prefixes)} checkpoints of TensorFlow"
            if prefixes
            else "has no checkpoint of TensorFlow"
        )
        how = "name one with --prefix" if prefixes else "name the files of another kind with --file"
        raise UserError(f"{directory} {has}; {how}")
    return prefixes[0]


def describe(found: Candidate, place: ImportPlace, host: str, wall_ms: int, moved: Moved) -> Manifest:
    """Read all of a candidate, and make the manifest that it gets. Blocking.

    Raises BadCheckpoint when it is not whole, UserError when it cannot be a checkpoint of ours.
    """
    with mapped_errors(f"read {found.directory}"):
        verified = verify_files(found.directory, found.prefix, found.names, moved=moved)
    manifest = Manifest(
        job_uuid=place.job_uuid,
        job=place.job,
        ref=place.ref,
        parent=None,
        node=host,
        incarnation=IMPORTED,
        prefix=found.prefix,
        wall_ms=wall_ms,
        files=verified.files,
        tensors=verified.tensors,
        tf_version=verified.tf_version,
    )
    try:
        return parse_manifest(encode_manifest(manifest))
    except BadCheckpoint as error:
        raise UserError(f"{found.directory} cannot be a checkpoint: {error}") from error


def _new_id() -> str:
    return secrets.token_hex(8)


async def bring(
    store: CheckpointStore,
    found: Candidate,
    manifest: Manifest,
    moved: Moved,
    new_id: Callable[[], str] = _new_id,
) -> str:
    """Bring an import into the store, under an id of its own; returns the directory that is complete there.

    It counts only when the leader has read it back and recorded it. Raises StoreUnreachable, Refused, and
    BadCheckpoint when a file has changed since it was described.
    """
    import_id = new_id()
    staging = staging_path(manifest.ref, import_id)
    path = stored_path(manifest.ref, import_id)
    raw = encode_manifest(manifest)
    try:
        taken = TakenCheckpoint(found.directory, manifest, raw)
        await Uploader(store, Verify.CRC).publish(taken, staging, moved)
        if manifest.state:
            await store.write_bytes(f"{staging}/{STATE_FILE}", manifest.state)
        await store.write_bytes(f"{staging}/{MANIFEST_FILE}", raw)
        await store.rename(staging, path)
    except TfSupervisorError:
        with suppress(TfSupervisorError):
            await store.delete_tree(staging)
        raise
    return path
