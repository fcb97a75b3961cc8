"""The leader's work in a store: scan it, and delete directories that are no longer needed (rule 9)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from recovery.formats.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest, parse_manifest
from recovery.formats.paths import STAGING, TRASH, stored_ref
from recovery.mount.layout import LIVE, links_path, live_generation, live_path, parse_place
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.desired import JobSwitch
from supervisor.contract.errors import (
    BadCheckpoint,
    Conflict,
    IncompatibleRecord,
    NotFound,
    StoreUnreachable,
    UserError,
)

_READERS = 8


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A complete directory in the store. Only etcd shows whether it is committed."""

    path: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class StoreScan:
    """All directories in a store with names of checkpoints.

    Attributes:
        found: path -> the complete checkpoint there.
        unreadable: directories with a checkpoint's name, and no manifest of it that this release can read.
        live: names of the directories that mounted generations write to.
    """

    found: tuple[StoredCheckpoint, ...]
    unreadable: tuple[str, ...] = ()
    live: tuple[str, ...] = ()

    @property
    def max_generation(self) -> int:
        """The highest generation that left anything, readable or not; 0 when nothing did (rule 12)."""
        refs = [stored_ref(name) for name in self.unreadable]
        saved = [ref.generation for ref in (*(one.manifest.ref for one in self.found), *filter(None, refs))]
        return max((*saved, *(live_generation(name) or 0 for name in self.live)), default=0)


@dataclass(frozen=True, slots=True)
class Staged:
    """A directory in `.staging`, of a commit that runs or was interrupted.

    Attributes:
        over: its generation is over, so it can never be committed (rule 7); None for a foreign name.
        linked: a mounted generation that may be in use shows it, so it may be the only copy of a save.
    """

    name: str
    over: bool | None
    linked: bool = False


async def scan_store(store: CheckpointStore) -> StoreScan:
    """Read every manifest. Raises StoreUnreachable, also for a root that was never prepared, and Refused."""
    names = [name for name in (await store.list("")).directories if stored_ref(name) is not None]
    limit = asyncio.Semaphore(_READERS)

    async def read(name: str) -> StoredCheckpoint | None:
        async with limit:
            try:
                raw = await store.read_bytes(f"{name}/{MANIFEST_FILE}", MAX_MANIFEST_BYTES)
                manifest = parse_manifest(raw)
            except (NotFound, UserError, BadCheckpoint, IncompatibleRecord):
                return None
            # Copied from another directory, or made up: nothing that it says can be relied on.
            return StoredCheckpoint(name, manifest) if manifest.ref == stored_ref(name) else None

    results = await asyncio.gather(*(read(name) for name in names))
    unreadable = tuple(name for name, result in zip(names, results, strict=True) if result is None)
    live = tuple(name for name in (await store.list(LIVE)).directories if live_generation(name) is not None)
    return StoreScan(tuple(result for result in results if result is not None), unreadable, live)


async def delete_checkpoint(store: CheckpointStore, record: CommitRecord) -> None:
    """Delete the directory of a record that is `collecting`. Safe to repeat after any error.

    It is renamed away first, so that its place never holds a part of it. The caller deletes the record
    afterwards.
    """
    assert record.state is CommitState.COLLECTING, f"{record.ref} is {record.state.value}: rule 9"
    await delete_stored(store, record.path)


async def delete_uncommitted(
    store: CheckpointStore, scan: StoreScan, records: Iterable[CommitRecord], switch: JobSwitch
) -> tuple[CheckpointRef, ...]:
    """Delete complete directories of this job that no record names and none ever will; returns their refs.

    Only generations before the one in force are covered: a later commit of theirs compares the generation and
    fails. `records` must not have been read before `switch`.
    """
    named = {record.path for record in records}
    gone = []
    for one in scan.found:
        manifest = one.manifest
        if (
            one.path not in named
            and manifest.job_uuid == switch.job_uuid
            and manifest.ref.generation < switch.generation
        ):
            await delete_stored(store, one.path)
            gone.append(manifest.ref)
    return tuple(gone)


def finished_live(scan: StoreScan, switch: JobSwitch) -> tuple[str, ...]:
    """Directories of mounted generations that no task of the job may need: of generations before the one in
    force, and of plans that were given up for it.

    Commits of those generations lie in other directories.
    """
    in_force = "" if switch.phase.ended else live_path(switch.generation, switch.plan_id)
    paths = {f"{LIVE}/{name}": live_generation(name) or 0 for name in scan.live}
    return tuple(
        path for path, generation in paths.items() if generation <= switch.generation and path != in_force
    )


async def read_staging(store: CheckpointStore, scan: StoreScan, switch: JobSwitch) -> tuple[Staged, ...]:
    """The directories in `.staging`, sorted by name."""
    names = (await store.list(STAGING)).directories
    over = {name: ref.generation < switch.generation for name in names if (ref := stored_ref(name))}
    if all(over.get(name, True) for name in names):
        return tuple(Staged(name, over=over.get(name)) for name in names)
    linked = await _linked(store, scan, switch)
    return tuple(Staged(name, over=over.get(name), linked=name in linked) for name in names)


async def _linked(store: CheckpointStore, scan: StoreScan, switch: JobSwitch) -> frozenset[str]:
    """Names in `.staging` that a mounted generation links to, if that generation may be in use."""
    over = finished_live(scan, switch)
    found: set[str] = set()
    for live in (f"{LIVE}/{name}" for name in scan.live):
        names = (await store.list(links_path(live))).directories if live not in over else ()
        for name in names:
            places = (await store.list(f"{links_path(live)}/{name}")).directories
            found.update(place.staged for each in places if (place := parse_place(each)) is not None)
    return frozenset(found)


async def clean_store(store: CheckpointStore, abandoned: Iterable[str]) -> None:
    """Delete the remains of interrupted collections, and these directories in `.staging`.

    A commit whose staging directory is deleted fails, and is tried again from the node's own copy. A mounted
    job has no other copy, so directories that its mounts link to are never in `abandoned` while its
    generation lasts.
    """
    for name in (await store.list(TRASH)).directories:
        with effect("collect.empty_trash", StoreUnreachable):
            await store.delete_tree(f"{TRASH}/{name}")
    for name in abandoned:
        with effect("collect.delete_staging", StoreUnreachable):
            await store.delete_tree(f"{STAGING}/{name}")


async def delete_stored(store: CheckpointStore, path: str) -> None:
    """Delete a directory that no record names or will name.

    After an error its place never holds a part of it.
    """
    # By its name alone, also of one below another directory: that one would be left in the trash.
    trash = f"{TRASH}/{PurePosixPath(path).name}"
    try:
        with effect("collect.rename", StoreUnreachable):
            await store.rename(path, trash)
    except NotFound:
        pass  # an earlier call got this far
    except Conflict:
        with effect("collect.delete_old_trash", StoreUnreachable):
            await store.delete_tree(trash)
        with effect("collect.rename_again", StoreUnreachable):
            await store.rename(path, trash)
    with effect("collect.delete", StoreUnreachable):
        await store.delete_tree(trash)
