"""Commit records that the leader makes itself: of an import, and anew after etcd was lost. Pure.

Rule 7 fences a commit by the generation in force and by the agent's incarnation. Here nobody trains: the job
has ended. So each adoption takes a generation of its own, above all that were ever seen (rule 12): the switch
names it in the same transaction, and what a late agent of an earlier generation still wants to commit is
refused by the compare that it always makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from recovery.formats.lineage import on_lineage
from recovery.formats.manifest import Manifest, crc32c_of_bytes, encode_manifest
from supervisor.contract import keys
from supervisor.contract.boundaries import Absent, Compare, Op
from supervisor.contract.checkpoint import CheckpointRef, CommitHead, CommitRecord, CommitState, Verify
from supervisor.contract.errors import Conflict
from supervisor.control.decide.checkpoints.collecting import ADOPTED
from supervisor.control.decide.checkpoints.commit_list import head_unchanged, next_head
from supervisor.control.decide.plan import Action, put, short, unchanged
from supervisor.control.decide.snapshot import JobState
from supervisor.control.decide.switch import Transition, turn

RECORDS_AT_ONCE = 80
"""In one transaction, beside the switch and the head."""


@dataclass(frozen=True, slots=True)
class Read:
    """A complete directory that was read back. `bad` says what is wrong with it; empty: it is whole."""

    path: str
    manifest: Manifest
    bad: str = ""


def check_idle(job: JobState, verb: str) -> None:
    """Raise Conflict unless the job has ended and nobody has asked it to start again."""
    phase = job.switch.value.phase
    if not phase.ended:
        raise Conflict(
            f"job {job.name} is {phase.value}; `{verb}` works on a job that does not run: "
            f"`supervisorctl stop {job.name}` first, or submit it with --hold"
        )
    if job.switch.value.held:
        raise Conflict(
            f"{', '.join(job.switch.value.held)} of job {job.name} are kept for inspection; "
            f"`supervisorctl stop {job.name}` ends them"
        )
    if job.intent.value.restart_serial > job.switch.value.restart_serial:
        raise Conflict(f"job {job.name} is about to start again; stop it first")


def next_generation(job: JobState, seen: int = 0) -> int:
    """A generation that no record and no manifest has, `seen` being the highest of the manifests."""
    return max(job.switch.value.generation, job.record.value.generation_floor, seen) + 1


def record_of(read: Read, verified: Verify, wall_ms: int | None = None) -> CommitRecord:
    """The record that a directory would have had, or has lost; a bad one is quarantined."""
    manifest = read.manifest
    return CommitRecord(
        job_uuid=manifest.job_uuid,
        ref=manifest.ref,
        parent=manifest.parent,
        path=read.path,
        size=manifest.size,
        manifest_crc32c=crc32c_of_bytes(encode_manifest(manifest)),
        node=manifest.node,
        incarnation=manifest.incarnation,
        wall_ms=manifest.wall_ms if wall_ms is None else wall_ms,
        state=CommitState.QUARANTINED if read.bad else CommitState.COMMITTED,
        reason=short(f"failed verification: {read.bad}") if read.bad else "",
        verified=verified,
        tensors=manifest.tensors,
    )


def adopt(job: JobState, read: Read, wall_ms: int) -> Action:
    """Make an import the newest checkpoint of the job: the next start begins from it.

    It has no parent. The job's earlier checkpoints are off its lineage from now on, and stay for the grace of
    such checkpoints.
    """
    record = replace(record_of(read, Verify.READBACK, wall_ms), parent=None, incarnation=ADOPTED)
    switch = turn(job.switch, Transition.IMPORT, generation=record.ref.generation, base=None)
    key = keys.commit(job.name, record.ref)
    text = f"checkpoint {record.ref} was imported; the next start begins from it"
    compares: tuple[Compare, ...] = (
        *(unchanged(job.record), unchanged(job.switch), unchanged(job.intent)),
        *(head_unchanged(job), Absent(key)),
    )
    ops = (
        put(key, record),
        put(keys.head(job.name), next_head(job, record.ref)),
        switch,
    )
    return Action("checkpoint_imported", job.name, text, compares, ops, {"checkpoint": str(record.ref)})


def newest_base(records: Iterable[CommitRecord]) -> CheckpointRef | None:
    """The base for a job whose switch is lost: the newest good one that its last generation saved,
    or descends from; None when that is bad altogether.
    """
    mine = sorted(records, key=lambda each: each.ref)
    if not mine:
        return None
    last = mine[-1]
    lineage = on_lineage(mine, last.job_uuid, last.ref.generation, last.parent)
    return next((each.ref for each in lineage if each.state is CommitState.COMMITTED), None)


def rebuild(job: JobState, records: Sequence[CommitRecord], seen: int) -> tuple[Action, ...]:
    """The transactions that give a job its records back; each compares what the one before has written.

    The first names the base and holds the newest records, the last writes the head: until that is there, the
    job counts as one whose records are lost, and this can be repeated.
    """
    newest_first = sorted(records, key=lambda each: each.ref, reverse=True)
    base = newest_base(records)
    # With none that is good, a base that nothing holds: a start stops and says so, never begins from scratch.
    switch = turn(
        job.switch,
        Transition.REBUILD,
        generation=next_generation(job, seen),
        base=base or newest_first[0].ref,
        reason=f"{len(records)} checkpoints were recorded again",
    )
    ops: list[Op] = [put(keys.commit(job.name, record.ref), record) for record in newest_first]
    parts = [ops[at : at + RECORDS_AT_ONCE] for at in range(0, len(ops), RECORDS_AT_ONCE)]
    parts[0].insert(0, switch)
    parts[-1].append(put(keys.head(job.name), CommitHead(1, newest_first[0].ref)))
    first = (unchanged(job.record), unchanged(job.switch), unchanged(job.intent), Absent(keys.head(job.name)))
    later = (unchanged(job.record), unchanged(job.intent), Absent(keys.head(job.name)))
    told = (
        f"{len(records)} checkpoints were recorded again from the store; the base is {base or 'none of them'}"
    )
    return tuple(
        Action(
            "records_rebuilt",
            job.name,
            told if part is parts[-1] else "",
            later if index else first,
            tuple(part),
        )
        for index, part in enumerate(parts)
    )
