"""The services `Control` (for the command line) and `Link` (for agents' heartbeats) of a supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from supervisor.adapters.audit import AuditLog
from supervisor.adapters.caller import CALLER
from supervisor.adapters.files.config.supervisor import SupervisorConfig
from supervisor.adapters.secret_sources import SecretSources
from supervisor.api import views
from supervisor.api.agents import AgentAddress, Agents, address_of, node_of
from supervisor.api.certificates import CertificateEvents
from supervisor.api.checkpoints import CheckpointMethods
from supervisor.api.description import describe
from supervisor.api.nodes import NodeMethods
from supervisor.api.output import OutputTail
from supervisor.api.pauses import PauseMethods
from supervisor.api.pools import PoolMethods
from supervisor.api.saves import save_first
from supervisor.api.secrets import deliver
from supervisor.contract.access import Target
from supervisor.contract.code import CodePart, CodeState
from supervisor.contract.errors import IncompatibleRecord
from supervisor.contract.ids import TaskId
from supervisor.contract.job.spec import CodeRef
from supervisor.contract.observed import LINK_PROTOCOL, Beat, BeatAck
from supervisor.contract.promise import PromiseAnswer, PromiseRequest
from supervisor.contract.secret import SecretsAnswer, SecretsRequest, Source
from supervisor.contract.views.description import Description
from supervisor.contract.views.jobs import (
    Accepted,
    CheckpointList,
    ClusterStatus,
    EventBatch,
    EventsRequest,
    ExecChunk,
    ExecRequest,
    Explanation,
    JobRequest,
    JobView,
    RestartRequest,
    ScaleRequest,
    SignalRequest,
    StopRequest,
    SubmitRequest,
    TailChunk,
    TailRequest,
)
from supervisor.control.decide.snapshot import Snapshot
from supervisor.control.services.jobs import JobService
from supervisor.wire import rpc
from supervisor.wire.audit import Auditor
from supervisor.wire.failures import NotLeading
from supervisor.wire.gate import Policy, policy_of
from supervisor.wire.rpc import Guard, Server

A = TypeVar("A", SignalRequest, ExecRequest)
_POLL_S = 0.1
_SIGN_OF_LIFE_POLLS = 10
_AGENT_S = 5.0


class Promising(Protocol):
    """The two methods of `ControlDaemon` that the API needs: promises to agents without etcd (rule 11)."""

    async def on_promise(self, request: PromiseRequest) -> PromiseAnswer:
        """Promise to leave an agent alone, or give the reason against it."""

    def promised(self) -> str:
        """A list of its promises for people; empty without any."""


def sources_of(config: SupervisorConfig) -> dict[str, Source]:
    """The secrets of a configuration."""
    return {name: secret.source for name, secret in config.secrets.items()}


async def serve_api(
    service: JobService,
    on_beat: Callable[[Beat], None],
    config: SupervisorConfig,
    promising: Promising | None = None,
    log: AuditLog | None = None,
    certificates: CertificateEvents | None = None,
    policy: Policy | None = None,
    secrets: SecretSources | None = None,
) -> Server:
    """Serve both services on `config.listen`; each received Beat goes to `on_beat`, on this loop.

    Requests for promises go to `promising`; without it they are refused. `policy`, `secrets`: made from this
    configuration; the caller may change them later.

    Returns the running server: `await server.close()` ends it. Raises UserError if other machines could reach
    the address without authentication, Conflict if it is in use.
    """
    guard = Guard(config.tls_files(), config.token, config.insecure)
    control = ControlService(service, config.cluster, guard, promising)
    policy = policy or policy_of(config)
    policy.owner, policy.pools = control.owner, service.pools.objection
    heard = certificates.heard if certificates is not None else None

    def take(beat: Beat) -> BeatAck:
        if heard is not None:
            heard(beat)
        return _take_beat(beat, service, on_beat)

    async def give(request: SecretsRequest) -> SecretsAnswer:
        return await deliver(request, control.leading(), secrets or SecretSources())

    link = {"Beats": rpc.exchange(Beat, take, _is_news), "Secrets": rpc.unary(SecretsRequest, give)}
    if promising is not None:
        link["Promise"] = rpc.unary(PromiseRequest, partial(_promise, promising))
    services = {"tfsup.v1.Control": control.methods(), "tfsup.v1.Link": link}
    server = Server(config.listen, guard, services, policy, Auditor(f"supervisor:{config.id}", log))
    await server.start()
    return server


async def _promise(promising: Promising, request: PromiseRequest) -> PromiseAnswer:
    if request.protocol != LINK_PROTOCOL:
        raise IncompatibleRecord(f"link protocol {request.protocol}, this supervisor speaks {LINK_PROTOCOL}")
    return await promising.on_promise(request)


def _take_beat(beat: Beat, service: JobService, on_beat: Callable[[Beat], None]) -> BeatAck:
    if beat.protocol != LINK_PROTOCOL:
        raise IncompatibleRecord(
            f"the agent of {beat.node} speaks link protocol {beat.protocol}, this supervisor "
            f"{LINK_PROTOCOL}; bring both to one release"
        )
    on_beat(beat)
    leader, wanted = service.leader(), service.stacks_wanted(beat.node)
    if leader is None or wanted is None:
        return BeatAck(LINK_PROTOCOL, beat.seq, "")
    return BeatAck(LINK_PROTOCOL, beat.seq, leader.supervisor, wanted)


def _is_news(told: BeatAck | None, now: BeatAck) -> bool:
    """Whether an answer tells an agent anything: each one costs as much as its beat."""
    return told is None or bool(now.dump or told.dump) or now.leader != told.leader


class ControlService:
    """Serves `supervisorctl`. A follower answers every call with the leader's address."""

    def __init__(
        self, service: JobService, cluster: str, guard: Guard, promising: Promising | None = None
    ) -> None:
        self._service = service
        self._promising = promising
        self._cluster = cluster
        self._guard = guard
        self._checkpoints = CheckpointMethods(service.checkpoints, self._snapshot)
        self._nodes = NodeMethods(service.nodes, self._snapshot, guard)
        self._pauses = PauseMethods(service.pauses, self._snapshot)
        self._pools = PoolMethods(service.pools, self._snapshot)

    def methods(self) -> dict[str, rpc.Method]:
        """Method name -> handler."""
        return {
            **self._checkpoints.methods(),
            **self._nodes.methods(),
            **self._pauses.methods(),
            **self._pools.methods(),
            "Submit": rpc.unary(SubmitRequest, self.submit),
            "Validate": rpc.unary(SubmitRequest, self.validate),
            "FindCode": rpc.unary(CodeRef, self.find_code),
            "PutCode": rpc.unary(CodePart, self.put_code),
            "Status": rpc.unary(JobRequest, self.status),
            "Explain": rpc.unary(JobRequest, self.explain),
            "Describe": rpc.unary(JobRequest, self.describe),
            "Checkpoints": rpc.unary(JobRequest, self.checkpoints),
            "Stop": rpc.unary(StopRequest, self.stop),
            "Start": rpc.unary(JobRequest, self.start),
            "Release": rpc.unary(JobRequest, self.release),
            "Delete": rpc.unary(JobRequest, self.delete),
            "Restart": rpc.unary(RestartRequest, self.restart),
            "Scale": rpc.unary(ScaleRequest, self.scale),
            "Signal": rpc.unary(SignalRequest, self.signal),
            "Exec": rpc.stream(ExecRequest, self.exec),
            "Events": rpc.stream(EventsRequest, self.events),
            "Tail": rpc.stream(TailRequest, self.tail),
        }

    def owner(self, target: Target) -> Target:
        """The target with the owner of its job; raises NotLeading."""
        snap = self._snapshot()
        job = snap.jobs.get(target.job)
        deleted = snap.deleted.get(target.job)
        if job is None and deleted is not None:
            # Whoever takes its name up takes its checkpoints up.
            return replace(target, known=True, owner=deleted.value.owner, group=deleted.value.group)
        if job is None:
            # Nobody can say whose a job is that was set aside: it is no new name.
            return replace(target, known=target.job in snap.aside)
        record = job.record.value
        return replace(target, known=True, owner=record.owner, group=record.group)

    async def submit(self, request: SubmitRequest) -> Accepted:
        """Start a job."""
        self._snapshot()
        return await self._service.submissions.submit(request)

    async def validate(self, request: SubmitRequest) -> Accepted:
        """Check a job."""
        self._snapshot()
        return await self._service.submissions.validate(request)

    async def find_code(self, ref: CodeRef) -> CodeState:
        """Whether an archive is there."""
        self._snapshot()
        return await self._service.uploads.find(ref)

    async def put_code(self, part: CodePart) -> CodeState:
        """Upload a chunk of an archive."""
        self._snapshot()
        return await self._service.uploads.put(part)

    async def stop(self, request: StopRequest) -> Accepted:
        """Stop a job. One that has time to save is asked to save first: not every program does at SIGTERM."""
        snap = self._snapshot()
        saved = await save_first(self._guard, snap, [request.job] if request.save else ())
        answer = await self._service.stop(request.job, save=request.save)
        return replace(answer, detail=f"{answer.detail}{saved}")

    async def start(self, request: JobRequest) -> Accepted:
        """Start a stopped job."""
        self._snapshot()
        return await self._service.start(request.job)

    async def release(self, request: JobRequest) -> Accepted:
        """Let a parked job go on."""
        self._snapshot()
        return await self._service.release(request.job)

    async def delete(self, request: JobRequest) -> Accepted:
        """Delete a job."""
        self._snapshot()
        return await self._service.delete(request.job)

    async def restart(self, request: RestartRequest) -> Accepted:
        """Restart a job or a task."""
        self._snapshot()
        return await self._service.restart(request.job, request.member, request.from_ref)

    async def scale(self, request: ScaleRequest) -> Accepted:
        """Change the counts of a job's roles."""
        self._snapshot()
        return await self._service.scale(request.job, request.sizes)

    async def signal(self, request: SignalRequest) -> Accepted:
        """Send a signal to a task, by the agent of its node."""
        address, node = self._agent_of(request.task)
        async with Agents(self._guard) as agents:
            accepted = await agents.ask(address, "Signal", _for_caller(request), Accepted, _AGENT_S)
        return replace(accepted, detail=f"{accepted.detail}, on {node}")

    async def exec(self, request: ExecRequest) -> AsyncGenerator[ExecChunk, None]:
        """Run a command beside a task, on its node; it is killed when this stream ends."""
        address, node = self._agent_of(request.task)
        async with Agents(self._guard) as agents:
            stream = agents.stream(address, "Exec", _for_caller(request), ExecChunk, _AGENT_S)
            async with aclosing(stream) as chunks:
                async for chunk in chunks:
                    yield replace(chunk, node=node)

    async def status(self, request: JobRequest) -> ClusterStatus:
        """All jobs, or one. With many jobs, beats and decisions come between two of them."""
        snap, jobs = self._snapshot(), list[JobView]()
        for job in views.shown_jobs(snap, request.job):
            jobs.append(job)
            await asyncio.sleep(0)
        shown = views.cluster_status(snap, self._cluster, self._service.leader(), jobs)
        return replace(shown, etcd=self._service.etcd_lines())

    async def explain(self, request: JobRequest) -> Explanation:
        """A job's incidents."""
        return views.explanation(self._snapshot(), request.job)

    async def describe(self, request: JobRequest) -> Description:
        """A job's stored file."""
        return describe(self._snapshot(), request.job)

    async def checkpoints(self, request: JobRequest) -> CheckpointList:
        """A job's checkpoints."""
        return views.checkpoint_list(self._snapshot(), request.job)

    async def events(self, request: EventsRequest) -> AsyncGenerator[EventBatch, None]:
        """The last events, then, if asked to follow, new ones; an empty batch a second is a sign of life."""
        snap = self._snapshot()
        if request.job:
            views.find_job(snap, request.job)
        events, last = views.events_after(snap, request.job, request.after)
        if request.after < 0:
            events = events[-request.last :] if request.last > 0 else ()
        yield EventBatch(events, last)
        quiet = 0
        while request.follow:
            await asyncio.sleep(_POLL_S)
            events, last = views.events_after(self._snapshot(), request.job, last)
            quiet = 0 if events else quiet + 1
            if events or quiet >= _SIGN_OF_LIFE_POLLS:
                quiet = 0
                yield EventBatch(events, last)

    async def tail(self, request: TailRequest) -> AsyncGenerator[TailChunk, None]:
        """The output of a task's attempts, from the nodes where they ran, or from the job's store."""
        async with Agents(self._guard) as agents:
            async for chunk in OutputTail(request, self._snapshot, agents, self._service.open_logs).chunks():
                yield chunk

    def _agent_of(self, text: str) -> tuple[AgentAddress, str]:
        """The address of the agent of a task's node, and the node."""
        task = TaskId.parse(text)
        snap = self._snapshot()
        node = node_of(views.find_job(snap, task.job), task)
        return address_of(snap, node), node

    def leading(self) -> Snapshot:
        """The leader's present snapshot; raises NotLeading."""
        return self._snapshot()

    def _snapshot(self) -> Snapshot:
        snap = self._service.snapshot()
        if snap is None:
            leader = self._service.leader()
            instead = self._promising.promised() if self._promising is not None else ""
            told = "; ".join(filter(None, (instead, *self._service.etcd_lines())))
            raise NotLeading(leader.address if leader is not None else "", told)
        return snap


def _for_caller(request: A) -> A:
    """The request for an agent, with the name of its caller: the agent itself sees only this supervisor."""
    return replace(request, by=str(CALLER.get() or ""))
