"""The documents of the API about checkpoints in their store: verify, collect, restore, import, rebuild."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from supervisor.contract.checkpoint import CheckpointRef, CommitRecord


@dataclass(frozen=True, slots=True)
class FindRequest:
    """Which checkpoint is meant? A `ref` of generation 0 names its step alone."""

    job: str
    ref: CheckpointRef


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint's record, and the URI of the store that it is in."""

    job: str
    uri: str
    commit: CommitRecord


@dataclass(frozen=True, slots=True)
class CollectRequest:
    """Remove what is not kept, or with `dry_run` tell what would be removed."""

    job: str
    dry_run: bool = False


class Thing(Enum):
    """What lies in a job's store."""

    CHECKPOINT = "checkpoint"
    UNCOMMITTED = "uncommitted"
    UNREADABLE = "unreadable"
    FOREIGN = "foreign"
    STAGING = "staging"
    LIVE = "live"
    TRASH = "trash"


@dataclass(frozen=True, slots=True)
class CollectItem:
    """One thing in the store, whether it goes, and why: a word of `docs/checkpoints.md`, "What is kept"."""

    thing: Thing
    path: str
    goes: bool
    why: str
    ref: CheckpointRef | None = None
    size: int = 0


@dataclass(frozen=True, slots=True)
class CollectReport:
    """Everything in a job's store, oldest first. Without `dry_run`, what goes is gone or is being deleted."""

    job: str
    uri: str
    dry_run: bool
    items: tuple[CollectItem, ...]


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Read checkpoints back from the store; without `refs`, all of the job."""

    job: str
    refs: tuple[CheckpointRef, ...] = ()


class Finding(Enum):
    """What reading a checkpoint back has shown. UNKNOWN: it could not be read, which says nothing of it."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class CheckView:
    """One checkpoint that was read back."""

    ref: CheckpointRef
    path: str
    finding: Finding
    detail: str
    size: int
    tensors: int
    took_ms: int


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """How far the leader has come with reading checkpoints back: bytes, and `number` of `count`.

    `found` tells of one that is done. `end` is in the last item alone: what was recorded. `waits_ms`: reading
    begins in so long, as tasks of the job may run until then that nobody can see.
    """

    number: int
    count: int
    done_bytes: int
    total_bytes: int
    found: CheckView | None = None
    end: str = ""
    waits_ms: int = 0


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """Where would a checkpoint of this step go that was made elsewhere?"""

    job: str
    step: int


@dataclass(frozen=True, slots=True)
class ImportPlace:
    """What an import's manifest must say, and the store that it goes to."""

    job: str
    job_uuid: str
    uri: str
    ref: CheckpointRef


@dataclass(frozen=True, slots=True)
class AdoptRequest:
    """Make the complete directory `path` of the job's store its newest checkpoint."""

    job: str
    path: str
