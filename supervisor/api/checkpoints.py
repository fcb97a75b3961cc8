"""The part of the service `Control` that is about checkpoints in their store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

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
from supervisor.contract.views.jobs import Accepted, JobRequest, PinRequest
from supervisor.control.services.checkpoints import CheckpointService
from supervisor.wire import rpc

T = TypeVar("T")


class CheckpointMethods:
    """Serves `supervisorctl checkpoints`. `leading` raises NotLeading if another supervisor leads."""

    def __init__(self, service: CheckpointService, leading: Callable[[], object]) -> None:
        self._service = service
        self._leading = leading

    def methods(self) -> dict[str, rpc.Method]:
        """Method name -> handler."""
        return {
            "FindCheckpoint": rpc.unary(FindRequest, self.find),
            "CollectCheckpoints": rpc.unary(CollectRequest, self.collect),
            "Pin": rpc.unary(PinRequest, self.pin),
            "PlaceImport": rpc.unary(ImportRequest, self.place),
            "VerifyCheckpoints": rpc.stream(VerifyRequest, self.verify),
            "AdoptImport": rpc.stream(AdoptRequest, self.adopt),
            "RebuildRecords": rpc.stream(JobRequest, self.rebuild),
        }

    async def find(self, request: FindRequest) -> FoundCheckpoint:
        """Find a checkpoint."""
        self._leading()
        return await self._service.find(request)

    async def collect(self, request: CollectRequest) -> CollectReport:
        """Remove checkpoints that are not kept."""
        self._leading()
        return await self._service.collect(request)

    async def pin(self, request: PinRequest) -> Accepted:
        """Keep a checkpoint, or let it go."""
        self._leading()
        return await self._service.pin(request.job, request.ref, pinned=request.pinned)

    async def place(self, request: ImportRequest) -> ImportPlace:
        """The place for an import."""
        self._leading()
        return await self._service.place(request)

    async def verify(self, request: VerifyRequest) -> AsyncGenerator[CheckProgress, None]:
        """Read checkpoints back."""
        async for item in self._stream(self._service.verify(request)):
            yield item

    async def adopt(self, request: AdoptRequest) -> AsyncGenerator[CheckProgress, None]:
        """Make an import a checkpoint of the job."""
        async for item in self._stream(self._service.adopt(request)):
            yield item

    async def rebuild(self, request: JobRequest) -> AsyncGenerator[CheckProgress, None]:
        """Restore records that etcd has lost."""
        async for item in self._stream(self._service.rebuild(request)):
            yield item

    async def _stream(self, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        self._leading()
        async with aclosing(items):
            async for item in items:
                yield item
