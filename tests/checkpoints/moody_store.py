"""A store in memory that waits or fails as a test tells it to."""

from __future__ import annotations

import asyncio

from recovery.stores.memory import MemoryCheckpointStore, Moment
from supervisor.contract.errors import TfSupervisorError


class MoodyStore(MemoryCheckpointStore):
    """Answers as it is told to."""

    def __init__(self) -> None:
        super().__init__(hook=self._answer)
        self.error: TfSupervisorError | None = None
        self.go = asyncio.Event()
        self.go.set()
        self.uploads = 0

    async def _answer(self, operation: str, path: str, moment: Moment) -> None:
        if operation == "upload" and moment is Moment.HALF:
            self.uploads += 1
            await self.go.wait()
            if self.error is not None:
                raise self.error
