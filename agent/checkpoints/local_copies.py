"""The node's own copies of committed checkpoints: the newest few of each job, within the disk's budget.

A restart is staged from them without a download. What is not committed yet is nobody's to drop for space.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from recovery.commit.outbox import drop_copy, prune_outbox
from supervisor.contract.checkpoint import CheckpointRef

KEPT_COPIES = 2


@dataclass(frozen=True, slots=True)
class LocalDisk:
    """What a node's checkpoints may take of it.

    Attributes:
        budget_bytes: for copies of committed checkpoints, all jobs together; None: no limit.
        executor: the threads that read and write them; None: those of the loop.
    """

    budget_bytes: int | None = None
    executor: Executor | None = None


UNLIMITED = LocalDisk()


@dataclass(frozen=True, slots=True)
class _Copy:
    job_uuid: str
    ref: CheckpointRef
    size: int


class LocalCopies:
    """Knows what this agent has committed, and removes what is too much of it.

    Args:
        parent: a job's directories are below `parent/JOB_UUID`.
        budget_bytes: for all jobs together; None: no limit but `KEPT_COPIES` for each.
    """

    def __init__(self, parent: Path, budget_bytes: int | None = None) -> None:
        self._parent = parent
        self._budget_bytes = budget_bytes
        self._copies: list[_Copy] = []

    async def committed(self, job_uuid: str, ref: CheckpointRef, size: int) -> None:
        """This one is committed: older ones may go. Raises Refused, Unreachable."""
        self.forget(job_uuid, ref)
        self._copies.append(_Copy(job_uuid, ref, size))
        mine = [each for each in self._copies if each.job_uuid == job_uuid]
        for each in mine[:-KEPT_COPIES]:
            self._copies.remove(each)
        keep = [each.ref for each in mine[-KEPT_COPIES:]]
        await asyncio.to_thread(prune_outbox, self._parent / job_uuid, keep, ref)
        if self._budget_bytes is not None:
            await self._shrink_to(self._budget_bytes)

    async def drop(self, job_uuid: str, ref: CheckpointRef) -> None:
        """Nobody needs this one. Raises Refused, Unreachable."""
        self.forget(job_uuid, ref)
        await asyncio.to_thread(drop_copy, self._parent / job_uuid, ref)

    async def make_room(self) -> bool:
        """The disk is full: remove them all. Whether there was any. Raises Refused, Unreachable."""
        return await self._shrink_to(0)

    def forget(self, job_uuid: str, ref: CheckpointRef | None = None) -> None:
        """This one is somebody else's to remove; without `ref` all of the job."""
        self._copies = [
            each for each in self._copies if each.job_uuid != job_uuid or ref not in (None, each.ref)
        ]

    async def _shrink_to(self, budget_bytes: int) -> bool:
        """The oldest go first."""
        shrunk = False
        while self._copies and sum(each.size for each in self._copies) > budget_bytes:
            oldest = self._copies.pop(0)
            await asyncio.to_thread(drop_copy, self._parent / oldest.job_uuid, oldest.ref)
            shrunk = True
        return shrunk
