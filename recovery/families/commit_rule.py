"""The decision whether a checkpoint may be committed now (rule 7), without its effects. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from recovery.formats.manifest import Manifest
from supervisor.contract import keys
from supervisor.contract.boundaries import Absent, Compare, CreatedAt, Get, KeyValue, ModifiedAt, Put
from supervisor.contract.checkpoint import CheckpointRef, CommitHead, CommitRecord, CommitState, Verify
from supervisor.contract.codec import decode, encode
from supervisor.contract.desired import JobSwitch


class RefusalReason(Enum):
    """Reasons for a refused commit."""

    CLOSING = "closing"
    GENERATION = "generation"
    INCARNATION = "incarnation"
    WITHDRAWN = "withdrawn"
    SAVER = "saver"
    TAKEN = "taken"

    @property
    def may_pass(self) -> bool:
        """Whether the same checkpoint should be offered again.

        A plan that is given up reopens the switch, and an agent whose key ran out writes it again. Where a
        reason stays, offers end by themselves: an agent that has a successor or is lost for good is stopped,
        as is the watch of a task that no longer saves.
        """
        return self in (RefusalReason.CLOSING, RefusalReason.INCARNATION, RefusalReason.SAVER)


@dataclass(frozen=True, slots=True)
class Committed:
    """The checkpoint is committed, by this call or an earlier one."""

    record: CommitRecord


@dataclass(frozen=True, slots=True)
class CommitRefused:
    """The checkpoint is not committed; its files in the store will be collected."""

    ref: CheckpointRef
    reason: RefusalReason
    detail: str


@dataclass(frozen=True, slots=True)
class Proceed:
    """The transaction that commits the checkpoint."""

    compares: tuple[Compare, ...]
    puts: tuple[Put, ...]
    record: CommitRecord


@dataclass(frozen=True, slots=True)
class CommitView:
    """The records that one transaction read, in the order of `reads`."""

    node: KeyValue | None
    switch: KeyValue | None
    head: KeyValue | None
    record: KeyValue | None


@dataclass(frozen=True, slots=True)
class CommitIdentity:
    """The committing agent. `compare` holds while `incarnation` is in the node's key, `keys.node(node)`.

    `member` is the task that saves; empty: any task.
    """

    node: str
    incarnation: str
    compare: CreatedAt | ModifiedAt
    member: str = ""


def reads(manifest: Manifest, identity: CommitIdentity) -> tuple[Get, ...]:
    """The reads for a `CommitView`."""
    return (
        Get(identity.compare.key),
        Get(keys.switch(manifest.job)),
        Get(keys.head(manifest.job)),
        Get(keys.commit(manifest.job, manifest.ref)),
    )


def view_of(found: tuple[tuple[KeyValue, ...], ...]) -> CommitView:
    """The view of the results of `reads`."""
    node, switch, head, record = (entries[0] if entries else None for entries in found)
    return CommitView(node, switch, head, record)


def decide(
    view: CommitView,
    manifest: Manifest,
    identity: CommitIdentity,
    path: str,
    manifest_crc32c: str,
    verified: Verify,
) -> Proceed | Committed | CommitRefused:
    """The decision about a checkpoint that is, or will be, complete at `path` of the store.

    `verified` is the kind of verification that it passed, or will pass. Raises IncompatibleRecord when a
    record in etcd is from a newer release.
    """
    if view.record is not None:
        return _known(decode(CommitRecord, view.record.value), manifest, manifest_crc32c)
    if not _holds(identity.compare, view.node):
        return _refused(manifest, RefusalReason.INCARNATION, f"{identity.incarnation} is not the node's own")
    if view.switch is None:
        return _refused(manifest, RefusalReason.GENERATION, "the job is gone")
    switch = decode(JobSwitch, view.switch.value)
    if switch.job_uuid != manifest.job_uuid or switch.generation != manifest.ref.generation:
        return _refused(
            manifest,
            RefusalReason.GENERATION,
            f"generation {switch.generation} of {switch.job_uuid} is in force",
        )
    if switch.closing is not None:
        return _refused(manifest, RefusalReason.CLOSING, f"closing for plan {switch.closing.plan_id}")
    if identity.member and switch.saver != identity.member:
        return _refused(manifest, RefusalReason.SAVER, f"{switch.saver} saves in this generation")
    record = CommitRecord(
        job_uuid=manifest.job_uuid,
        ref=manifest.ref,
        parent=manifest.parent,
        path=path,
        size=manifest.size,
        manifest_crc32c=manifest_crc32c,
        node=identity.node,
        incarnation=identity.incarnation,
        wall_ms=manifest.wall_ms,
        verified=verified,
        tensors=manifest.tensors,
    )
    return _proceed(view.switch, view.head, manifest, identity.compare, record)


def _proceed(
    switch: KeyValue,
    head: KeyValue | None,
    manifest: Manifest,
    compare: CreatedAt | ModifiedAt,
    record: CommitRecord,
) -> Proceed:
    record_key, head_key = keys.commit(manifest.job, manifest.ref), keys.head(manifest.job)
    old = decode(CommitHead, head.value) if head else CommitHead(0, None)
    newest = max(manifest.ref, old.newest) if old.newest else manifest.ref
    return Proceed(
        compares=(
            compare,
            ModifiedAt(switch.key, switch.mod_revision),
            ModifiedAt(head_key, head.mod_revision) if head else Absent(head_key),
            Absent(record_key),
        ),
        puts=(Put(record_key, encode(record)), Put(head_key, encode(CommitHead(old.serial + 1, newest)))),
        record=record,
    )


def _known(record: CommitRecord, manifest: Manifest, manifest_crc32c: str) -> Committed | CommitRefused:
    if record.job_uuid != manifest.job_uuid:
        return _refused(manifest, RefusalReason.GENERATION, f"{record.ref} is another job's")
    if record.state is not CommitState.COMMITTED:
        return _refused(manifest, RefusalReason.WITHDRAWN, f"{record.ref} is {record.state.value}")
    if record.manifest_crc32c != manifest_crc32c:
        return _refused(manifest, RefusalReason.TAKEN, f"another save is committed as {record.ref}")
    return Committed(record)


def _holds(compare: CreatedAt | ModifiedAt, found: KeyValue | None) -> bool:
    if found is None:
        return False
    if isinstance(compare, CreatedAt):
        return found.create_revision == compare.create_revision
    return found.mod_revision == compare.mod_revision


def _refused(manifest: Manifest, reason: RefusalReason, detail: str) -> CommitRefused:
    return CommitRefused(manifest.ref, reason, detail)
