"""Leftovers: directories in a job's store that no record names, and whether they may be deleted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from recovery.formats.paths import STAGING, TRASH, stored_ref
from recovery.logs.segments import LOGS
from recovery.mount.layout import LIVE
from recovery.outputs.index import OUTPUTS
from recovery.retention.collect import Staged, StoreScan, finished_live
from recovery.retention.pins import is_marked
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord
from supervisor.contract.desired import JobSwitch
from supervisor.contract.views.checkpoints import Thing


@dataclass(frozen=True, slots=True)
class Leftover:
    """A directory that no record names. `why` is one word for the reason to delete or keep it."""

    thing: Thing
    path: str
    goes: bool
    why: str
    ref: CheckpointRef | None = None
    size: int = 0


async def leftovers(
    store: CheckpointStore,
    scan: StoreScan,
    records: Iterable[CommitRecord],
    switch: JobSwitch,
    staging: Iterable[Staged],
    *,
    abandoned: Collection[str],
    former: Mapping[str, bool],
    records_lost: bool,
) -> tuple[Leftover, ...]:
    """The leftovers of a store, complete directories first.

    Args:
        store: the job's store.
        scan: a scan of that store, made before `records` and `switch` were read.
        records: the job's commit records.
        switch: the job's switch.
        staging: the directories in `.staging`.
        abandoned: those of them that are deleted.
        former: UUID of a finished life of the job -> whether its grace is over too.
        records_lost: complete directories may be the only remains of the job.
    """
    named = {record.path for record in records}
    found = []
    for one in scan.found:
        manifest = one.manifest
        if one.path in named:
            continue
        if manifest.job_uuid in former:
            goes = former[manifest.job_uuid] and not records_lost
            # Its record went with its life; the note beside it is all that tells what an operator asked for.
            pinned = await is_marked(store, one.path)
            word = "pinned" if pinned else "former_life" if goes else "grace"
            goes = goes and not pinned
            found.append(Leftover(Thing.FOREIGN, one.path, goes, word, manifest.ref, manifest.size))
            continue
        if manifest.job_uuid != switch.job_uuid:
            found.append(Leftover(Thing.FOREIGN, one.path, False, "other_job", manifest.ref, manifest.size))
            continue
        old = manifest.ref.generation < switch.generation and not records_lost
        why = "records_lost" if records_lost else "never_committed" if old else "in_force"
        found.append(Leftover(Thing.UNCOMMITTED, one.path, old, why, manifest.ref, manifest.size))
    found += [
        Leftover(Thing.FOREIGN, f"{parent}/{uuid}", goes, "former_life" if goes else "grace")
        for parent in (OUTPUTS, LOGS)
        for uuid in (await store.list(parent)).directories
        if uuid in former
        for goes in [former[uuid] and not records_lost]
    ]
    found += [
        Leftover(Thing.UNREADABLE, path, False, "unreadable", stored_ref(path))
        for path in scan.unreadable
        if path not in named
    ]
    found += [
        Leftover(Thing.TRASH, f"{TRASH}/{name}", True, "collecting", stored_ref(name))
        for name in (await store.list(TRASH)).directories
    ]
    over = () if records_lost else finished_live(scan, switch)
    found += [
        Leftover(Thing.LIVE, path, path in over, "generation_over" if path in over else "in_use")
        for path in (f"{LIVE}/{name}" for name in scan.live)
    ]
    found += [
        Leftover(Thing.STAGING, f"{STAGING}/{each.name}", each.name in abandoned, _why(each, abandoned))
        for each in staging
    ]
    return tuple(found)


def _why(staged: Staged, abandoned: Collection[str]) -> str:
    if staged.name in abandoned:
        return "abandoned"
    if staged.over:
        return "records_lost"
    return "in_use" if staged.linked else "unreadable" if staged.over is None else "in_force"
