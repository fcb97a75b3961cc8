"""Shipped code: the parts that jobs still need, and the removal of the others."""

from __future__ import annotations

from supervisor.contract import keys
from supervisor.contract.boundaries import Delete, DeletePrefix
from supervisor.control.decide.plan import Action, unchanged
from supervisor.control.decide.snapshot import Snapshot

KEPT_UNUSED_MS = 600_000
"""An upload comes before the job that needs it; both must be over in this time."""


def digests_in_use(snap: Snapshot) -> frozenset[str]:
    """The digests in job files and plans: nodes may ask for their archives again."""
    named = {job.record.value.spec.code.digest for job in snap.jobs.values() if job.record.value.spec.code}
    planned = {held.value.code for job in snap.jobs.values() for held in job.plans.values()}
    return frozenset(named | planned)


def tidy(snap: Snapshot) -> list[Action]:
    """Remove archives, whole or half uploaded, that nobody has needed or touched for a while.

    Who submits a job compares the archive's record in the same transaction, so that it cannot come to need
    one that goes at that moment.
    """
    if not snap.codes or snap.aside:
        return []  # what a job needs that is set aside is not known
    in_use = snap.once(digests_in_use)
    return [
        Action(
            kind="code_removed",
            job="",
            text=f"code {digest[:12]} is removed from etcd: no job refers to it",
            compares=(unchanged(held),),
            ops=(Delete(held.key), DeletePrefix(keys.chunks_of(digest))),
            fields={"digest": digest},
        )
        for digest, held in snap.codes.items()
        if digest not in in_use and snap.now_ms - held.seen_ms >= KEPT_UNUSED_MS
    ]
