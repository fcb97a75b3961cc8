"""Retention: the committed checkpoints that stay, with their reasons, and those to collect (rule 9). Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from recovery.formats.lineage import on_lineage
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState, Verify
from supervisor.contract.desired import JobSwitch

ALWAYS_KEPT = 2
DAY_MS = 24 * 3600 * 1000
GRACE_MS = 3 * DAY_MS
LONG_AGO_MS = 1 << 60

Age = Callable[[CommitRecord], int]
"""How long ago, in milliseconds, a record was committed, or quarantined where it is. Less is safe."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The checkpoints that a job keeps beside those that always stay.

    Attributes:
        keep: committed checkpoints on the lineage, newest first; never fewer than `ALWAYS_KEPT`.
        keep_every: on the lineage, the first one of each so many steps; 0: none.
        keep_for_ms: on the lineage, those that were committed less long ago; 0: none.
        grace_ms: the time that a checkpoint stays after it was quarantined, or, off the lineage, after it was
            committed; in both cases it stays as long after `branched_age_ms` too.
        branched_age_ms: the time since the last start of a generation, which may have gone back to an older
            checkpoint.
    """

    keep: int
    grace_ms: int = GRACE_MS
    branched_age_ms: int = LONG_AGO_MS
    keep_every: int = 0
    keep_for_ms: int = 0


class Keep(Enum):
    """Reasons for a checkpoint to stay."""

    BASE = "base"
    PINNED = "pinned"
    NEWEST = "newest"
    VERIFIED = "verified"
    EVERY = "every"
    YOUNG = "young"
    SUSPECTED = "suspected"
    GRACE = "grace"
    RECORDS_LOST = "records_lost"


class Collect(Enum):
    """Reasons for a checkpoint to be collected."""

    SURPLUS = "surplus"
    OFF_LINEAGE = "off_lineage"
    QUARANTINED = "quarantined"
    COLLECTING = "collecting"


@dataclass(frozen=True, slots=True)
class Fate:
    """The decision about a checkpoint, with its reason."""

    record: CommitRecord
    why: Keep | Collect

    @property
    def goes(self) -> bool:
        """Whether it is collected."""
        return isinstance(self.why, Collect)


def collectable(
    records: Iterable[CommitRecord],
    switch: JobSwitch,
    asked: Collection[CheckpointRef],
    policy: RetentionPolicy,
    age: Age,
) -> tuple[CommitRecord, ...]:
    """Records that a transaction under the leader token may turn into `collecting` now, oldest first."""
    found = fates(records, switch, asked, policy, age)
    return tuple(fate.record for fate in found if fate.goes and fate.why is not Collect.COLLECTING)


def fates(
    records: Iterable[CommitRecord],
    switch: JobSwitch,
    asked: Collection[CheckpointRef],
    policy: RetentionPolicy,
    age: Age,
) -> tuple[Fate, ...]:
    """The decision about each checkpoint of the job, oldest first.

    The base of the switch, checkpoints in `asked` and pinned ones always stay. Every committed checkpoint was
    verified as its job asks when it was committed, so that the newest committed ones are the newest verified
    ones; where a job asks for less than reading back, the newest two that were read back stay too. A
    checkpoint that is only suspected may still be cleared: it stays, at any age, until the job has a later
    step on its lineage.
    """
    mine = sorted((each for each in records if each.job_uuid == switch.job_uuid), key=lambda each: each.ref)
    bases = {switch.base, switch.closing.base if switch.closing else None, *asked}
    lineage = on_lineage(mine, switch.job_uuid, switch.generation, switch.base)
    healthy = [record for record in lineage if record.state is CommitState.COMMITTED]
    kept = _kept(healthy, policy, age)
    surplus = {record.ref for record in healthy} - kept.keys()
    furthest = max((record.ref.step for record in healthy), default=-1)

    def why(record: CommitRecord) -> Keep | Collect:
        if record.state is CommitState.COLLECTING:
            return Collect.COLLECTING
        if record.pinned or record.ref in bases:
            return Keep.PINNED if record.pinned else Keep.BASE
        if record.ref in kept:
            return kept[record.ref]
        if record.suspected and record.ref.step >= furthest:
            return Keep.SUSPECTED
        if record.ref in surplus or min(age(record), policy.branched_age_ms) > policy.grace_ms:
            return _reason(record, surplus)
        return Keep.GRACE

    return tuple(Fate(record, why(record)) for record in mine)


def _kept(healthy: list[CommitRecord], policy: RetentionPolicy, age: Age) -> dict[CheckpointRef, Keep]:
    """The committed checkpoints of the lineage that stay, with the strongest reason for each."""
    newest = healthy[: max(policy.keep, ALWAYS_KEPT)]
    verified = [record for record in healthy if record.verified is Verify.READBACK][:ALWAYS_KEPT]
    first_of: dict[int, CommitRecord] = {}
    if policy.keep_every:
        for record in healthy:
            first_of[record.ref.step // policy.keep_every] = record
    young = [each for each in healthy if policy.keep_for_ms and age(each) < policy.keep_for_ms]
    found: dict[CheckpointRef, Keep] = {}
    for group, why in (
        (newest, Keep.NEWEST),
        (verified, Keep.VERIFIED),
        (first_of.values(), Keep.EVERY),
        (young, Keep.YOUNG),
    ):
        for record in group:
            found.setdefault(record.ref, why)
    return found


def _reason(record: CommitRecord, surplus: Collection[CheckpointRef]) -> Collect:
    if record.ref in surplus:
        return Collect.SURPLUS
    return Collect.QUARANTINED if record.state is CommitState.QUARANTINED else Collect.OFF_LINEAGE
