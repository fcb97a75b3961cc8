"""The part of the service `Control` that holds restarts and moves."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.contract.views.jobs import Accepted, JobRequest, PauseRequest
from supervisor.control.decide.snapshot import Snapshot
from supervisor.control.services.pauses import PauseService
from supervisor.wire import rpc


class PauseMethods:
    """`leading` raises NotLeading if another supervisor leads."""

    def __init__(self, service: PauseService, leading: Callable[[], Snapshot]) -> None:
        self._service = service
        self._leading = leading

    def methods(self) -> dict[str, rpc.Method]:
        """Method name -> handler."""
        return {
            "Pause": rpc.unary(PauseRequest, self.pause),
            "Resume": rpc.unary(JobRequest, self.resume),
            "PauseJob": rpc.unary(PauseRequest, self.pause_job),
            "ResumeJob": rpc.unary(JobRequest, self.resume_job),
        }

    async def pause(self, request: PauseRequest) -> Accepted:
        """Hold restarts and moves of all jobs."""
        self._leading()
        return await self._service.pause(request.reason)

    async def resume(self, request: JobRequest) -> Accepted:
        """End that."""
        del request
        self._leading()
        return await self._service.resume()

    async def pause_job(self, request: PauseRequest) -> Accepted:
        """Hold restarts and moves of one job."""
        self._leading()
        return await self._service.pause_job(request.job, request.reason)

    async def resume_job(self, request: JobRequest) -> Accepted:
        """End that."""
        self._leading()
        return await self._service.resume_job(request.job)
