"""What all our gRPC services and clients share: record bodies, the version handshake, doors and their guards.

Who may call: on a Unix socket whoever its mode 0600 lets in; on loopback TCP whoever shows the token;
elsewhere whoever has a certificate of our authority, which TLS has checked before a call arrives here.
"""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias, TypeVar

import grpc

from supervisor.adapters.tls import TlsFiles, check_open_door
from supervisor.contract import codec
from supervisor.contract.errors import Conflict, Refused, TfSupervisorError, UserError
from supervisor.contract.views import API_PROTOCOL
from supervisor.wire.failures import (
    FAILURE_KEY,
    GUARD_KEY,
    PROTOCOL_KEY,
    check_protocol,
    status_of,
    to_failure,
)
from supervisor.wire.tfsup_pb2 import Record

Q = TypeVar("Q")
Context: TypeAlias = "grpc.aio.ServicerContext[Record, Record]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Record, Record]"

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
_CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
_SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


@dataclass(frozen=True, slots=True)
class Guard:
    """How a door is guarded, and what a client shows there."""

    tls: TlsFiles | None = None
    token: str = ""
    insecure: bool = False

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a client sends with each call."""
        handshake = ((PROTOCOL_KEY, str(API_PROTOCOL)),)
        return (*handshake, (GUARD_KEY, self.token)) if self.token else handshake

    def channel(self, address: str) -> grpc.aio.Channel:
        """A connection to `host:port` or `unix:/path`; raises UserError for an open door."""
        check_open_door(address, self.tls, insecure=self.insecure)
        if self.tls is None or address.startswith("unix:"):
            return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(
            address, self.tls.load().client_credentials(), options=_CHANNEL_OPTIONS
        )

    def check(self, context: Context) -> None:
        """Raise Refused for a caller without the token, IncompatibleRecord for another protocol."""
        given: dict[str, str | bytes] = dict(context.invocation_metadata() or ())
        shown = given.get(GUARD_KEY, "")
        shown = shown if isinstance(shown, str) else ""
        if self.token and not hmac.compare_digest(shown.encode(), self.token.encode()):
            raise Refused("the token is missing or wrong; use the client configuration of this cluster")
        check_protocol(str(given.get(PROTOCOL_KEY, "")))


class Server:
    """A gRPC server on one address.

    Args:
        listen: `host:port` or `unix:/path`.
        guard: who may call.
        services: service name -> method name -> handler, made by `unary` and `stream`.
    """

    def __init__(self, listen: str, guard: Guard, services: dict[str, dict[str, Handler]]) -> None:
        check_open_door(listen, guard.tls, insecure=guard.insecure)
        self._listen = listen
        self._guard = guard
        self._server = grpc.aio.server(options=_SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items())
        )

    async def start(self) -> None:
        """Listen; raises Conflict when the address is in use, UserError when it cannot be used."""
        if self._listen.startswith("unix:"):
            self._bind_socket(Path(self._listen.removeprefix("unix:")))
        else:
            self._bind(self._listen)
        await self._server.start()

    async def close(self, grace_s: float = 0.2) -> None:
        """Refuse new calls, let running ones end for `grace_s`; gRPC removes the socket file."""
        await self._server.stop(grace_s)

    def _bind_socket(self, path: Path) -> None:
        """A dead owner's socket file is replaced by gRPC; while it lives, its state directory is locked."""
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise UserError(f"{path} exists and is no socket; choose another path to listen on")
        before = os.umask(0o177)
        try:
            self._bind(f"unix:{path}")
        finally:
            os.umask(before)

    def _bind(self, address: str) -> None:
        try:
            if self._guard.tls is None or address.startswith("unix:"):
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, self._guard.tls.load().server_credentials())
        except RuntimeError as error:
            raise Conflict(
                f"cannot listen on {address}: in use, or not an address of this machine"
            ) from error


def unary(kind: type[Q], guard: Guard, answer: Callable[[Q], Awaitable[object]]) -> Handler:
    """A method that takes one record of class `kind` and gives one; errors of our tree become Failures."""

    async def serve(request: Record, context: Context) -> Record:
        try:
            guard.check(context)
            return Record(json=codec.encode(await answer(codec.decode(kind, request.json))))
        except TfSupervisorError as error:
            await _fail(context, error)

    return grpc.unary_unary_rpc_method_handler(serve, Record.FromString, Record.SerializeToString)


def stream(kind: type[Q], guard: Guard, answer: Callable[[Q], AsyncGenerator[object, None]]) -> Handler:
    """A method that takes one record and gives a stream of them; `answer` is closed when the caller goes."""

    async def serve(request: Record, context: Context) -> AsyncIterator[Record]:
        try:
            guard.check(context)
            async with aclosing(answer(codec.decode(kind, request.json))) as items:
                async for item in items:
                    yield Record(json=codec.encode(item))
        except TfSupervisorError as error:
            await _fail(context, error)

    return grpc.unary_stream_rpc_method_handler(serve, Record.FromString, Record.SerializeToString)


def exchange(kind: type[Q], guard: Guard, answer: Callable[[Q], object]) -> Handler:
    """A method that answers each record of a stream at once."""

    async def serve(requests: AsyncIterator[Record], context: Context) -> AsyncIterator[Record]:
        try:
            guard.check(context)
            async for request in requests:
                yield Record(json=codec.encode(answer(codec.decode(kind, request.json))))
        except TfSupervisorError as error:
            await _fail(context, error)

    return grpc.stream_stream_rpc_method_handler(serve, Record.FromString, Record.SerializeToString)


async def _fail(context: Context, error: TfSupervisorError) -> NoReturn:
    failure = to_failure(error)
    await context.abort(status_of(failure), failure.message[:500], ((FAILURE_KEY, codec.encode(failure)),))
    raise AssertionError("abort returned")
