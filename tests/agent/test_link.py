"""The heartbeat streams of an agent: what ends one, and what does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import pytest

from agent.boundaries import Post
from agent.core.events import DumpAsked, Event
from agent.link import GrpcLinks
from supervisor.contract import codec
from supervisor.contract.errors import Refused
from supervisor.contract.observed import LINK_PROTOCOL, Beat, BeatAck
from supervisor.wire.rpc import Guard, Handler, Server, exchange
from supervisor.wire.tfsup_pb2 import Record
from tests.support.sinks import ListSink

BEAT = Beat(LINK_PROTOCOL, "n1", "i1", 1)
ANSWER = codec.encode(BeatAck(LINK_PROTOCOL, 1, "s0", ("job/worker:0",)))


@dataclass
class Supervisor:
    """Answers the first stream with `first`, every later one with a request for dumps."""

    first: bytes
    streams: int = 0
    heard: list[bytes] = field(default_factory=list)

    async def answer(self, requests: AsyncIterator[Record], context: object) -> AsyncIterator[Record]:
        self.streams += 1
        says = self.first if self.streams == 1 else ANSWER
        async for request in requests:
            self.heard.append(request.json)
            yield Record(json=says)


async def beating(links: GrpcLinks, until: asyncio.Event) -> None:
    """Send beats until the event."""
    async with asyncio.timeout(20):
        while not until.is_set():
            links.send(BEAT)
            with suppress(TimeoutError):
                await asyncio.wait_for(until.wait(), 0.02)


async def beat_to(supervisor: Supervisor, socket: Path, post: Post, until: asyncio.Event) -> ListSink:
    method: Handler = grpc.stream_stream_rpc_method_handler(
        supervisor.answer, Record.FromString, Record.SerializeToString
    )
    server = Server(f"unix:{socket}", Guard(), {"tfsup.v1.Link": {"Beats": lambda _: method}})
    await server.start()
    sink = ListSink()
    links = GrpcLinks([f"unix:{socket}"], Guard(), sink)
    try:
        await links.open(post)
        await beating(links, until)
    finally:
        await links.close()
        await server.close()
    return sink


async def test_a_beat_leaves_out_what_a_supervisor_assumes(tmp_path: Path) -> None:
    asked, supervisor = asyncio.Event(), Supervisor(ANSWER)
    await beat_to(supervisor, tmp_path / "s", lambda _: asked.set(), asked)
    body = json.loads(supervisor.heard[0])
    assert body == {"v": 1, "record": "Beat", "protocol": 1, "node": "n1", "incarnation": "i1", "seq": 1}


async def test_a_supervisor_whose_answer_cannot_be_read_is_asked_again(tmp_path: Path) -> None:
    asked = asyncio.Event()
    events: list[Event] = []

    def post(event: Event) -> None:
        events.append(event)
        asked.set()

    sink = await beat_to(Supervisor(b"{}"), tmp_path / "s", post, asked)
    assert events[0] == DumpAsked(("job/worker:0",))
    said = [
        fields["reason"] for _, event, fields in sink.lines if event == "supervisor not reached; trying again"
    ]
    assert any("not a BeatAck record: version None" in str(reason) for reason in said)


async def test_a_refusal_is_warned_of_once(tmp_path: Path) -> None:
    refusals: list[Beat] = []
    again = asyncio.Event()

    def refuse(beat: Beat) -> BeatAck:
        refusals.append(beat)
        if len(refusals) == 3:
            again.set()
        raise Refused("agent:n1 is shut out")

    server = Server(f"unix:{tmp_path}/s", Guard(), {"tfsup.v1.Link": {"Beats": exchange(Beat, refuse)}})
    await server.start()
    sink = ListSink()
    links = GrpcLinks([f"unix:{tmp_path}/s"], Guard(), sink)
    try:
        await links.open(ignore)
        await beating(links, again)
    finally:
        await links.close()
        await server.close()
    ((event, fields),) = [(event, fields) for level, event, fields in sink.lines if level == "warning"]
    assert "refuses this agent" in event
    assert "shut out" in str(fields["reason"])


async def test_a_beat_says_that_the_agents_certificate_ends(tmp_path: Path) -> None:
    heard: asyncio.Queue[Beat] = asyncio.Queue()

    def take(beat: Beat) -> BeatAck:
        heard.put_nowait(beat)
        return BeatAck(LINK_PROTOCOL, beat.seq, "")

    server = Server(f"unix:{tmp_path}/s", Guard(), {"tfsup.v1.Link": {"Beats": exchange(Beat, take)}})
    await server.start()
    links = GrpcLinks([f"unix:{tmp_path}/s"], Guard(), ListSink())
    try:
        await links.open(ignore)
        texts: tuple[dict[str, str], ...] = ({}, {"agent:n1": "expires soon"}, {})
        for told in texts:
            await links.certificates(told)
            links.send(BEAT)
            async with asyncio.timeout(20):
                assert await heard.get() == replace(BEAT, certificate="".join(told.values()))
    finally:
        await links.close()
        await server.close()


def ignore(_: Event) -> None:
    pass


async def test_a_bug_in_a_stream_is_raised_where_beats_are_sent(tmp_path: Path) -> None:
    def post(_event: Event) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await beat_to(Supervisor(ANSWER), tmp_path / "s", post, asyncio.Event())


class BrokenCall:
    """A stream that takes no beat, and whose reader ends a moment after it was told to."""

    def __init__(self) -> None:
        self.ending = asyncio.Event()

    async def write(self, _record: Record) -> None:
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())

    async def __aiter__(self) -> AsyncIterator[Record]:
        try:
            await asyncio.Event().wait()
        finally:
            self.ending.set()
            for _ in range(3):
                await asyncio.sleep(0)
        yield Record()

    def cancel(self) -> None:
        pass


async def test_links_close_while_a_broken_stream_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = BrokenCall()
    monkeypatch.setattr("agent.link.open_beats", lambda *_: call)
    links = GrpcLinks([f"unix:{tmp_path}/s"], Guard(), ListSink())
    await links.open(ignore)
    async with asyncio.timeout(20):
        while not call.ending.is_set():
            links.send(BEAT)
            await asyncio.sleep(0)
        await links.close()
