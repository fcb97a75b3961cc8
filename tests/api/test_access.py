"""Rights of callers over real TLS: every method with every identity, and nothing beside the table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from agent.link import open_beats
from chaos.cluster.certificates import Authority
from supervisor.contract import codec, keys
from supervisor.contract.access import (
    FREQUENT,
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
from supervisor.contract.desired import DeletedJob, LeaderRecord
from supervisor.contract.errors import Refused
from supervisor.contract.observed import LINK_PROTOCOL, Beat
from supervisor.contract.promise import PromiseRequest
from supervisor.contract.views.jobs import (
    EventsRequest,
    JobRequest,
    SubmitRequest,
)
from supervisor.control.decide.set_aside import Aside
from supervisor.control.decide.snapshot import Versioned
from supervisor.wire.gate import Gate, Policy
from supervisor.wire.rpc import Guard, Server, unary
from supervisor.wire.tfsup_pb2 import Record
from tests.api.doors import (
    ALICES,
    JOB,
    METHODS,
    REQUESTS,
    USERS,
    Doors,
    ask,
)
from tests.api.services import FakeJobService, Place
from tests.control.world import World
from tests.support.builders import job_spec

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
    Right.POOL_NODE: set(),  # of another authority: tests/api/test_pools.py
}
"""The callers that have each right, where the job is alice's and the node n1."""


@pytest.fixture
async def doors(tmp_path: Path) -> AsyncIterator[Doors]:
    async with AsyncExitStack() as stack:
        made = Doors(tmp_path, stack)
        await made.open()
        yield made


def test_every_method_has_a_row_and_a_request() -> None:
    called = {method for method in TABLE if not method.startswith("Http.")}
    assert called == set(METHODS), "supervisor/contract/access.py says who may call a method"
    assert set(REQUESTS) == set(METHODS), "add a request of the new method"
    assert set(MAY) == set(Right)
    assert set(TABLE) >= READS | FREQUENT


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


async def test_an_open_stream_ends_when_the_role_is_taken_away(doors: Doors) -> None:
    channel = (await doors.caller("user:vera"))["supervisor"]
    call = channel.unary_stream(
        "/tfsup.v1.Control/Events",
        request_serializer=Record.SerializeToString,
        response_deserializer=Record.FromString,
    )
    follow = call(Record(json=codec.encode(EventsRequest(JOB, follow=True))), metadata=Guard().metadata())
    await follow.read()
    doors.policies[0].users = {"vera": Standing(Role.SUBMITTER)}
    await follow.read()
    doors.policies[0].users = {}
    with pytest.raises(grpc.aio.AioRpcError, match=r"user:vera may not call Control\.Events"):
        await follow.read()


def test_a_command_in_a_job_of_others_ends_when_its_caller_is_no_admin_any_more() -> None:
    policy = Policy(owner=lambda target: replace(target, known=True, owner=ALICES[1], group=ALICES[2]))
    gate, method = Gate(policy, ""), "Control.Exec"
    target = gate.target(method, REQUESTS[method])
    for standing, stays in (
        (Standing(Role.ADMIN), True),
        (Standing(Role.SUBMITTER), False),
        (Standing(Role.SUBMITTER, ALICES[2]), True),
        (Standing(Role.OPERATOR), False),
    ):
        policy.users = {"adam": standing}
        with nullcontext() if stays else pytest.raises(Refused, match="belongs to user:alice"):
            gate.remain(method, Caller(Kind.USER, "adam", Standing(Role.ADMIN)), target)


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
