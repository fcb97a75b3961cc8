"""Checkpoints as etcd knows them: commit records and the head that every change of the list rewrites."""

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
    """How what was uploaded is checked before it counts, each beyond the one before it.

    SIZE: the store's size of each file. CRC: also the checksum of the bytes that were sent. READBACK: also
    the checksum of the bytes that the store gives back.
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
        reason: why it is quarantined.
        suspected: it is quarantined because of what failed after it was restored; its files verify.
        verified: how its files were checked when it was committed, or since.
        tensors: how many it holds, each verified; 0 for files that are not a tensor bundle.
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
