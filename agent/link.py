"""Heartbeats to every supervisor: one gRPC stream each, reopened for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import grpc

from agent.boundaries import Post
from agent.core.events import DumpAsked
from supervisor.adapters.backoff import Backoff
from supervisor.contract import codec
from supervisor.contract.boundaries import Sink
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.observed import Beat, BeatAck
from supervisor.wire.rpc import Guard
from supervisor.wire.tfsup_pb2 import Record
from supervisor.wire.tfsup_pb2_grpc import LinkStub

FIRST_WAIT_MS = 100
MOST_WAIT_MS = 500


class GrpcLinks:
    """`Links` to the supervisors at `addresses`, each `host:port` or `unix:/path`."""

    def __init__(self, addresses: Sequence[str], guard: Guard, sink: Sink) -> None:
        self._streams = [_Stream(address, guard, sink) for address in addresses]
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, post: Post) -> None:
        """Begin to connect. Posts DumpAsked when a leader's answer asks for dumps."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(each.run(post)) for each in self._streams]

    def send(self, beat: Beat) -> None:
        """Hand the beat to every stream; an older one that is still waiting there is replaced.

        Raises what ended a stream: nothing that a supervisor or the network does should.
        """
        for task in self._tasks:
            if task.done():
                task.result()
        record = Record(json=codec.encode(beat))
        for stream in self._streams:
            stream.offer(record)

    async def close(self) -> None:
        """End all streams."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Stream:
    def __init__(self, address: str, guard: Guard, sink: Sink) -> None:
        self._address = address
        self._guard = guard
        self._sink = sink
        self._latest: Record | None = None
        self._fresh = asyncio.Event()

    def offer(self, record: Record) -> None:
        self._latest = record
        self._fresh.set()

    async def run(self, post: Post) -> None:
        backoff = Backoff(FIRST_WAIT_MS, MOST_WAIT_MS)
        said = ""
        while True:
            try:
                async with self._guard.channel(self._address) as channel:
                    await self._beat(channel, backoff, post)
                reason = "the stream ended"
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except asyncio.InvalidStateError:
                reason = "the stream broke"
            except TfSupervisorError as error:
                reason = str(error)
            if reason != said:
                self._sink.info("supervisor not reached", supervisor=self._address, reason=reason)
                said = reason
            await backoff.wait()

    async def _beat(self, channel: grpc.aio.Channel, backoff: Backoff, post: Post) -> None:
        call = LinkStub(channel).Beats(metadata=self._guard.metadata())
        answers = asyncio.create_task(self._read(call, backoff, post))
        try:
            while not answers.done():
                waiting = asyncio.create_task(self._fresh.wait())
                await asyncio.wait({waiting, answers}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                self._fresh.clear()
                latest, self._latest = self._latest, None
                if latest is not None and not answers.done():
                    await call.write(latest)
            await answers
        finally:
            answers.cancel()
            with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await answers
            call.cancel()

    async def _read(
        self, call: grpc.aio.StreamStreamCall[Record, Record], backoff: Backoff, post: Post
    ) -> None:
        async for answer in call:
            backoff.reset()
            dump = codec.decode(BeatAck, answer.json).dump
            if dump:
                post(DumpAsked(dump))
