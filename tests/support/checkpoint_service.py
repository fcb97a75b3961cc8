"""A leader that answers what is asked about checkpoints in their store, without any store."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from supervisor.contract.checkpoint import CheckpointRef, CommitRecord
from supervisor.contract.views.checkpoints import (
    AdoptRequest,
    CheckProgress,
    CollectReport,
    CollectRequest,
    FindRequest,
    FoundCheckpoint,
    ImportPlace,
    ImportRequest,
    VerifyRequest,
)
from supervisor.contract.views.jobs import JobRequest
from supervisor.control.services.checkpoints import CheckpointService

URI = "file:///c"


@dataclass
class FakeCheckpointService(CheckpointService):
    """Remembers what it was asked; `error` is raised in the middle of an answer."""

    asked: list[object] = field(default_factory=list)
    error: Exception | None = None

    async def find(self, request: FindRequest) -> FoundCheckpoint:
        self.asked.append(request)
        record = CommitRecord("u", request.ref, None, "g00001-s0000000007.x", 1, "0" * 8, "n", "i", 0)
        return FoundCheckpoint(request.job, URI, record)

    async def collect(self, request: CollectRequest) -> CollectReport:
        self.asked.append(request)
        return CollectReport(request.job, URI, request.dry_run, ())

    async def place(self, request: ImportRequest) -> ImportPlace:
        self.asked.append(request)
        return ImportPlace(request.job, "u", URI, CheckpointRef(1, request.step))

    async def verify(self, request: VerifyRequest) -> AsyncGenerator[CheckProgress, None]:
        async for item in self._work(request):
            yield item

    async def adopt(self, request: AdoptRequest) -> AsyncGenerator[CheckProgress, None]:
        async for item in self._work(request):
            yield item

    async def rebuild(self, request: JobRequest) -> AsyncGenerator[CheckProgress, None]:
        async for item in self._work(request):
            yield item

    async def _work(self, request: object) -> AsyncGenerator[CheckProgress, None]:
        self.asked.append(request)
        yield CheckProgress(1, 1, 5, 10)
        if self.error is not None:
            raise self.error
        yield CheckProgress(1, 1, 10, 10, end="done")
