"""The documents of the API about checkpoints in their store: verify, collect, restore, import, rebuild."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from supervisor.contract.checkpoint import CheckpointRef, CommitRecord


@dataclass(frozen=True, slots=True)
class FindRequest:
    """Find a checkpoint by its `ref`. A `ref` of generation 0 names its step alone."""

    job: str
    ref: CheckpointRef


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint's record, and the URI of its store."""

    job: str
    uri: str
    commit: CommitRecord


@dataclass(frozen=True, slots=True)
class CollectRequest:
    """Remove directories that are not kept, or with `dry_run` list them."""

    job: str
    dry_run: bool = False


class Thing(Enum):
    """Kinds of directories in a job's store."""

    CHECKPOINT = "checkpoint"
    UNCOMMITTED = "uncommitted"
    UNREADABLE = "unreadable"
    FOREIGN = "foreign"
    STAGING = "staging"
    LIVE = "live"
    TRASH = "trash"


@dataclass(frozen=True, slots=True)
class CollectItem:
    """A directory in the store, whether it is removed, and the reason: a word of `docs/checkpoints.md`, "What
    is kept".
    """

    thing: Thing
    path: str
    goes: bool
    why: str
    ref: CheckpointRef | None = None
    size: int = 0


@dataclass(frozen=True, slots=True)
class CollectReport:
    """All directories in a job's store, oldest first.

    Without `dry_run` the removed ones are gone or are being deleted.
    """

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
    """The result of reading a checkpoint back. UNKNOWN: it could not be read; it may be good."""

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
    """The leader's progress in reading checkpoints back: bytes, and `number` of `count`.

    `found` is the result for a finished one. `end` is in the last item alone: the recorded result.
    `waits_ms`: the time until reading begins; tasks of the job on unreachable nodes may run until then.
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
    """Ask for the place of an imported checkpoint of this step."""

    job: str
    step: int


@dataclass(frozen=True, slots=True)
class ImportPlace:
    """The values for an import's manifest, and the store that it goes to."""

    job: str
    job_uuid: str
    uri: str
    ref: CheckpointRef


@dataclass(frozen=True, slots=True)
class AdoptRequest:
    """Make the complete directory `path` of the job's store its newest checkpoint."""

    job: str
    path: str
