"""The node's own copies of committed checkpoints: the newest few of each job, within the disk's budget.

A restart is staged from them without a download. Uncommitted checkpoints are never dropped for space.
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
    """The space on the disk for a node's checkpoints, and the threads for them.

    Attributes:
        budget_bytes: limit for copies of committed checkpoints of all jobs; None: no limit.
        executor: the threads for reading and writing them; None: those of the loop.
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
    """Keeps a list of this agent's committed copies, and removes surplus ones.

    Args:
        parent: the directories of a job are below `parent/JOB_UUID`.
        budget_bytes: limit for all jobs together; None: only `KEPT_COPIES` for each job.
    """

    def __init__(self, parent: Path, budget_bytes: int | None = None) -> None:
        self._parent = parent
        self._budget_bytes = budget_bytes
        self._copies: list[_Copy] = []

    async def committed(self, job_uuid: str, ref: CheckpointRef, size: int) -> None:
        """Note a committed checkpoint, and remove older copies. Raises Refused, Unreachable."""
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
        """Remove the copy of a checkpoint. Raises Refused, Unreachable."""
        self.forget(job_uuid, ref)
        await asyncio.to_thread(drop_copy, self._parent / job_uuid, ref)

    async def make_room(self) -> bool:
        """Remove all copies from a full disk; returns whether there were any. Raises Refused, Unreachable."""
        return await self._shrink_to(0)

    def forget(self, job_uuid: str, ref: CheckpointRef | None = None) -> None:
        """Take a copy off the list without removing it; without `ref` all copies of the job."""
        self._copies = [
            each for each in self._copies if each.job_uuid != job_uuid or ref not in (None, each.ref)
        ]

    async def _shrink_to(self, budget_bytes: int) -> bool:
        """Remove copies, the oldest first, down to a budget."""
        shrunk = False
        while self._copies and sum(each.size for each in self._copies) > budget_bytes:
            oldest = self._copies.pop(0)
            await asyncio.to_thread(drop_copy, self._parent / oldest.job_uuid, oldest.ref)
            shrunk = True
        return shrunk
