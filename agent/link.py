"""Heartbeats to all supervisors: one gRPC stream each, reopened for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import grpc

from agent.boundaries import Post
from agent.core.events import DumpAsked, Event, Promised
from supervisor.adapters.backoff import Backoff
from supervisor.contract import codec
from supervisor.contract.boundaries import Logger
from supervisor.contract.errors import TfSupervisorError, Unreachable
from supervisor.contract.observed import Beat, BeatAck
from supervisor.contract.promise import PromiseAnswer, PromiseRequest
from supervisor.contract.secret import SecretsAnswer, SecretsRequest
from supervisor.wire.failures import from_failure, read_failure
from supervisor.wire.rpc import Guard
from supervisor.wire.tfsup_pb2 import Record

FIRST_WAIT_MS = 100
MOST_WAIT_MS = 500
ASK_S = 5.0
SECRETS_S = 15.0
"""Seconds for a request of secrets: a supervisor may run a command for each."""

MOST_ASKED = 64


class GrpcLinks:
    """`Links` to the supervisors at `addresses`, each `host:port` or `unix:/path`."""

    def __init__(self, addresses: Sequence[str], guard: Guard, sink: Logger) -> None:
        self._guard = guard
        self._sink = sink
        self._streams = [_Stream(address, guard, sink) for address in addresses]
        self._tasks: list[asyncio.Task[None]] = []
        self._asking: set[asyncio.Task[None]] = set()
        self._post: Post = _nobody
        self._certificate = ""

    async def open(self, post: Post) -> None:
        """Begin to connect. Posts DumpAsked while a leader's answers ask for dumps, and once more when they
        stop.
        """
        self._post = post
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(each.run(post)) for each in self._streams]

    def send(self, beat: Beat) -> None:
        """Pass the beat to all streams; an older one that still waits there is replaced.

        Raises the unexpected error that ended a stream.
        """
        for task in self._tasks:
            if task.done():
                task.result()
        if self._certificate:
            beat = replace(beat, certificate=self._certificate)
        record = Record(json=codec.encode(beat, brief=True))
        for stream in self._streams:
            stream.offer(record)

    def ask(self, request: PromiseRequest, sent_ms: int) -> None:
        """Ask every supervisor, each with a deadline; posts a Promised for each that answers."""
        self._asking = {each for each in self._asking if not each.done()}
        loop = asyncio.get_running_loop()
        for stream in self._streams[: MOST_ASKED - len(self._asking)]:
            self._asking.add(loop.create_task(self._ask(stream.address, request, sent_ms)))

    async def _ask(self, address: str, request: PromiseRequest, sent_ms: int) -> None:
        """Ask on a separate connection: that of the beats may wait for its supervisor."""
        record = Record(json=codec.encode(request))
        try:
            async with self._guard.channel(address) as channel:
                promise = _method(channel, "Promise")
                reply = await promise(record, timeout=ASK_S, metadata=self._guard.metadata())
                answer = codec.decode(PromiseAnswer, reply.json)
        except (grpc.aio.AioRpcError, TfSupervisorError) as error:
            self._sink.debug("a supervisor gave no promise", supervisor=address, reason=str(error))
            return
        self._post(Promised(answer.supervisor, answer.serial, sent_ms, answer.for_ms, answer.refused))

    async def secrets(self, request: SecretsRequest) -> SecretsAnswer:
        """Ask all supervisors at once; the one that leads answers.

        Raises the leader's error, else Unreachable.
        """
        record = Record(json=codec.encode(request))
        asking = [asyncio.create_task(self._secrets(each.address, record)) for each in self._streams]
        reason: TfSupervisorError = Unreachable("no supervisor that leads answers")
        try:
            for each in asyncio.as_completed(asking):
                try:
                    answer = await each
                except TfSupervisorError as error:
                    reason = error
                else:
                    if answer is not None:
                        return answer
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        raise reason

    async def _secrets(self, address: str, record: Record) -> SecretsAnswer | None:
        """Ask one supervisor, on a separate connection; None if it does not answer, or does not lead."""
        try:
            async with self._guard.channel(address) as channel:
                ask = _method(channel, "Secrets")
                reply = await ask(record, timeout=SECRETS_S, metadata=self._guard.metadata())
                return codec.decode(SecretsAnswer, reply.json)
        except grpc.aio.AioRpcError as error:
            failure = read_failure(error)
            if failure is None and error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise Unreachable(f"{address} is of an earlier release, which knows no secrets") from error
            if failure is None or failure.leader:
                return None
            raise from_failure(failure) from error

    async def certificates(self, told: Mapping[str, str]) -> None:
        """Set the text about this agent's certificates in beats."""
        self._certificate = "; ".join(told.values())

    async def close(self) -> None:
        """End all streams."""
        for task in (*self._tasks, *self._asking):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._asking, return_exceptions=True)


class _Stream:
    def __init__(self, address: str, guard: Guard, sink: Logger) -> None:
        self.address = address
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
            refused = False
            try:
                async with self._guard.channel(self.address) as channel:
                    await self._beat(channel, backoff, post)
                reason = "the stream ended"
            except grpc.aio.AioRpcError as error:
                refused = error.code() is grpc.StatusCode.PERMISSION_DENIED
                reason = f"{error.code().name}: {error.details()}"
            except asyncio.InvalidStateError:
                reason = "the stream broke"
            except TfSupervisorError as error:
                reason = str(error)
            if reason != said and refused:
                # No passing fault: to this supervisor the node is silent until somebody mends that.
                text = "a supervisor refuses this agent's beats: to it this node is silent"
                self._sink.warning(text, supervisor=self.address, reason=reason)
            elif reason != said:
                self._sink.info(
                    "supervisor not reached; trying again", supervisor=self.address, reason=reason
                )
            said = reason
            await backoff.wait()

    async def _beat(self, channel: grpc.aio.Channel, backoff: Backoff, post: Post) -> None:
        call = open_beats(channel, self._guard)
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
            call.cancel()
            answers.cancel()
            # Unlike `await answers`, it tells a cancellation of this task from that of `answers`.
            await asyncio.gather(answers, return_exceptions=True)

    async def _read(
        self, call: grpc.aio.StreamStreamCall[Record, Record], backoff: Backoff, post: Post
    ) -> None:
        asked: tuple[str, ...] = ()
        async for answer in call:
            backoff.reset()
            dump = codec.decode(BeatAck, answer.json).dump
            if dump or asked:
                post(DumpAsked(dump))
            asked = dump


def _method(channel: grpc.aio.Channel, name: str) -> grpc.aio.UnaryUnaryMultiCallable[Record, Record]:
    found: grpc.aio.UnaryUnaryMultiCallable[Record, Record] = channel.unary_unary(
        f"/tfsup.v1.Link/{name}",
        request_serializer=Record.SerializeToString,
        response_deserializer=Record.FromString,
    )
    return found


def open_beats(channel: grpc.aio.Channel, guard: Guard) -> grpc.aio.StreamStreamCall[Record, Record]:
    """The stream of beats on a connection to a supervisor."""
    beats: grpc.aio.StreamStreamMultiCallable[Record, Record] = channel.stream_stream(
        "/tfsup.v1.Link/Beats",
        request_serializer=Record.SerializeToString,
        response_deserializer=Record.FromString,
    )
    return beats(metadata=guard.metadata())


def _nobody(_event: Event) -> None:
    """The `post` before the daemon has opened the links."""
