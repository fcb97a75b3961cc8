"""Lineage: base -> commits of a generation -> base of the next. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.contract.checkpoint import CheckpointRef, CommitRecord


def on_lineage(
    records: Iterable[CommitRecord], job_uuid: str, generation: int, base: CheckpointRef | None
) -> tuple[CommitRecord, ...]:
    """The records, in any state, that `generation`, which started from `base`, descends from; newest first.

    All commits of `generation` are on it; of its base's generation those up to the base; and so on back. The
    lineage ends at a generation whose base no record names: retention collects the oldest first, so nothing
    that is worth keeping lies behind such a gap.
    """
    by_generation: dict[int, list[CommitRecord]] = {}
    for record in records:
        if record.job_uuid == job_uuid:
            by_generation.setdefault(record.ref.generation, []).append(record)
    found = sorted(by_generation.pop(generation, ()), key=_by_ref, reverse=True)
    ancestor = base
    while ancestor is not None:
        family = by_generation.pop(ancestor.generation, ())
        older = sorted((record for record in family if record.ref <= ancestor), key=_by_ref, reverse=True)
        found += older
        ancestor = older[0].parent if older else None
    return tuple(found)


def _by_ref(record: CommitRecord) -> CheckpointRef:
    return record.ref
