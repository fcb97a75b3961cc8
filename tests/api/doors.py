"""The APIs of a supervisor and an agent over TLS, a request for each method, callers with certificates."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc

from agent.api import NodeApi
from agent.core.state import AgentState
from agent.logs.task_logs import AttemptFiles
from agent.operate import Operator
from agent.settings import AgentSettings
from chaos.cluster.certificates import Authority
from supervisor.adapters.audit import AuditLog
from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.clock import BootClock
from supervisor.api.server import serve_api
from supervisor.contract import codec, keys
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.code import CodePart
from supervisor.contract.desired import LeaderRecord
from supervisor.contract.job.spec import CodeRef
from supervisor.contract.observed import LINK_PROTOCOL, Beat, NodeResources
from supervisor.contract.pool.requests import CertifyRequest, OpenPoolRequest, PoolRequest, RevokePoolRequest
from supervisor.contract.promise import PromiseAnswer, PromiseRequest
from supervisor.contract.secret import SecretsRequest
from supervisor.contract.timing import FAST
from supervisor.contract.views.checkpoints import (
    AdoptRequest,
    CollectRequest,
    FindRequest,
    ImportRequest,
    VerifyRequest,
)
from supervisor.contract.views.jobs import (
    EventsRequest,
    ExecRequest,
    JobRequest,
    OutputPlace,
    OutputsRequest,
    PauseRequest,
    PinRequest,
    ReadRequest,
    RestartRequest,
    SaveRequest,
    ScaleRequest,
    SignalRequest,
    StopRequest,
    SubmitRequest,
    TailRequest,
)
from supervisor.contract.views.nodes import CordonRequest, DismissRequest, GpusRequest, UncordonRequest
from supervisor.control.decide.plan import put
from supervisor.wire.audit import Auditor
from supervisor.wire.failures import read_failure
from supervisor.wire.gate import Policy, policy_of
from supervisor.wire.rpc import Guard
from supervisor.wire.tfsup_pb2 import DESCRIPTOR, Record
from tests.api.services import FakeJobService, Place
from tests.control.world import World
from tests.support.builders import job_spec
from tests.support.ports import free_port
from tests.support.sinks import ListSink

JOB = "digits"
ALICES = (JOB, "user:alice", "vision")
USERS = {
    "vera": {"role": "viewer"},
    "alice": {"role": "submitter", "group": "vision"},
    "carol": {"role": "submitter", "group": "vision"},
    "bob": {"role": "submitter"},
    "olga": {"role": "operator"},
    "adam": {"role": "admin"},
}
REF = CheckpointRef(1, 100)
NO_TASK = f"{JOB}/worker:99"
ENDED_EARLY = 5
REQUESTS: dict[str, object] = {
    "Link.Beats": Beat(LINK_PROTOCOL, "n1", "i1", 1),
    "Link.Promise": PromiseRequest(LINK_PROTOCOL, "n1", "i1", 1),
    "Link.Secrets": SecretsRequest(LINK_PROTOCOL, "n1", f"{JOB}/worker:0", "another-plan"),
    "Control.Submit": SubmitRequest(job_spec({"worker": 1}, name=JOB)),
    "Control.Validate": SubmitRequest(job_spec({"worker": 1}, name=JOB)),
    "Control.FindCode": CodeRef("a" * 64, 1),
    "Control.PutCode": CodePart("a" * 64, 1, 0, "eA=="),
    "Control.Status": JobRequest(),
    "Control.Explain": JobRequest(JOB),
    "Control.Describe": JobRequest(JOB),
    "Control.Checkpoints": JobRequest(JOB),
    "Control.Nodes": JobRequest(),
    "Control.Gpus": GpusRequest(),
    "Control.Cordon": CordonRequest("n1"),
    "Control.Uncordon": UncordonRequest("n1"),
    "Control.Dismiss": DismissRequest("p.n1", "i1"),
    "Control.Pause": PauseRequest(),
    "Control.Resume": JobRequest(),
    "Control.PauseJob": PauseRequest(JOB, "an experiment"),
    "Control.ResumeJob": JobRequest(JOB),
    "Control.Stop": StopRequest(JOB),
    "Control.Start": JobRequest(JOB),
    "Control.Release": JobRequest(JOB),
    "Control.Delete": JobRequest(JOB),
    "Control.Restart": RestartRequest(JOB),
    "Control.Scale": ScaleRequest(JOB, {"worker": 2}),
    "Control.Pin": PinRequest(JOB, REF),
    "Control.FindCheckpoint": FindRequest(JOB, REF),
    "Control.CollectCheckpoints": CollectRequest(JOB),
    "Control.PlaceImport": ImportRequest(JOB, 1),
    "Control.VerifyCheckpoints": VerifyRequest(JOB),
    "Control.AdoptImport": AdoptRequest(JOB, "p"),
    "Control.RebuildRecords": JobRequest(JOB),
    "Control.Signal": SignalRequest(NO_TASK, 15),
    "Control.Exec": ExecRequest(NO_TASK, ("true",), 1_000),
    "Control.Events": EventsRequest(JOB),
    "Control.Tail": TailRequest(NO_TASK),
    "Control.Pools": PoolRequest(),
    "Control.OpenPool": OpenPoolRequest("train", "", 60_000),
    "Control.RevokePool": RevokePoolRequest("train"),
    "Control.Certify": CertifyRequest("train.n1", ""),
    "Node.Outputs": OutputsRequest("uuid", f"{JOB}/worker:0"),
    "Node.Read": ReadRequest("uuid", OutputPlace(f"{NO_TASK}@1.1"), 1),
    "Node.Signal": SignalRequest(NO_TASK, 15),
    "Node.Exec": ExecRequest(NO_TASK, ("true",), 1_000),
    "Node.Save": SaveRequest(NO_TASK),
}
METHODS = {
    f"{service.name}.{method.name}": method
    for service in DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


class Promising:
    """Promises nothing."""

    async def on_promise(self, request: PromiseRequest) -> PromiseAnswer:
        return PromiseAnswer("s0", request.serial, 0, "not now")

    def promised(self) -> str:
        return ""


@dataclass
class Doors:
    """A supervisor's and an agent's API with certificates, and callers with theirs."""

    root: Path
    stack: AsyncExitStack
    users: Authority | None = None
    """Another authority, for users alone."""
    pools: Authority | None = None
    """Another authority, for agents of pools alone."""
    authority: Authority = field(init=False)
    addresses: dict[str, str] = field(init=False)
    job_service: FakeJobService = field(init=False)
    beats: list[Beat] = field(default_factory=list)
    log: AuditLog | None = None
    policies: list[Policy] = field(default_factory=list)
    """The supervisor's and the agent's."""

    def __post_init__(self) -> None:
        self.authority = Authority(self.root / "tls")
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in ("supervisor", "agent")}
        world = World().start()
        record = world.job().record.value
        world.write(put(keys.job_record(JOB), replace(record, owner=ALICES[1], group=ALICES[2])))
        self.job_service = FakeJobService(
            world.snapshot(), LeaderRecord("s0", self.addresses["supervisor"], 1)
        )

    def files(self, file: str, identity: str, authority: Authority | None = None) -> TlsFiles:
        cert, key = (authority or self.authority).issue(file, ["127.0.0.1"], identity)
        return TlsFiles(self.authority.certificate, cert, key)

    async def open(self) -> None:
        place = Place(self.root, self.stack)
        tls = self.files("s0", "supervisor:s0")
        shown = {name: str(getattr(tls, name)) for name in ("ca", "cert", "key")}
        more: dict[str, object] = {"user_ca": str(self.users.certificate)} if self.users is not None else {}
        if self.pools is not None:
            more["pools"] = {"issuer": {"cert": str(self.pools.certificate), "key": str(self.pools.key())}}
        config = place.config("s0", listen=self.addresses["supervisor"], tls=shown, users=USERS, **more)
        self.policies = [policy_of(config), Policy()]
        promising, supervisors = Promising(), self.policies[0]
        server = await serve_api(
            self.job_service, self.beats.append, config, promising, self.log, policy=supervisors
        )
        self.stack.push_async_callback(server.close, 0)
        settings = AgentSettings("n1", "h", "", 1, 2, "/l", FAST, NodeResources(1.0, 1))
        state = AgentState(settings, "life", "boot", FAST.d_ms)
        files = AttemptFiles(self.root / "attempts", ListSink())
        operator = Operator(self.root, files, lambda: state, BootClock(), ListSink())
        guard, auditor = Guard(self.files("n1", "agent:n1")), Auditor("agent:n1", self.log)
        api = NodeApi(self.addresses["agent"], guard, files, operator, auditor, self.policies[1])
        await api.open()
        self.stack.push_async_callback(api.close)

    async def caller(self, identity: str, authority: Authority | None = None) -> dict[str, grpc.aio.Channel]:
        """Connections to both."""
        file = re.sub(r"[^a-z0-9]", "-", f"caller-{identity or 'none'}")
        guard = Guard(self.files(file, identity, authority))
        return {
            name: await self.stack.enter_async_context(guard.channel(address))
            for name, address in self.addresses.items()
        }


async def ask(channels: dict[str, grpc.aio.Channel], method: str, request: object) -> str:
    """`ok`, or the class of our error that came back.

    A server that refuses a stream may end it while the first message is written, which gRPC tells as an
    error of its own: then the stream is asked for again.
    """
    answer = ""
    for _ in range(ENDED_EARLY):
        answer = await ask_once(channels, method, request)
        if "Internal error from Core" not in answer:
            break
    return answer


async def ask_once(channels: dict[str, grpc.aio.Channel], method: str, request: object) -> str:
    """As `ask`, whatever comes of it."""
    service, _, name = method.partition(".")
    channel = channels["agent" if service == "Node" else "supervisor"]
    described = METHODS[method]
    streams = (described.client_streaming, described.server_streaming)
    shape = "_".join("stream" if each else "unary" for each in streams)
    call = getattr(channel, shape)(
        f"/tfsup.v1.{service}/{name}",
        request_serializer=Record.SerializeToString,
        response_deserializer=Record.FromString,
    )
    record = Record(json=codec.encode(request))
    metadata = Guard().metadata()
    try:
        if shape == "unary_unary":
            await call(record, metadata=metadata, timeout=60)
            return "ok"
        stream = (
            call(iter((record,)), metadata=metadata)
            if shape == "stream_stream"
            else call(record, metadata=metadata)
        )
        await stream.read()
        stream.cancel()
        answer = "ok"
    except grpc.aio.AioRpcError as error:
        failure = read_failure(error)
        answer = failure.error if failure is not None else f"{error.code()}: {error.details()}"
    return answer
