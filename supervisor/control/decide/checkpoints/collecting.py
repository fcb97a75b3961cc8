"""Rule 9 for one job: what its checkpoints may cost, and the steps by which one is collected. Pure."""

from __future__ import annotations

from dataclasses import replace

from recovery.formats.retention import Age, Collect, Fate, Keep, RetentionPolicy, collectable, fates
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.job.spec import Scope
from supervisor.control.decide.checkpoints import commit_list
from supervisor.control.decide.facts.cluster_time import ages
from supervisor.control.decide.facts.history import asked_base, records_are_lost
from supervisor.control.decide.plan import Action, Decision, DeleteFiles, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot

ADOPTED = "adopted"
"""Stands for the incarnation in a commit record that the leader made: an import."""


def collect(snap: Snapshot, job: JobState) -> list[Decision]:
    """Mark, then delete the files, then the record."""
    decisions: list[Decision] = [
        DeleteFiles(job.name, held.key, held.mod_revision, held.value, job.record.value.store_uri)
        for held in job.commits.values()
        if held.value.state is CommitState.COLLECTING
    ]
    if records_are_lost(job):
        # They are being made again: some are still missing, and to mark one would write the head.
        return decisions
    policy, age = policy_of(snap, job), _age(snap, job)
    going = collectable(_records(job), job.switch.value, _wanted(job), policy, age)
    return [*decisions, *(_mark(job, record) for record in going[:1])]


def fates_of(snap: Snapshot, job: JobState) -> tuple[Fate, ...]:
    """The fate of each of the job's checkpoints, with the reason; oldest first."""
    policy, age = policy_of(snap, job), _age(snap, job)
    found = fates(_records(job), job.switch.value, _wanted(job), policy, age)
    if not records_are_lost(job):
        return found
    return tuple(
        fate if fate.why is Collect.COLLECTING or not fate.goes else Fate(fate.record, Keep.RECORDS_LOST)
        for fate in found
    )


def policy_of(snap: Snapshot, job: JobState) -> RetentionPolicy:
    """The job's retention policy.

    `branched_age_ms` counts from the last event that may have changed its lineage.
    """
    spec, known = job.record.value.spec.checkpoint, ages(snap)
    # Any new generation, any new life and any import may have begun at an older checkpoint than the newest.
    made = [each.create_revision for each in job.incidents.values() if each.value.scope is Scope.ALL]
    made += [each.create_revision for each in job.commits.values() if each.value.incarnation == ADOPTED]
    return RetentionPolicy(
        keep=spec.keep,
        branched_age_ms=min([known.since(job.record.value.submitted_ms), *map(known.of, made)]),
        keep_every=spec.keep_every,
        keep_for_ms=spec.keep_for_ms,
    )


def _age(snap: Snapshot, job: JobState) -> Age:
    known = ages(snap)

    def age_ms(record: CommitRecord) -> int:
        held = job.commits[record.ref]
        bad = record.state is CommitState.QUARANTINED
        return known.of(held.mod_revision if bad else held.create_revision)

    return age_ms


def _records(job: JobState) -> list[CommitRecord]:
    return [held.value for held in job.commits.values()]


def _wanted(job: JobState) -> tuple[CheckpointRef, ...]:
    """The checkpoint that a pending restart is to start from."""
    asked = asked_base(job)
    return () if asked is None else (asked,)


def _mark(job: JobState, record: CommitRecord) -> Action:
    compares, ops = commit_list.changed(job, replace(record, state=CommitState.COLLECTING))
    return Action(
        kind="checkpoint_collecting",
        job=job.name,
        text="",
        # The intent, too: the wish for a restart from this very checkpoint may come in between.
        compares=(*compares, unchanged(job.switch), unchanged(job.intent)),
        ops=ops,
        fields={"checkpoint": str(record.ref)},
    )
