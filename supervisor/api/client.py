"""The client of the API: it finds the leader among all supervisors, and turns Failures back into errors of
our tree.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

import grpc

from supervisor.contract import codec
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.code import CodePart, CodeState, answer_s
from supervisor.contract.errors import IncompatibleRecord, Unreachable
from supervisor.contract.job.spec import CodeRef
from supervisor.contract.pool.requests import (
    Certificate,
    CertifyRequest,
    OpenPoolRequest,
    PoolList,
    PoolRequest,
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
from supervisor.contract.views.description import Description
from supervisor.contract.views.jobs import (
    SAVE_S,
    Accepted,
    CheckpointList,
    ClusterStatus,
    EventBatch,
    EventsRequest,
    ExecChunk,
    ExecRequest,
    Explanation,
    JobRequest,
    PauseRequest,
    PinRequest,
    RestartRequest,
    ScaleRequest,
    SignalRequest,
    StopRequest,
    SubmitRequest,
    TailChunk,
    TailRequest,
)
from supervisor.contract.views.nodes import (
    CordonRequest,
    DismissRequest,
    GpuList,
    GpusRequest,
    NodeAnswer,
    NodeList,
    UncordonRequest,
)
from supervisor.wire.failures import from_failure, read_failure
from supervisor.wire.rpc import Guard
from supervisor.wire.tfsup_pb2 import Record

R = TypeVar("R")

DEADLINE_S = 10.0
_ATTEMPT_S = 2.0
_CODE_MARGIN_S = 2.0
"""A client waits so much longer than a leader for a store of code, and so gets the leader's reason."""
_RETRY_S = 0.1
_WRITE_ATTEMPT_S = 30.0
_SAVING_S = SAVE_S + 15.0
"""Where jobs save first, a supervisor may stop leading after all of a save; its successor is asked then."""
_SILENCE_S = 10.0
_UNKNOWN = (
    "{} did not answer ({}): the request may or may not have been recorded; "
    "look at `supervisorctl status` or `nodes` before you repeat it"
)
_NO_CONNECTION = "no connection"
_CONNECTION = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class ControlClient:
    """Calls the leader. Use it as `async with ControlClient(...) as client` on one event loop.

    Every call raises the error that the leader answered with, or Unreachable when no leader answered within
    `deadline_s`; a large archive of code, and what has jobs save first, may take longer. A write whose answer
    was lost is never sent twice: it raises Unreachable, as it may have taken effect. A drain is.
    """

    def __init__(
        self, supervisors: Sequence[str], guard: Guard, *, deadline_s: float = DEADLINE_S, remedy: str = ""
    ) -> None:
        self._known = list(supervisors)
        self._remedy = remedy
        self._guard = guard
        self._deadline_s = deadline_s
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._first = self._known[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    async def submit(self, request: SubmitRequest) -> Accepted:
        """Start a job."""
        return await self._call("Submit", request, Accepted, write=True)

    async def validate(self, request: SubmitRequest) -> Accepted:
        """Check a job against the cluster."""
        return await self._call("Validate", request, Accepted)

    async def find_code(self, ref: CodeRef) -> CodeState:
        """Whether the cluster has an archive already."""
        return await self._call("FindCode", ref, CodeState, most_s=answer_s(ref.size) + _CODE_MARGIN_S)

    async def put_code(self, part: CodePart) -> CodeState:
        """Upload a chunk of an archive. It is sent again if its answer is lost, which is safe."""
        most_s = answer_s(part.reads_back) + _CODE_MARGIN_S
        return await self._call("PutCode", part, CodeState, most_s=most_s)

    async def status(self, job: str = "") -> ClusterStatus:
        """All jobs, or one."""
        return await self._call("Status", JobRequest(job), ClusterStatus)

    async def explain(self, job: str) -> Explanation:
        """A job's incidents."""
        return await self._call("Explain", JobRequest(job), Explanation)

    async def describe(self, job: str) -> Description:
        """A job's stored file. A status call finds the leader first: others may be of an earlier release.

        Raises IncompatibleRecord if the leader is.
        """
        await self.status(job)
        return await self._call("Describe", JobRequest(job), Description)

    async def checkpoints(self, job: str) -> CheckpointList:
        """A job's checkpoints."""
        return await self._call("Checkpoints", JobRequest(job), CheckpointList)

    async def nodes(self) -> NodeList:
        """All nodes."""
        return await self._call("Nodes", JobRequest(), NodeList)

    async def gpus(self, node: str = "") -> GpuList:
        """All GPUs, or those of a node."""
        return await self._call("Gpus", GpusRequest(node), GpuList)

    async def cordon(self, node: str, reason: str = "", *, drain: bool = False, since: int = 0) -> NodeAnswer:
        """Cordon a node, or with `drain` move its tasks away too. Safe to repeat.

        A drain is refused if the node's cordon was lifted after the revision `since`; 0: from now on.
        """
        request = CordonRequest(node, reason, drain, since)
        if not drain:
            return await self._call("Cordon", request, NodeAnswer, write=True)
        # A leader that dies as the jobs save has not drained the node yet: its successor is asked for all.
        # It refuses if somebody else has lifted the cordon meanwhile. Where nobody leads just now, the leader
        # that is waited for counts from its own look.
        if not since:
            with suppress(Unreachable):
                request = replace(request, since=(await self.nodes()).revision)
        return await self._call("Cordon", request, NodeAnswer, most_s=_SAVING_S, again_s=_SAVING_S)

    async def uncordon(self, node: str, gpu: str = "") -> NodeAnswer:
        """Allow tasks on a node again, or on a quarantined GPU of it."""
        return await self._call("Uncordon", UncordonRequest(node, gpu), NodeAnswer, write=True)

    async def dismiss(self, node: str, incarnation: str) -> NodeAnswer:
        """End this life of a pool's node, and all tasks there. Safe to repeat."""
        return await self._call("Dismiss", DismissRequest(node, incarnation), NodeAnswer, write=True)

    async def pause(self, job: str, reason: str) -> Accepted:
        """Hold restarts and moves of a job, or of all. Safe to repeat."""
        method = "PauseJob" if job else "Pause"
        return await self._call(method, PauseRequest(job, reason), Accepted, write=True)

    async def resume(self, job: str) -> Accepted:
        """Let them go on. Safe to repeat."""
        return await self._call("ResumeJob" if job else "Resume", JobRequest(job), Accepted, write=True)

    async def pools(self, pool: str = "") -> PoolList:
        """The pools that may have certificates, or one of them."""
        return await self._call("Pools", PoolRequest(pool), PoolList)

    async def open_pool(self, request: OpenPoolRequest) -> Certificate:
        """Make a token for a pool, in place of one that it has."""
        return await self._call("OpenPool", request, Certificate, write=True)

    async def revoke_pool(self, pool: str, node: str = "", token: str = "") -> Accepted:
        """Refuse the certificates of a pool, or of a node of it. Safe to repeat.

        With a `token` only while that is the pool's.
        """
        return await self._call("RevokePool", RevokePoolRequest(pool, node, token), Accepted, write=True)

    async def certify(self, request: CertifyRequest) -> Certificate:
        """Have a certificate signed for an agent of a pool. It is asked for again if its answer is lost."""
        return await self._call("Certify", request, Certificate, most_s=DEADLINE_S)

    async def stop(self, job: str, *, save: bool = False) -> Accepted:
        """Stop a job; with `save` it gets SIGTERM and time to save first."""
        request, most_s = StopRequest(job, save), _SAVING_S if save else 0.0
        return await self._call("Stop", request, Accepted, write=True, most_s=most_s)

    async def start(self, job: str) -> Accepted:
        """Start a stopped job."""
        return await self._call("Start", JobRequest(job), Accepted, write=True)

    async def release(self, job: str) -> Accepted:
        """Let a parked job go on. Safe to repeat."""
        return await self._call("Release", JobRequest(job), Accepted, write=True)

    async def delete(self, job: str) -> Accepted:
        """Stop a job and remove it from etcd. Safe to repeat."""
        return await self._call("Delete", JobRequest(job), Accepted, write=True)

    async def restart(self, job: str, member: str = "", from_ref: CheckpointRef | None = None) -> Accepted:
        """Restart a job, or the task `ROLE.INDEX` of it, or the job from an older checkpoint."""
        return await self._call("Restart", RestartRequest(job, member, from_ref), Accepted, write=True)

    async def scale(self, job: str, sizes: Mapping[str, int]) -> Accepted:
        """Change the counts of a job's roles."""
        return await self._call("Scale", ScaleRequest(job, dict(sizes)), Accepted, write=True)

    async def pin(self, job: str, ref: CheckpointRef, *, pinned: bool) -> Accepted:
        """Keep a checkpoint from being collected, or let it go."""
        return await self._call("Pin", PinRequest(job, ref, pinned), Accepted, write=True)

    async def find_checkpoint(self, job: str, ref: CheckpointRef) -> FoundCheckpoint:
        """Find a checkpoint and its place."""
        return await self._call("FindCheckpoint", FindRequest(job, ref), FoundCheckpoint)

    async def collect(self, job: str, *, dry_run: bool) -> CollectReport:
        """Remove checkpoints that are not kept, or list them. Safe to repeat."""
        return await self._call("CollectCheckpoints", CollectRequest(job, dry_run), CollectReport, write=True)

    async def place_import(self, job: str, step: int) -> ImportPlace:
        """The place for an imported checkpoint."""
        return await self._call("PlaceImport", ImportRequest(job, step), ImportPlace, write=True)

    def verify(self, job: str, refs: tuple[CheckpointRef, ...]) -> AsyncGenerator[CheckProgress, None]:
        """Read checkpoints back; without `refs`, all."""
        request = VerifyRequest(job, refs)
        return self._stream("VerifyCheckpoints", request, CheckProgress, silence_s=_SILENCE_S)

    def adopt(self, job: str, path: str) -> AsyncGenerator[CheckProgress, None]:
        """Make a directory that was put into the store the job's newest checkpoint."""
        request = AdoptRequest(job, path)
        return self._stream("AdoptImport", request, CheckProgress, silence_s=_SILENCE_S)

    def rebuild(self, job: str) -> AsyncGenerator[CheckProgress, None]:
        """Restore the lost records of a job from its store."""
        return self._stream("RebuildRecords", JobRequest(job), CheckProgress, silence_s=_SILENCE_S)

    async def signal(self, task: str, number: int) -> Accepted:
        """Send a signal to a task's main process."""
        return await self._call("Signal", SignalRequest(task, number), Accepted, write=True)

    def exec(self, request: ExecRequest) -> AsyncGenerator[ExecChunk, None]:
        """Run a command beside a task; it is killed when this stream is closed."""
        return self._stream("Exec", request, ExecChunk, silence_s=_SILENCE_S)

    def events(self, request: EventsRequest) -> AsyncGenerator[EventBatch, None]:
        """One stream of events; raises Unreachable when it breaks."""
        return self._stream("Events", request, EventBatch, silence_s=_SILENCE_S)

    def tail(self, request: TailRequest) -> AsyncGenerator[TailChunk, None]:
        """One stream of a task's output; raises Unreachable when it breaks."""
        return self._stream("Tail", request, TailChunk, silence_s=_SILENCE_S)

    async def _call(
        self,
        method: str,
        request: object,
        kind: type[R],
        *,
        write: bool = False,
        most_s: float = 0.0,
        again_s: float = 0.0,
    ) -> R:
        body = Record(json=codec.encode(request))
        deadline_s = max(self._deadline_s, most_s)
        most_s = most_s or _ATTEMPT_S
        began, repeats, lost = time.monotonic(), again_s > 0, ""
        deadline = began + deadline_s
        problems: dict[str, str] = {}
        while True:
            for address in self._order():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise self._nobody(problems, time.monotonic() - began, lost)
                attempt_s = max(left_s, _WRITE_ATTEMPT_S) if write else min(left_s, most_s)
                channel = self._channel(address)
                call = channel.unary_unary(
                    f"/tfsup.v1.Control/{method}",
                    request_serializer=Record.SerializeToString,
                    response_deserializer=Record.FromString,
                )
                try:
                    reply = await call(body, timeout=attempt_s, metadata=self._guard.metadata())
                    self._first = address
                    return codec.decode(kind, reply.json)
                except asyncio.CancelledError:
                    if _cancelled_ourselves():
                        raise
                    if write:
                        raise Unreachable(_UNKNOWN.format(address, "the connection was dropped")) from None
                    problems[address] = "the connection was dropped"
                    lost = _UNKNOWN.format(address, problems[address]) if repeats else ""
                except grpc.aio.AioRpcError as error:
                    why = await self._sort_out(address, channel, error, write=write)
                    if repeats and read_failure(error) is None and not _never_sent(error):
                        lost = _UNKNOWN.format(address, why)
                        if again_s:
                            # The next leader takes as long. Once.
                            deadline, again_s = time.monotonic() + again_s, 0.0
                    if attempt_s < most_s and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                        # It had no time to answer: what it said before tells more.
                        problems.setdefault(address, why)
                    else:
                        problems[address] = why
            await asyncio.sleep(_RETRY_S)

    async def _stream(
        self, method: str, request: object, kind: type[R], *, silence_s: float
    ) -> AsyncGenerator[R, None]:
        """A stream from the leader, after a status call has found it."""
        await self.status()
        call = self._channel(self._first).unary_stream(
            f"/tfsup.v1.Control/{method}",
            request_serializer=Record.SerializeToString,
            response_deserializer=Record.FromString,
        )(Record(json=codec.encode(request)), metadata=self._guard.metadata())
        try:
            while True:
                async with asyncio.timeout(silence_s):
                    item = await call.read()
                if item is grpc.aio.EOF or not isinstance(item, Record):
                    return
                yield codec.decode(kind, item.json)
        except asyncio.CancelledError:
            if _cancelled_ourselves():
                raise
            raise Unreachable(f"the connection to {self._first} was dropped") from None
        except TimeoutError as error:
            raise Unreachable(f"{self._first} has been silent for {silence_s:g} s") from error
        except grpc.aio.AioRpcError as error:
            failure = read_failure(error)
            if failure is not None:
                raise from_failure(failure) from error
            raise Unreachable(f"the connection to {self._first} broke: {error.code().name}") from error
        finally:
            call.cancel()

    async def _sort_out(
        self, address: str, channel: grpc.aio.Channel, error: grpc.aio.AioRpcError, *, write: bool
    ) -> str:
        """Raise an error that must reach the caller, or return the reason for trying another supervisor."""
        failure = read_failure(error)
        if failure is not None:
            if failure.error != "Unreachable":
                raise from_failure(failure) from error
            if failure.leader and failure.leader != address:
                self._first = failure.leader
            return failure.message
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise IncompatibleRecord(
                f"the supervisor at {address} is of an earlier release, which cannot answer this; upgrade it"
            ) from error
        if error.code() not in _CONNECTION:
            raise Unreachable(f"{address}: {error.code().name}: {error.details()}") from error
        await self._drop(address, channel)
        if write and not _never_sent(error):
            raise Unreachable(_UNKNOWN.format(address, error.code().name)) from error
        return _NO_CONNECTION if _never_sent(error) else error.code().name

    def _order(self) -> list[str]:
        return [self._first, *(address for address in self._known if address != self._first)]

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = self._guard.channel(address)
        return self._channels[address]

    def _nobody(self, problems: dict[str, str], waited_s: float, lost: str) -> Unreachable:
        """`lost`: of a request whose answer is lost, so that it may have taken effect."""
        tried = "; ".join(f"{address}: {text}" for address, text in problems.items())
        nobody = f"no leading supervisor answered within {waited_s:.0f} s ({tried})"
        if self._remedy and set(problems.values()) == {_NO_CONNECTION}:
            nobody += f"; {self._remedy}"
        return Unreachable(f"{lost}; {nobody}" if lost else nobody)

    async def _drop(self, address: str, channel: grpc.aio.Channel) -> None:
        """Drop a connection, so that the next call makes a new one: gRPC's own reconnect waits too long."""
        if self._channels.get(address) is channel:
            del self._channels[address]
        await channel.close()


def _cancelled_ourselves() -> bool:
    """Whether this task was cancelled. If not, another call of the same client has closed our channel."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _never_sent(error: grpc.aio.AioRpcError) -> bool:
    """Whether the connection failed before the request left."""
    details = (error.details() or "").lower()
    return error.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in details
