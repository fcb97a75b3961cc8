"""The list of a job's commits: every change of a record rewrites the list's head (rule 7). Pure.

A flip, a commit, a quarantine and a collection compare the head. So each of them sees all changes that came
before it, or has no effect.
"""

from __future__ import annotations

from supervisor.contract import keys
from supervisor.contract.boundaries import Compare, Op
from supervisor.contract.checkpoint import CheckpointRef, CommitHead, CommitRecord
from supervisor.control.decide.plan import put, unchanged, unchanged_or_absent
from supervisor.control.decide.snapshot import JobState


def head_unchanged(job: JobState) -> Compare:
    """Compare: no commit, quarantine or collection since this snapshot (rule 7)."""
    return unchanged_or_absent(keys.head(job.name), job.head)


def changed(job: JobState, *records: CommitRecord) -> tuple[tuple[Compare, ...], tuple[Op, ...]]:
    """Compares and operations of a transaction that rewrites these records of the list, and its head."""
    held = [(job.commits[record.ref], record) for record in records]
    compares = (*(unchanged(before) for before, _ in held), head_unchanged(job))
    ops = (*(put(before.key, record) for before, record in held), put(keys.head(job.name), next_head(job)))
    return compares, ops


def next_head(job: JobState, newest: CheckpointRef | None = None) -> CommitHead:
    """The head after a change of the list; `newest`: the commit that the change adds, if it adds one."""
    serial = job.head.value.serial + 1 if job.head is not None else 1
    before = job.head.value.newest if job.head is not None else None
    return CommitHead(serial, newest or before)
