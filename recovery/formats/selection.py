"""Selection of the checkpoint that the next generation starts from (rule 8). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recovery.formats.lineage import on_lineage
from supervisor.contract.checkpoint import CommitRecord, CommitState
from supervisor.contract.desired import JobSwitch


@dataclass(frozen=True, slots=True)
class FromScratch:
    """No checkpoint was ever committed for this job."""


@dataclass(frozen=True, slots=True)
class NoneLeft:
    """There were checkpoints and none can be restored: the job stops for the operator and does not start from
    scratch.

    `newest_bad` is the newest unusable one on the lineage, if its record is still there.
    """

    newest_bad: CommitRecord | None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The checkpoint to restore."""

    record: CommitRecord


Selection = FromScratch | NoneLeft | Chosen


def candidates(records: Iterable[CommitRecord], switch: JobSwitch) -> tuple[CommitRecord, ...]:
    """Committed checkpoints on the lineage of the generation in force, newest first."""
    lineage = on_lineage(records, switch.job_uuid, switch.generation, switch.base)
    return tuple(record for record in lineage if record.state is CommitState.COMMITTED)


def select_base(records: Iterable[CommitRecord], switch: JobSwitch) -> Selection:
    """The base of the next generation after `switch`."""
    mine = tuple(record for record in records if record.job_uuid == switch.job_uuid)
    usable = candidates(mine, switch)
    if usable:
        return Chosen(usable[0])
    if not mine and switch.base is None:
        return FromScratch()
    lineage = on_lineage(mine, switch.job_uuid, switch.generation, switch.base)
    return NoneLeft(lineage[0] if lineage else None)
