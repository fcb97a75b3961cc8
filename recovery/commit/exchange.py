"""Export of a checkpoint to a user's directory, and import from one.

Both directions read every byte. An export is compared with its manifest. An import is tested by its kind of
file.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from recovery.commit.outbox import TakenCheckpoint
from recovery.commit.sight import Eyes, relative_states
from recovery.commit.stage import Stager
from recovery.commit.upload import Uploader
from recovery.commit.verify import read_counters, verify_files
from recovery.families.families import Family, family_of
from recovery.formats.manifest import (
    MANIFEST_FILE,
    Manifest,
    ManifestFile,
    check_file_name,
    crc32c_of_bytes,
    encode_manifest,
    parse_manifest,
)
from recovery.formats.paths import staging_path, stored_path
from recovery.formats.steps import step_of_save
from recovery.formats.tf_files import STATE_FILE, complete_set, number_of
from recovery.io import files, trees
from recovery.io.files import mapped_errors
from supervisor.contract.boundaries import CheckpointStore, Clock, Moved
from supervisor.contract.checkpoint import CommitRecord, Verify
from supervisor.contract.errors import BadCheckpoint, Conflict, TfSupervisorError, UserError
from supervisor.contract.views.checkpoints import ImportPlace

QUIET_MS = 120_000
"""Milliseconds without progress after which the store counts as unreachable."""

IMPORTED = "import"
_RESTORING = ".restoring-"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint in a user's directory, as a program saves it.

    Attributes:
        prefix: the prefix of its tensor bundle, or of one of several; empty without any.
        states: path -> TensorFlow's `checkpoint` file, made anew.
    """

    directory: Path
    prefix: str
    names: tuple[str, ...]
    step: int
    states: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The version of its manifest: 1 for a single bundle at the top, and for files that are no bundle."""
        names = (*self.names, *self.states)
        alone = {self.prefix} == {each.rpartition(".index")[0] for each in names if each.endswith(".index")}
        flat = alone and "/" not in self.prefix
        return 1 if flat or (not self.prefix and STATE_FILE not in names) else 2


def check_target(target: Path) -> None:
    """Raise Conflict unless `target` is absent or an empty directory. Blocking."""
    with mapped_errors(f"look into {target}"):
        if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
            raise Conflict(f"{target} exists and is not an empty directory; give another --to")


def building_directory(target: Path) -> Path:
    """The directory beside `target` in which a checkpoint is put together, so that one rename moves it
    there.
    """
    return target.parent / f".{target.name}{_RESTORING}{secrets.token_hex(4)}"


async def restore_to(
    store: CheckpointStore, record: CommitRecord, target: Path, build: Path, clock: Clock
) -> Manifest:
    """Make `target` hold this checkpoint and TensorFlow's `checkpoint` file, verified, or nothing.

    Args:
        store: the store that holds it.
        record: its commit record.
        target: absent, or an empty directory; its parents are made.
        build: from `building_directory`; its size shows the progress.
        clock: the clock for giving up.

    Raises:
        Conflict: `target` holds something.
        BadCheckpoint: the store's files differ from the committed ones.
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
            trees.remove_tree(build)


def bytes_below(directory: Path) -> int:
    """Bytes that have arrived so far, while files come and are renamed. Blocking."""
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
        directory: the user's directory.
        prefix: the path of one tensor bundle; empty for all: of each family the save that a `checkpoint`
            file names, else the only one.
        names: names of files that are no tensor bundle; then there is no prefix.
        step: its step; None for the step in its name or its tensors.

    Raises UserError that names the missing option.
    """
    with mapped_errors(f"look into {directory}"):
        if names:
            own = tuple(sorted({check_file_name(name, version=1) for name in names}))
            if missing := [name for name in own if not (directory / name).is_file()]:
                raise UserError(f"{directory} has no file {missing[0]!r}")
            found = Candidate(directory, "", own, -1 if step is None else step)
        else:
            found = _bundles_in(directory, prefix, step)
    if found.step < 0:
        raise UserError("nothing tells the step of this checkpoint; give it with --step")
    return found


def _bundles_in(directory: Path, prefix: str, step: int | None) -> Candidate:
    sight = Eyes(directory).look()
    there = [mark.name for mark in sight.marks]
    named = {state.prefix for state in sight.states.values()}
    prefixes = [prefix] if prefix else _one_of_each_family(directory, there, named)
    sets = [complete_set(each, there) for each in prefixes]
    chosen = tuple(sorted(name for found in sets if found is not None for name in found.names))
    for each, found in zip(prefixes, sets, strict=True):
        if found is None:
            raise UserError(
                f"{directory} has no complete checkpoint {each!r}: its index or a shard is missing"
            )
    state = sight.states.get("")
    at = prefixes.index(state.prefix) if state is not None and state.prefix in prefixes else 0
    lead, own = prefixes[at], sets[at]
    assert own is not None, f"{lead} was found to be complete"
    told = step if step is not None else step_of_save(number_of(lead), read_counters(directory, own))
    return Candidate(
        directory, lead, chosen, -1 if told is None else told, relative_states(directory, chosen)
    )


def _one_of_each_family(directory: Path, names: Sequence[str], named: set[str]) -> list[str]:
    families: dict[Family, list[str]] = {}
    for name in names:
        if name.endswith(".index"):
            prefix = name.removesuffix(".index")
            families.setdefault(family_of(prefix), []).append(prefix)
    if not families:
        raise UserError(
            f"{directory} has no checkpoint of TensorFlow; name the files of another kind with --file"
        )
    every = [prefix for prefixes in families.values() for prefix in prefixes]
    if len(every) > 1 and not named.intersection(every):
        raise UserError(f"{directory} has {len(every)} checkpoints of TensorFlow; name one with --prefix")
    found = []
    for family, prefixes in sorted(families.items()):
        chosen = [each for each in prefixes if each in named] or prefixes
        if len(chosen) != 1:
            raise UserError(f"{directory} has {len(prefixes)} checkpoints {family}; name one with --prefix")
        found += chosen
    return found


def describe(found: Candidate, place: ImportPlace, host: str, wall_ms: int, moved: Moved) -> Manifest:
    """Read all of a candidate, and make its manifest. Blocking.

    Raises BadCheckpoint if it is not whole, UserError if no manifest can describe it.
    """
    with mapped_errors(f"read {found.directory}"):
        alone = found.prefix if found.version == 1 else ""
        verified = verify_files(found.directory, alone, found.names, moved=moved)
    states = () if found.version == 1 else _state_files(found)
    manifest = Manifest(
        job_uuid=place.job_uuid,
        job=place.job,
        ref=place.ref,
        parent=None,
        node=host,
        incarnation=IMPORTED,
        prefix=found.prefix,
        wall_ms=wall_ms,
        files=tuple(sorted((*verified.files, *states))),
        tensors=verified.tensors,
        tf_version=verified.tf_version,
        version=found.version,
    )
    try:
        return parse_manifest(encode_manifest(manifest))
    except BadCheckpoint as error:
        raise UserError(f"{found.directory} cannot be a checkpoint: {error}") from error


def _state_files(found: Candidate) -> list[ManifestFile]:
    return [ManifestFile(name, len(data), crc32c_of_bytes(data)) for name, data in found.states.items()]


def _new_id() -> str:
    return secrets.token_hex(8)


async def bring(
    store: CheckpointStore,
    found: Candidate,
    manifest: Manifest,
    moved: Moved,
    new_id: Callable[[], str] = _new_id,
) -> str:
    """Bring an import into the store, under an id of its own; returns its complete directory there.

    It is a checkpoint of the job only after the leader has read it back and recorded it. Raises
    StoreUnreachable, Refused, and BadCheckpoint when a file has changed since it was described.
    """
    import_id = new_id()
    staging = staging_path(manifest.ref, import_id)
    path = stored_path(manifest.ref, import_id)
    raw = encode_manifest(manifest)
    try:
        own = tuple(file for file in manifest.files if file.name not in found.states)
        taken = TakenCheckpoint(found.directory, replace(manifest, files=own), raw)
        await Uploader(store, Verify.CRC).publish(taken, staging, moved)
        states = {STATE_FILE: manifest.state} if manifest.state else {}
        for name, data in (states if manifest.version == 1 else found.states).items():
            await store.write_bytes(f"{staging}/{name}", data)
        await store.write_bytes(f"{staging}/{MANIFEST_FILE}", raw)
        await store.rename(staging, path)
    except TfSupervisorError:
        with suppress(TfSupervisorError):
            await store.delete_tree(staging)
        raise
    return path
