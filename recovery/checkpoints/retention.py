"""Which committed checkpoints may be collected (rule 9). Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from recovery.checkpoints.lineage import on_lineage
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.desired import JobSwitch

ALWAYS_KEPT = 2
DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """`keep`: committed checkpoints on the lineage, newest first; never fewer than `ALWAYS_KEPT`.

    `grace_ms`: how long one that is off the lineage, or quarantined, stays after it was committed, or after
    `branched_wall_ms`, the last start of a generation, which may have gone back to an older one. It is
    measured on the wall clocks of the hosts, which is good enough for days and decides nothing else. One that
    is only suspected stays until the job has a later step on its lineage, however old it is: it may be
    cleared yet.
    """

    keep: int
    grace_ms: int = 3 * DAY_MS
    branched_wall_ms: int = 0


def collectable(
    records: Iterable[CommitRecord],
    switch: JobSwitch,
    plan_bases: Collection[CheckpointRef],
    policy: RetentionPolicy,
    wall_ms: int,
) -> tuple[CommitRecord, ...]:
    """Records that a transaction under the leader token may turn into `collecting` now, oldest first.

    Never the base of the switch or of a plan in `plan_bases`, nor a pinned one. Every committed checkpoint
    was verified when it was committed, so the newest committed ones are the newest verified ones.
    """
    mine = [record for record in records if record.job_uuid == switch.job_uuid]
    bases = {switch.base, switch.closing.base if switch.closing else None, *plan_bases}
    lineage = on_lineage(mine, switch.job_uuid, switch.generation, switch.base)
    healthy = [record.ref for record in lineage if record.state is CommitState.COMMITTED]
    kept = set(healthy[: max(policy.keep, ALWAYS_KEPT)])
    surplus = set(healthy) - kept
    furthest = max((ref.step for ref in healthy), default=-1)

    def may_go(record: CommitRecord) -> bool:
        if record.state is CommitState.COLLECTING or record.pinned or record.ref in bases:
            return False
        if record.ref in kept or (record.suspected and record.ref.step >= furthest):
            return False
        since_ms = max(record.wall_ms, policy.branched_wall_ms)
        return record.ref in surplus or wall_ms - since_ms > policy.grace_ms

    return tuple(sorted((record for record in mine if may_go(record)), key=lambda record: record.ref))
