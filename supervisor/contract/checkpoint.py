"""The records of checkpoints in etcd: commit records, and the head that every change of the list rewrites."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True, order=True)
class CheckpointRef:
    """Names a checkpoint within a job: the generation that saved it, and its global step."""

    generation: int
    step: int

    def __str__(self) -> str:
        return f"g{self.generation}-s{self.step}"


class CommitState(Enum):
    """A commit's life. Only COMMITTED can be restored; COLLECTING never comes back (rule 9)."""

    COMMITTED = "committed"
    QUARANTINED = "quarantined"
    COLLECTING = "collecting"


class Verify(Enum):
    """The check of an upload before its commit. Each level includes the one before it.

    SIZE: the size of each file in the store. CRC: also the checksum of the bytes that were sent. READBACK:
    also the checksum of the bytes that the store returns.
    """

    SIZE = "size"
    CRC = "crc"
    READBACK = "readback"


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One committed checkpoint. It is committed when this record is in etcd (rule 7).

    Attributes:
        parent: the base of the generation that saved it; None for a start from scratch.
        path: its directory, relative to the store's root.
        size: bytes, all files together.
        manifest_crc32c: checksum of `manifest.json`, which holds those of the files (8 hex digits).
        reason: the reason of its quarantine.
        suspected: it is quarantined because of failures after it was restored; its files verify.
        verified: the check that its files passed at the commit, or since.
        tensors: the number of its tensors, each verified; 0 for files that are not a tensor bundle.
    """

    job_uuid: str
    ref: CheckpointRef
    parent: CheckpointRef | None
    path: str
    size: int
    manifest_crc32c: str
    node: str
    incarnation: str
    wall_ms: int
    state: CommitState = CommitState.COMMITTED
    reason: str = ""
    pinned: bool = False
    suspected: bool = False
    verified: Verify = Verify.READBACK
    tensors: int = 0


@dataclass(frozen=True, slots=True)
class CommitHead:
    """Rewritten by every commit, quarantine and collection, so that a flip can compare the whole list."""

    serial: int
    newest: CheckpointRef | None
