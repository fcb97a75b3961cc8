"""Services behind the API that remember what they are asked, and a place that serves them at sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.files.config.supervisor import SupervisorConfig, load_supervisor
from supervisor.api.client import ControlClient
from supervisor.api.server import serve_api
from supervisor.contract.access import Caller
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord
from supervisor.contract.code import CodePart, CodeState
from supervisor.contract.desired import LeaderRecord
from supervisor.contract.job.spec import CodeRef
from supervisor.contract.observed import Beat
from supervisor.contract.pool.requests import (
    Certificate,
    CertifyRequest,
    OpenPoolRequest,
    PoolList,
    RevokePoolRequest,
)
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
from supervisor.contract.views.jobs import (
    Accepted,
    JobRequest,
    SubmitRequest,
)
from supervisor.contract.views.nodes import CordonRequest, DismissRequest, NodeAnswer, UncordonRequest
from supervisor.control.decide.snapshot import Snapshot
from supervisor.control.services.checkpoints import CheckpointService
from supervisor.control.services.code_uploads import CodeUploads
from supervisor.control.services.jobs import JobService
from supervisor.control.services.nodes import NodeService
from supervisor.control.services.pauses import PauseService
from supervisor.control.services.pools import PoolService
from supervisor.control.services.submissions import SubmissionService
from supervisor.wire.rpc import Guard

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

    async def pin(self, job: str, ref: CheckpointRef, *, pinned: bool) -> Accepted:
        self.asked.append((job, ref, pinned))
        return Accepted(job, "done")

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


@dataclass
class FakeSubmissionService(SubmissionService):
    """Takes every job, unless `error` says no."""

    asked: list[object] = field(default_factory=list)
    error: Exception | None = None

    async def submit(self, request: SubmitRequest) -> Accepted:
        return await self.validate(request)

    async def validate(self, request: SubmitRequest) -> Accepted:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        return Accepted(request.spec.name, "done")


@dataclass
class FakeUploads(CodeUploads):
    """Has no archive, and takes every chunk for the last one."""

    asked: list[object] = field(default_factory=list)

    async def find(self, ref: CodeRef) -> CodeState:
        self.asked.append(ref)
        return CodeState(ref.digest, complete=False)

    async def put(self, part: CodePart) -> CodeState:
        self.asked.append(part)
        return CodeState(part.digest, complete=True)


@dataclass
class FakeNodeService(NodeService):
    """Grants all that is asked about nodes."""

    asked: list[object] = field(default_factory=list)

    async def cordon(self, request: CordonRequest, *, drain_follows: bool = False) -> NodeAnswer:
        self.asked.append(request)
        return NodeAnswer(request.node, "done")

    async def tell_of_cordon(self, node: str) -> None:
        self.asked.append(node)

    async def uncordon(self, request: UncordonRequest) -> NodeAnswer:
        self.asked.append(request)
        return NodeAnswer(request.node, "done")

    async def dismiss(self, request: DismissRequest) -> NodeAnswer:
        self.asked.append(request)
        return NodeAnswer(request.node, "done")


@dataclass
class FakePauseService(PauseService):
    """Grants all that is asked about pauses."""

    asked: list[object] = field(default_factory=list)

    async def pause(self, reason: str) -> Accepted:
        return self._take("", reason)

    async def resume(self) -> Accepted:
        return self._take("")

    async def pause_job(self, name: str, reason: str) -> Accepted:
        return self._take(name, reason)

    async def resume_job(self, name: str) -> Accepted:
        return self._take(name)

    def _take(self, *asked: str) -> Accepted:
        self.asked.append(asked)
        return Accepted(asked[0], "done")


@dataclass
class FakePoolService(PoolService):
    """Grants all that is asked about pools, and takes every certificate of them."""

    asked: list[object] = field(default_factory=list)

    def objection(self, caller: Caller) -> str:
        return ""

    def pools(self, name: str) -> PoolList:
        return PoolList()

    async def open(self, request: OpenPoolRequest) -> Certificate:
        self.asked.append(request)
        return Certificate("", 0)

    async def revoke(self, request: RevokePoolRequest) -> Accepted:
        self.asked.append(request)
        return Accepted("", "done")

    async def certify(self, request: CertifyRequest) -> Certificate:
        self.asked.append(request)
        return Certificate("", 0)


@dataclass
class FakeJobService(JobService):
    """A leader, or a follower that knows who leads."""

    picture: Snapshot | None = None
    record: LeaderRecord | None = None
    error: Exception | None = None
    asked: list[object] = field(default_factory=list)
    full: bool = False
    dump: tuple[str, ...] = ()
    slow: asyncio.Event | None = None
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    submissions: SubmissionService = field(default_factory=FakeSubmissionService)
    uploads: CodeUploads = field(default_factory=FakeUploads)
    checkpoints: CheckpointService = field(default_factory=FakeCheckpointService)
    nodes: NodeService = field(default_factory=FakeNodeService)
    pauses: PauseService = field(default_factory=FakePauseService)
    pools: PoolService = field(default_factory=FakePoolService)
    open_logs: Callable[[str], CheckpointStore] = field(default=lambda _uri: MemoryCheckpointStore())

    def snapshot(self) -> Snapshot | None:
        return self.picture

    def leader(self) -> LeaderRecord | None:
        return self.record

    def etcd_lines(self) -> tuple[str, ...]:
        return ("etcd is full",) if self.full else ()

    def stacks_wanted(self, _node: str) -> tuple[str, ...] | None:
        return self.dump if self.picture is not None else None

    async def stop(self, job: str, *, save: bool = False) -> Accepted:
        return await self._take((job, save) if save else job, job)

    async def start(self, job: str) -> Accepted:
        return await self._take(job, job)

    async def release(self, job: str) -> Accepted:
        return await self._take(("release", job), job)

    async def delete(self, job: str) -> Accepted:
        return await self._take(("delete", job), job)

    async def restart(self, job: str, member: str = "", from_ref: CheckpointRef | None = None) -> Accepted:
        return await self._take((job, member, from_ref), job)

    async def scale(self, job: str, sizes: Mapping[str, int]) -> Accepted:
        return await self._take((job, sizes), job)

    async def tell_of_certificate(self, holder: str, text: str) -> None:
        self.asked.append((holder, text))

    async def _take(self, request: object, job: str) -> Accepted:
        self.begun.set()
        if self.slow is not None:
            await self.slow.wait()
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        return Accepted(job, "done")


@dataclass
class Place:
    """Serves job services at sockets in a directory, until the test ends."""

    directory: Path
    stack: AsyncExitStack
    beats: list[Beat] = field(default_factory=list)

    def address(self, name: str) -> str:
        return f"unix:{self.directory}/{name}"

    async def serve(self, name: str, service: FakeJobService, **extra: object) -> str:
        config = self.config(name, **extra)
        server = await serve_api(service, self.beats.append, config)
        self.stack.push_async_callback(server.close, 0)
        return config.listen

    def config(self, name: str, **extra: object) -> SupervisorConfig:
        body: dict[str, object] = {
            "id": name,
            "cluster": "c",
            "etcd": {"endpoints": ["unix:/none"]},
            "listen": self.address(name),
            "state_dir": str(self.directory),
        }
        path = self.directory / f"{name}.yaml"
        path.write_text(json.dumps(body | extra))
        return load_supervisor(path)

    async def client(self, *addresses: str, token: str = "", deadline_s: float = 3.0) -> ControlClient:
        client = ControlClient(addresses, Guard(token=token), deadline_s=deadline_s)
        return await self.stack.enter_async_context(client)
