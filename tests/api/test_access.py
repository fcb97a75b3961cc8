"""Who may call what, over real TLS: every method with every identity, and nothing beside the table."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import pytest

from agent.api import NodeApi
from agent.core.state import AgentState
from agent.link import open_beats
from agent.logs.task_logs import AttemptFiles
from agent.operate import Operator
from agent.settings import AgentSettings
from chaos.cluster.certificates import Authority
from supervisor.adapters.audit import AuditLog
from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.clock import BootClock
from supervisor.api.server import policy_of, serve_api
from supervisor.contract import codec, keys
from supervisor.contract.access import (
    BETWEEN_DAEMONS,
    READS,
    TABLE,
    Caller,
    Kind,
    Right,
    Role,
    Standing,
    Target,
    check_target,
    identify,
)
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.code import CodePart
from supervisor.contract.desired import DeletedJob, LeaderRecord
from supervisor.contract.errors import Refused
from supervisor.contract.job.spec import CodeRef
from supervisor.contract.observed import LINK_PROTOCOL, Beat, NodeResources
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
    PinRequest,
    ReadRequest,
    RestartRequest,
    ScaleRequest,
    SignalRequest,
    StopRequest,
    SubmitRequest,
    TailRequest,
)
from supervisor.contract.views.nodes import CordonRequest, GpusRequest, UncordonRequest
from supervisor.control.decide.plan import put
from supervisor.control.decide.set_aside import Aside
from supervisor.control.decide.snapshot import Versioned
from supervisor.wire.audit import Auditor
from supervisor.wire.failures import read_failure
from supervisor.wire.gate import Policy
from supervisor.wire.rpc import Guard, Server, unary
from supervisor.wire.tfsup_pb2 import DESCRIPTOR, Record
from tests.api.test_api import FakeJobService, Place
from tests.control.world import World
from tests.support.builders import job_spec
from tests.support.etcd_server import free_port
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
CALLERS = (
    *(f"user:{name}" for name in (*USERS, "nobody")),
    "agent:n1",
    "agent:n2",
    "supervisor:s1",
    "",
)
"""As their certificates have it; the last one's has no identity."""
MAY = {
    Right.VIEW: {"user:vera", "user:alice", "user:carol", "user:bob", "user:olga", "user:adam"},
    Right.SUBMIT: {"user:alice", "user:carol", "user:bob", "user:olga", "user:adam"},
    Right.JOB: {"user:alice", "user:carol", "user:olga", "user:adam"},
    Right.ENTER: {"user:alice", "user:carol", "user:adam"},
    Right.OPERATE: {"user:olga", "user:adam"},
    Right.OWN_NODE: {"agent:n1"},
    Right.SUPERVISORS: {"supervisor:s1"},
}
"""Who of them may, where the job is alice's and the node n1."""
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
    "Control.Checkpoints": JobRequest(JOB),
    "Control.Nodes": JobRequest(),
    "Control.Gpus": GpusRequest(),
    "Control.Cordon": CordonRequest("n1"),
    "Control.Uncordon": UncordonRequest("n1"),
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
    "Node.Outputs": OutputsRequest("uuid", f"{JOB}/worker:0"),
    "Node.Read": ReadRequest("uuid", OutputPlace(f"{NO_TASK}@1.1"), 1),
    "Node.Signal": SignalRequest(NO_TASK, 15),
    "Node.Exec": ExecRequest(NO_TASK, ("true",), 1_000),
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
        more = {"user_ca": str(self.users.certificate)} if self.users is not None else {}
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


@pytest.fixture
async def doors(tmp_path: Path) -> AsyncIterator[Doors]:
    async with AsyncExitStack() as stack:
        made = Doors(tmp_path, stack)
        await made.open()
        yield made


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


def test_every_method_has_a_row_and_a_request() -> None:
    assert set(TABLE) == set(METHODS), "supervisor/contract/access.py says who may call a method"
    assert set(REQUESTS) == set(METHODS), "add a request of the new method"
    assert set(MAY) == set(Right)
    assert set(TABLE) >= READS | BETWEEN_DAEMONS


async def test_the_authority_of_users_makes_users_alone(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        doors = Doors(tmp_path, stack, Authority(tmp_path / "users"))
        await doors.open()
        for identity, method, answer in (
            ("user:vera", "Control.Status", "ok"),
            ("supervisor:s0", "Control.Status", "Refused"),
            ("agent:n1", "Link.Beats", "Refused"),
        ):
            ours, theirs = await doors.caller(identity), await doors.caller(identity, doors.users)
            expected = "Refused" if identity.startswith("supervisor") else "ok"
            assert await ask(ours, method, REQUESTS[method]) == expected
            assert await ask(theirs, method, REQUESTS[method]) == answer
        assert [beat.node for beat in doors.beats] == ["n1"]
        # An agent does not even let it connect.
        forged = await doors.caller("supervisor:s0", doors.users)
        assert (await ask(forged, "Node.Read", REQUESTS["Node.Read"])).startswith("StatusCode.UNAVAILABLE")


async def test_every_identity_may_do_what_the_table_says_and_nothing_else(doors: Doors) -> None:
    wrong = []
    for caller in CALLERS:
        channels = await doors.caller(caller)
        for method, request in REQUESTS.items():
            answer = await ask(channels, method, request)
            assert not answer.startswith("StatusCode"), f"{method} by {caller}: {answer}"
            if (answer != "Refused") is not (caller in MAY[TABLE[method]]):
                wrong.append(f"{method} by {caller or 'a certificate without identity'}: {answer}")
    assert wrong == []
    assert {beat.node for beat in doors.beats} == {"n1"}


@pytest.mark.parametrize(
    "identity", ["user:adam\0.example", "user:adam\0", "\0user:adam"], ids=["within", "at the end", "before"]
)
async def test_an_identity_that_a_nul_would_end_is_nobodys(doors: Doors, identity: str) -> None:
    channels = await doors.caller(identity)
    assert await ask(channels, "Control.Cordon", REQUESTS["Control.Cordon"]) == "Refused"


async def test_a_caller_has_so_many_streams_at_a_time_and_others_have_theirs(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.wire.rpc.MOST_STREAMS", 2)
    vera, olga = await doors.caller("user:vera"), await doors.caller("user:olga")
    follow = Record(json=codec.encode(EventsRequest(JOB, follow=True)))
    call = vera["supervisor"].unary_stream(
        "/tfsup.v1.Control/Events",
        request_serializer=Record.SerializeToString,
        response_deserializer=Record.FromString,
    )
    streams = [call(follow, metadata=Guard().metadata()) for _ in range(2)]
    for each in streams:
        await each.read()
    assert await ask(vera, "Control.Tail", REQUESTS["Control.Tail"]) == "Refused"
    assert await ask(vera, "Control.Status", REQUESTS["Control.Status"]) == "ok"
    assert await ask(olga, "Control.Events", REQUESTS["Control.Events"]) == "ok"
    streams[0].cancel()
    async with asyncio.timeout(20):
        while await ask(vera, "Control.Events", REQUESTS["Control.Events"]) == "Refused":
            pass


async def test_an_agent_beats_and_asks_for_promises_for_its_own_node_alone(doors: Doors) -> None:
    channels = await doors.caller("agent:n2")
    for method, request in (
        ("Link.Beats", Beat(LINK_PROTOCOL, "n1", "i1", 1)),
        ("Link.Promise", PromiseRequest(LINK_PROTOCOL, "n1", "i1", 1)),
    ):
        assert await ask(channels, method, request) == "Refused"
    assert doors.beats == []
    assert await ask(channels, "Link.Beats", Beat(LINK_PROTOCOL, "n2", "i2", 1)) == "ok"
    assert [beat.node for beat in doors.beats] == ["n2"]


async def test_who_may_submit_may_submit_a_job_of_a_new_name_and_not_of_anothers(doors: Doors) -> None:
    channels = await doors.caller("user:bob")
    new = SubmitRequest(job_spec({"worker": 1}, name="bobs"))
    assert await ask(channels, "Control.Submit", new) == "ok"
    assert await ask(channels, "Control.Submit", REQUESTS["Control.Submit"]) == "Refused"


async def test_who_is_shut_out_may_do_nothing_from_the_next_request_on(doors: Doors) -> None:
    callers = {
        "user:adam": "Control.Stop",
        "agent:n1": "Link.Beats",
        "supervisor:s1": "Node.Outputs",
    }
    for caller, method in callers.items():
        channels = await doors.caller(caller)
        assert await ask(channels, method, REQUESTS[method]) != "Refused"
        for policy in doors.policies:
            policy.denied = frozenset({caller})
        assert await ask(channels, method, REQUESTS[method]) == "Refused"
        for policy in doors.policies:
            policy.denied = frozenset()
        assert await ask(channels, method, REQUESTS[method]) != "Refused"


async def test_a_stream_of_beats_ends_when_its_agent_is_shut_out(doors: Doors) -> None:
    channel = (await doors.caller("agent:n1"))["supervisor"]
    beat = Record(json=codec.encode(REQUESTS["Link.Beats"]))
    call = open_beats(channel, Guard())
    await call.write(beat)
    await call.read()
    doors.policies[0].denied = frozenset({"agent:n1"})
    await call.write(beat)
    with pytest.raises(grpc.aio.AioRpcError, match="agent:n1 is shut out"):
        await call.read()
    assert len(doors.beats) == 1


async def test_a_role_that_is_taken_away_is_gone_with_the_next_request(doors: Doors) -> None:
    channels = await doors.caller("user:olga")
    assert await ask(channels, "Control.Stop", REQUESTS["Control.Stop"]) == "ok"
    doors.policies[0].users = {"olga": Standing(Role.VIEWER)}
    assert await ask(channels, "Control.Stop", REQUESTS["Control.Stop"]) == "Refused"
    assert await ask(channels, "Control.Status", REQUESTS["Control.Status"]) == "ok"


async def test_the_name_of_a_deleted_job_is_its_owners_while_that_is_known(doors: Doors) -> None:
    assert doors.job_service.picture is not None
    gone = Versioned(keys.deleted(JOB), DeletedJob(JOB, "uuid", 1, ALICES[1], ALICES[2]), 1, 1, 0, 0)
    doors.job_service.picture = replace(doors.job_service.picture, jobs={}, deleted={JOB: gone})
    answers = {
        name: await ask(await doors.caller(f"user:{name}"), "Control.Submit", REQUESTS["Control.Submit"])
        for name in ("bob", "alice", "carol", "olga")
    }
    assert answers == {"bob": "Refused", "alice": "ok", "carol": "ok", "olga": "ok"}


async def test_a_job_that_was_set_aside_is_no_new_name(doors: Doors) -> None:
    assert doors.job_service.picture is not None
    aside = {JOB: Aside("", "its record cannot be read")}
    doors.job_service.picture = replace(doors.job_service.picture, jobs={}, aside=aside)
    alice, olga = await doors.caller("user:alice"), await doors.caller("user:olga")
    for method in ("Control.Submit", "Control.Release", "Control.Stop"):
        assert await ask(alice, method, REQUESTS[method]) == "Refused"
        assert await ask(olga, method, REQUESTS[method]) != "Refused"


async def test_whoever_connects_to_the_unix_socket_may_do_all(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        place = Place(tmp_path, stack)
        world = World().start()
        service = FakeJobService(world.snapshot(), LeaderRecord("s0", place.address("s0"), 1))
        channel = await stack.enter_async_context(Guard().channel(await place.serve("s0", service)))
        control = [method for method in REQUESTS if method.startswith("Control.")]
        answers = {await ask({"supervisor": channel}, method, REQUESTS[method]) for method in control}
        assert "Refused" not in answers


async def test_a_method_without_a_row_is_served_to_nobody(tmp_path: Path) -> None:
    async def answer(request: JobRequest) -> JobRequest:
        return request

    listen = f"unix:{tmp_path}/s"
    server = Server(listen, Guard(), {"tfsup.v1.Control": {"Unheard": unary(JobRequest, answer)}})
    await server.start()
    try:
        async with Guard().channel(listen) as channel:
            call = channel.unary_unary(
                "/tfsup.v1.Control/Unheard",
                request_serializer=Record.SerializeToString,
                response_deserializer=Record.FromString,
            )
            with pytest.raises(grpc.aio.AioRpcError, match=r"Control\.Unheard is not in the table of rights"):
                await call(Record(json=codec.encode(JobRequest())), metadata=Guard().metadata(), timeout=20)
    finally:
        await server.close(0)


@pytest.mark.parametrize(
    ("uris", "message"),
    [
        ((), "has no identity"),
        (("spiffe://x/y",), "has no identity"),
        (("user:a", "agent:b"), "more than one identity"),
        (("user:",), "no valid name"),
        (("user:a b",), "no valid name"),
        (("agent:../x",), "no valid name"),
    ],
)
def test_a_certificate_names_exactly_one_caller(uris: tuple[str, ...], message: str) -> None:
    with pytest.raises(Refused, match=message):
        identify(uris)


def test_a_certificate_may_have_other_uris_beside() -> None:
    assert identify(("spiffe://x/y", "user:alice@example.com")) == (Kind.USER, "alice@example.com")


@pytest.mark.parametrize(
    "method", [method for method, right in TABLE.items() if right in (Right.JOB, Right.ENTER)]
)
def test_a_job_of_unknown_owner_is_for_those_who_may_act_on_all_jobs(method: str) -> None:
    target = Target(JOB, known=True)
    with pytest.raises(Refused, match="belongs to nobody"):
        check_target(method, Caller(Kind.USER, "alice", Standing(Role.SUBMITTER)), target)
    check_target(method, Caller(Kind.USER, "adam", Standing(Role.ADMIN)), target)


def test_users_without_a_group_do_not_share_jobs() -> None:
    target = Target(JOB, known=True, owner="user:alice")
    with pytest.raises(Refused, match="belongs to user:alice"):
        check_target("Control.Stop", Caller(Kind.USER, "bob", Standing(Role.SUBMITTER)), target)
