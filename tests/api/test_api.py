"""The API over real gRPC: errors, the way to the leader, guards, streams and beats."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import grpc
import pytest

from supervisor.api import client as client_module
from supervisor.api import views
from supervisor.api.client import ControlClient
from supervisor.api.server import ControlService, serve_api
from supervisor.contract import codec, keys
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.code import MAX_PACKED_BYTES, CodePart, CodeState, answer_s, chunk_count
from supervisor.contract.desired import LeaderRecord
from supervisor.contract.errors import (
    BadCheckpoint,
    Conflict,
    IncompatibleRecord,
    NotFound,
    Refused,
    Unreachable,
    UserError,
)
from supervisor.contract.incident import Event
from supervisor.contract.job.spec import CodeRef
from supervisor.contract.observed import LINK_PROTOCOL, Beat, BeatAck
from supervisor.contract.views.checkpoints import (
    AdoptRequest,
    CollectRequest,
    FindRequest,
    ImportRequest,
    VerifyRequest,
)
from supervisor.contract.views.jobs import (
    Accepted,
    EventsRequest,
    JobRequest,
    JobView,
    SubmitRequest,
)
from supervisor.control.decide.snapshot import Snapshot, Versioned
from supervisor.wire.rpc import Entrance, Guard, Method, Server, unary
from supervisor.wire.tfsup_pb2 import Record
from tests.api.services import FakeCheckpointService, FakeJobService, FakeSubmissionService, Place
from tests.control.world import World
from tests.support.builders import job_spec
from tests.support.ports import free_port
from tests.support.waiting import until


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        yield Place(tmp_path, stack)


async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """All bytes, and the end of them."""
    while data := await source.read(1 << 16):
        sink.write(data)
    sink.close()


def leading(world: World | None = None) -> FakeJobService:
    return FakeJobService((world or World().start()).snapshot(), LeaderRecord("s0", "unix:/s0", 1))


async def test_what_operators_must_know_of_etcd_is_told_with_a_leader_and_without(place: Place) -> None:
    service = leading()
    client = await place.client(await place.serve("s0", service))
    assert (await client.status()).etcd == ()
    service.full = True
    assert (await client.status()).etcd == ("etcd is full",)
    service.picture = service.record = None
    with pytest.raises(Unreachable, match="no supervisor leads at the moment; etcd is full"):
        await client.status()


async def test_every_question_has_its_answer(place: Place) -> None:
    service = leading()
    service.submissions = submissions = FakeSubmissionService()
    client = await place.client(await place.serve("s0", service))
    assert (await client.status()).jobs[0].name == "digits"
    assert (await client.explain("digits")).job.name == "digits"
    assert (await client.describe("digits")).job == "digits"
    assert (await client.checkpoints("digits")).job == "digits"
    assert len((await client.nodes()).nodes) == 3
    assert await client.stop("digits") == Accepted("digits", "done")
    assert await client.start("digits") == Accepted("digits", "done")
    assert await client.restart("digits", "worker.0") == Accepted("digits", "done")
    await client.restart("digits", from_ref=CheckpointRef(0, 7))
    await client.scale("digits", {"worker": 4})
    await client.stop("digits", save=True)
    request = SubmitRequest(job_spec())
    await client.validate(request)
    await client.submit(request)
    assert service.asked == [
        "digits",
        "digits",
        ("digits", "worker.0", None),
        ("digits", "", CheckpointRef(0, 7)),
        ("digits", {"worker": 4}),
        ("digits", True),
    ]
    assert submissions.asked == [request, request]


async def test_checkpoints_in_their_store_are_asked_about(place: Place) -> None:
    service = leading()
    service.checkpoints = checkpoints = FakeCheckpointService()
    client = await place.client(await place.serve("s0", service))
    ref = CheckpointRef(0, 7)
    assert (await client.find_checkpoint("digits", ref)).commit.ref == ref
    assert (await client.collect("digits", dry_run=True)).dry_run
    await client.pin("digits", CheckpointRef(1, 7), pinned=True)
    assert (await client.place_import("digits", 9)).ref.step == 9
    for stream in (client.verify("digits", (ref,)), client.adopt("digits", "p"), client.rebuild("digits")):
        assert [item.end async for item in stream] == ["", "done"]
    assert checkpoints.asked == [
        FindRequest("digits", ref),
        CollectRequest("digits", dry_run=True),
        ("digits", CheckpointRef(1, 7), True),
        ImportRequest("digits", 9),
        VerifyRequest("digits", (ref,)),
        AdoptRequest("digits", "p"),
        JobRequest("digits"),
    ]
    checkpoints.error = BadCheckpoint("torn")
    with pytest.raises(BadCheckpoint, match="torn"):
        async for _ in client.rebuild("digits"):
            pass


@pytest.mark.parametrize("error", [UserError("a\nb"), Conflict("c"), Refused("é"), NotFound("x" * 9000)])
async def test_errors_arrive_as_what_they_were(place: Place, error: Exception) -> None:
    client = await place.client(await place.serve("s0", FakeJobService(leading().picture, error=error)))
    with pytest.raises(type(error)) as caught:
        await client.stop("digits")
    assert str(caught.value)[:5000] == str(error)[:5000]


async def test_an_unknown_job_is_not_found(place: Place) -> None:
    client = await place.client(await place.serve("s0", leading()))
    with pytest.raises(NotFound, match="no job 'x'; jobs here: digits"):
        await client.status("x")


async def test_a_follower_names_the_leader_which_the_client_need_not_know(place: Place) -> None:
    leader = leading()
    address = await place.serve("leader", leader)
    follower = FakeJobService(record=LeaderRecord("leader", address, 1))
    client = await place.client(place.address("nobody"), await place.serve("follower", follower))
    assert (await client.status()).jobs[0].name == "digits"
    await client.stop("digits")
    assert (leader.asked, follower.asked) == (["digits"], [])


async def test_a_leader_that_comes_late_is_waited_for(place: Place) -> None:
    client = await place.client(place.address("late"))
    asking = asyncio.create_task(client.status())
    await asyncio.sleep(0)
    await place.serve("late", leading())
    assert (await asking).jobs


async def test_without_a_leader_each_supervisor_is_named(place: Place) -> None:
    follower = await place.serve("s0", FakeJobService())
    client = await place.client(follower, place.address("s1"), deadline_s=3)
    with pytest.raises(Unreachable) as caught:
        await client.status()
    assert "s0: no supervisor leads at the moment" in str(caught.value)
    assert "s1: no connection" in str(caught.value)


async def test_what_a_supervisor_has_said_is_told_though_it_had_no_time_to_say_it_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_ATTEMPT_S", 60.0)
    asked: list[JobRequest] = []

    async def status(request: JobRequest) -> NoReturn:
        asked.append(request)
        if len(asked) > 1:
            await asyncio.Event().wait()
        raise Unreachable("no supervisor leads at the moment")

    guard = Guard()
    methods = {"Status": unary(JobRequest, status)}
    server = Server(place.address("s0"), guard, {"tfsup.v1.Control": methods})
    await server.start()
    place.stack.push_async_callback(server.close, 0)
    client = await place.client(place.address("s0"), deadline_s=2)
    with pytest.raises(Unreachable, match="s0: no supervisor leads at the moment"):
        await client.status()
    assert len(asked) == 2


@pytest.mark.parametrize("size", [1, MAX_PACKED_BYTES])
async def test_a_client_listens_until_the_leader_has_told_why_a_store_does_not_answer(
    place: Place, size: int
) -> None:
    """However short the time that its user has given it."""
    left: list[float] = []

    async def answer(_: Record, context: grpc.aio.ServicerContext[Record, Record]) -> Record:
        left.append(context.time_remaining())
        return Record(json=codec.encode(CodeState("d", complete=True)))

    def behind(_: Entrance) -> grpc.RpcMethodHandler[Record, Record]:
        return grpc.unary_unary_rpc_method_handler(answer, Record.FromString, Record.SerializeToString)

    methods: dict[str, Method] = {"FindCode": behind, "PutCode": behind}
    server = Server(place.address("s0"), Guard(), {"tfsup.v1.Control": methods})
    await server.start()
    place.stack.push_async_callback(server.close, 0)
    client = await place.client(place.address("s0"), deadline_s=3)
    last = chunk_count(size) - 1
    await client.find_code(CodeRef("d", size))
    await client.put_code(CodePart("d", size, last, ""))
    assert all(each > answer_s(size) + 1 for each in left)
    assert len(left) == 2


async def test_a_write_whose_answer_is_lost_is_not_sent_again(place: Place) -> None:
    service = leading()
    service.slow = asyncio.Event()
    config = place.config("s0")
    server = await serve_api(service, place.beats.append, config)
    client = await place.client(config.listen, deadline_s=10)
    asking = asyncio.create_task(client.stop("digits"))
    async with asyncio.timeout(20):
        await service.begun.wait()
    await server.close(0)
    with pytest.raises(Unreachable, match="may or may not have been recorded"):
        await asking


async def test_a_call_outlives_the_connection_that_another_call_gave_up(place: Place) -> None:
    service = leading()
    service.slow = asyncio.Event()
    client = await place.client(await place.serve("s0", service), deadline_s=20)
    request = SubmitRequest(job_spec())
    impatient = asyncio.create_task(client.validate(request))
    await asyncio.wait([impatient], timeout=1)
    bystander = asyncio.create_task(client.validate(request))
    await asyncio.wait([bystander], timeout=1.5)
    service.slow.set()
    assert (await bystander, await impatient) == (Accepted("digits", "done"), Accepted("digits", "done"))


async def test_a_question_that_a_release_has_no_answer_to_is_told_so_by_the_leader_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = ControlService.methods
    older = FakeJobService(None, LeaderRecord("s1", place.address("s1"), 1))
    with monkeypatch.context() as patched:
        patched.setattr(
            ControlService,
            "methods",
            lambda service: {name: each for name, each in methods(service).items() if name != "Describe"},
        )
        follower = await place.serve("s0", older)
    leader = await place.serve("s1", leading())
    client = await place.client(follower, leader)
    assert (await client.describe("digits")).recorded is False
    with pytest.raises(NotFound, match="no job 'x'; jobs here: digits"):
        await client.describe("x")
    older.picture, older.record = World().start().snapshot(), LeaderRecord("s0", follower, 1)
    with pytest.raises(IncompatibleRecord, match=r"s0 is of an earlier release, .* upgrade it"):
        await (await place.client(follower)).describe("digits")


async def test_a_supervisor_that_is_far_away_or_on_a_busy_machine_is_reached(place: Place) -> None:
    """Each try was broken off after a tenth of a second."""
    near = (await place.serve("s0", leading())).removeprefix("unix:")

    async def late(caller: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.4)
        there, asked = await asyncio.open_unix_connection(near)
        await asyncio.gather(pass_on(caller, asked), pass_on(there, answers))

    async with (
        await asyncio.start_unix_server(late, place.directory / "far"),
        ControlClient([place.address("far")], Guard(), deadline_s=20) as client,
    ):
        assert (await client.describe("digits")).job == "digits"


async def test_another_protocol_is_told_so(place: Place) -> None:
    address = await place.serve("s0", leading())
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/tfsup.v1.Control/Status",
            request_serializer=Record.SerializeToString,
            response_deserializer=Record.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(Record(), metadata=(("tfsup-protocol", "99"),), timeout=60)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "client speaks API protocol 99, this supervisor 1" in str(caught.value.details())


@pytest.mark.parametrize(
    ("value", "why"), [("1" + "0" * 400, "a whole number beyond 64 bits"), ("Infinity", "expected int")]
)
async def test_a_client_that_checks_nothing_is_told_the_field(place: Place, value: str, why: str) -> None:
    service = leading()
    address = await place.serve("s0", service)
    raw = codec.encode(SubmitRequest(job_spec()))
    hostile = raw.replace(b'"startup_ms":600000', f'"startup_ms":{value}'.encode())
    assert hostile != raw
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/tfsup.v1.Control/Submit",
            request_serializer=Record.SerializeToString,
            response_deserializer=Record.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(Record(json=hostile), metadata=(("tfsup-protocol", "1"),), timeout=60)
    assert f"SubmitRequest.spec: JobSpec.limits: Limits.startup_ms: {why}" in str(caught.value.details())
    assert not service.asked


async def test_loopback_needs_the_token(place: Place) -> None:
    token = place.directory / "token"
    token.write_text("t" * 40)
    token.chmod(0o600)
    listen = f"127.0.0.1:{free_port()}"
    address = await place.serve("s0", leading(), listen=listen, token_file=str(token))
    assert (await (await place.client(address, token="t" * 40)).status()).jobs
    with pytest.raises(Refused, match="token is missing or wrong"):
        await (await place.client(address)).status()
    with pytest.raises(Refused):
        await (await place.client(address, token="u" * 40)).status()


async def test_the_socket_is_private_and_goes_with_the_server(place: Place) -> None:
    config = place.config("s0")
    server = await serve_api(leading(), place.beats.append, config)
    path = Path(config.listen.removeprefix("unix:"))
    assert path.stat().st_mode & 0o777 == 0o600
    await server.close()
    assert not path.exists()
    path.write_text("a file")
    with pytest.raises(UserError, match="exists and is no socket"):
        await serve_api(leading(), place.beats.append, config)


async def test_a_socket_that_a_dead_daemon_has_left_is_replaced(place: Place) -> None:
    config = place.config("s0")
    path = config.listen.removeprefix("unix:")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    server = await serve_api(leading(), place.beats.append, config)
    assert (await (await place.client(config.listen)).status()).jobs[0].name == "digits"
    await server.close()


async def test_an_address_in_use_is_a_conflict(place: Place) -> None:
    listen = f"127.0.0.1:{free_port()}"
    await place.serve("s0", leading(), listen=listen, insecure=True)
    with pytest.raises(Conflict, match=f"cannot listen on {listen}: in use"):
        await place.serve("s1", leading(), listen=listen, insecure=True)


async def test_other_work_goes_on_between_two_jobs_of_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0
    seen = []

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def jobs(snap: Snapshot, _job: str) -> Iterator[JobView]:
        for _ in range(4):
            seen.append(turns)
            yield views.shown_job(snap, "digits")

    monkeypatch.setattr(views, "shown_jobs", jobs)
    working = asyncio.create_task(work())
    status = await ControlService(leading(), "c", Guard()).status(JobRequest())
    working.cancel()
    assert len(status.jobs) == 4
    assert seen == sorted(set(seen)), "each job has a turn of its own"


async def test_beats_are_delivered_and_answered_where_there_is_news(place: Place) -> None:
    service = leading()
    address = await place.serve("s0", service)
    wanted: list[tuple[str, ...]] = [(), (), ("a",), ("a",), (), ()]
    beats = [Beat(LINK_PROTOCOL, "n1", "i1", seq) for seq in range(len(wanted))]
    async with Guard().channel(address) as channel:
        call = _beats(channel)
        for beat, dump in zip(beats, wanted, strict=True):
            service.dump = dump
            await call.write(Record(json=codec.encode(beat)))
            await until(partial(place.beats.__contains__, beat))
        await call.done_writing()
        answers = [codec.decode(BeatAck, each.json) async for each in call]
    assert place.beats == beats
    assert [(each.seq, each.leader, each.dump) for each in answers] == [
        (0, "s0", ()),
        (2, "s0", ("a",)),
        (3, "s0", ("a",)),
        (4, "s0", ()),
    ]


async def test_an_agent_of_another_protocol_is_told_so(place: Place) -> None:
    address = await place.serve("s0", leading())
    async with Guard().channel(address) as channel:
        call = _beats(channel)
        await call.write(Record(json=codec.encode(Beat(9, "n1", "i1", 1))))
        with pytest.raises(grpc.aio.AioRpcError, match="agent of n1 speaks link protocol 9"):
            await call.read()
    assert place.beats == []


def _beats(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall[Record, Record]:
    method: grpc.aio.StreamStreamMultiCallable[Record, Record] = channel.stream_stream(
        "/tfsup.v1.Link/Beats",
        request_serializer=Record.SerializeToString,
        response_deserializer=Record.FromString,
    )
    return method(metadata=Guard().metadata(), timeout=10)


def _with_events(
    snap: Snapshot, *jobs: str, wall_ms: Callable[[int], int] = lambda serial: serial
) -> Snapshot:
    events = tuple(
        Versioned(keys.event(n), Event(wall_ms(n), "incident", job, f"event {n}"), n, n, 0, 0)
        for n, job in enumerate(jobs, 1)
    )
    return replace(snap, events=events)


async def test_events_of_a_job_follow(place: Place) -> None:
    service = leading()
    assert service.picture is not None
    service.picture = _with_events(service.picture, "digits", "other", "digits", "digits")
    client = await place.client(await place.serve("s0", service))
    batches = [batch async for batch in client.events(EventsRequest("digits", last=2))]
    assert [event.text for batch in batches for event in batch.events] == ["event 3", "event 4"]
    stream = client.events(EventsRequest("digits", follow=True, last=0))
    assert (await anext(stream)).events == ()
    service.picture = _with_events(service.picture, "digits", "other", "digits", "digits", "other", "digits")
    assert [event.text for event in (await anext(stream)).events] == ["event 6"]
    service.picture = service.record = None
    with pytest.raises(Unreachable):
        await anext(stream)


async def test_events_go_on_after_a_serial_whatever_the_wall_clock_says(place: Place) -> None:
    """A new leader's clock may be behind, and many events share one millisecond."""
    service = leading()
    assert service.picture is not None
    service.picture = _with_events(service.picture, *["digits"] * 5, wall_ms=lambda serial: 100 - serial // 2)
    client = await place.client(await place.serve("s0", service))

    async def after(serial: int) -> list[int]:
        batches = [batch async for batch in client.events(EventsRequest("digits", after=serial))]
        assert batches[-1].last == 5
        return [event.serial for batch in batches for event in batch.events]

    assert await after(2) == [3, 4, 5]
    assert await after(5) == []
    assert await after(0) == [1, 2, 3, 4, 5]
    # The store has been replaced since: nothing of what it holds was seen.
    assert await after(9) == [1, 2, 3, 4, 5]


async def test_a_record_of_a_newer_release_is_refused(place: Place) -> None:
    address = await place.serve("s0", leading())
    async with Guard().channel(address) as channel:
        call = channel.unary_unary(
            "/tfsup.v1.Control/Status",
            request_serializer=Record.SerializeToString,
            response_deserializer=Record.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError, match="JobRequest record has version 9"):
            await call(Record(json=b'{"v":9,"record":"JobRequest"}'), metadata=Guard().metadata(), timeout=60)
    with pytest.raises(IncompatibleRecord):
        codec.decode(Accepted, b"{}")


async def test_a_cluster_of_which_nothing_runs_is_told_with_its_remedy(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s0.sock"
    async with ControlClient([address], Guard(), deadline_s=0.5, remedy="start it") as client:
        with pytest.raises(Unreachable, match=r"no connection\); start it$"):
            await client.status()
