"""A stream that is cancelled at the moment at which something comes ends all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import cast

import grpc
import pytest

from supervisor.api.agents import AgentAddress, Agents
from supervisor.api.client import ControlClient
from supervisor.contract import codec
from supervisor.contract.views.jobs import ClusterStatus, EventBatch, EventsRequest
from supervisor.wire.rpc import Guard
from supervisor.wire.tfsup_pb2 import Record


class Call:
    """One item comes when it is let, and then nothing."""

    def __init__(self) -> None:
        self.first: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self.waited_for = asyncio.Event()

    async def read(self) -> Record:
        first = not self.waited_for.is_set()
        self.waited_for.set()
        return await (self.first if first else asyncio.get_running_loop().create_future())

    def cancel(self) -> None:
        """It has no other end."""


class Channel:
    def __init__(self, call: Call) -> None:
        self._call = call

    def unary_stream(self, method: str, **_: object) -> Callable[..., Call]:
        return lambda *_, **__: self._call


class Control(ControlClient):
    def __init__(self, call: Call) -> None:
        super().__init__(["unix:nobody"], Guard())
        self._channels["unix:nobody"] = cast(grpc.aio.Channel, Channel(call))

    async def status(self, job: str = "") -> ClusterStatus:
        return ClusterStatus("c", "fast", 4_000, (), ())


def of_the_leader(call: Call) -> AsyncGenerator[EventBatch, None]:
    return Control(call).events(EventsRequest())


def of_an_agent(call: Call) -> AsyncGenerator[EventBatch, None]:
    clients = Agents(Guard())
    address = AgentAddress("n1")
    clients._channels[address] = cast(grpc.aio.Channel, Channel(call))
    return clients.stream(address, "Tail", EventsRequest(), EventBatch, 60.0)


@pytest.mark.parametrize("open_stream", [of_the_leader, of_an_agent])
@pytest.mark.parametrize("turns", range(4))
async def test_a_stream_that_is_cancelled_as_an_item_comes_ends(
    open_stream: Callable[[Call], AsyncGenerator[EventBatch, None]], turns: int
) -> None:
    """The demonstration stood still at its end: its follower of events had lost its cancellation."""
    call = Call()

    async def follow() -> None:
        async for _ in open_stream(call):
            pass

    following = asyncio.create_task(follow())
    await call.waited_for.wait()
    call.first.set_result(Record(json=codec.encode(EventBatch((), 0))))
    for _ in range(turns):
        await asyncio.sleep(0)
    following.cancel()
    await asyncio.wait({following}, timeout=60)
    assert following.cancelled()
