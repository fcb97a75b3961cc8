"""The common part of our gRPC services and clients: record bodies, the version handshake, and authentication.

A Unix socket admits callers by its mode 0600, loopback TCP by the token, and any other address by a
certificate of our authority, which TLS has checked before a call arrives here. The gate then checks the
caller's rights (`wire.gate`, docs/security.md): every method is behind it.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import stat
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias, TypeVar

import grpc

from supervisor.adapters.certificates.reload import Certificates
from supervisor.adapters.certificates.tls import TlsFiles, check_open_door
from supervisor.contract import codec
from supervisor.contract.errors import Conflict, Refused, TfSupervisorError, UserError
from supervisor.contract.views.jobs import API_PROTOCOL
from supervisor.wire.failures import (
    FAILURE_KEY,
    GUARD_KEY,
    PROTOCOL_KEY,
    check_protocol,
    status_of,
    to_failure,
)
from supervisor.wire.tfsup_pb2 import Record

if TYPE_CHECKING:
    from supervisor.wire.audit import Auditor, Entry
    from supervisor.wire.gate import Context, Gate, Policy

Q = TypeVar("Q")
A = TypeVar("A")
Handler: TypeAlias = "grpc.RpcMethodHandler[Record, Record]"

MOST_STREAMS = 256
"""Most streams to one caller at a time: each costs time of the event loop every second."""
MAX_MESSAGE_BYTES = 1 << 20
"""Most bytes of a request or a beat: reading a larger one would hold up the event loop."""
_CONNECT_MS = 1_000
"""gRPC breaks off an attempt to connect, with the handshakes, that takes longer. Less than a caller gives an
answer, so that one supervisor that is silent does not keep it from the next."""
_CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", _CONNECT_MS),
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
    """The authentication of an address: the check of a server, and the credentials of a client."""

    tls: TlsFiles | None = None
    token: str = ""
    insecure: bool = False
    certificates: Certificates | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Prepare the certificates. Files are read at their first use, and again when they change."""
        made = Certificates(self.tls) if self.tls is not None else None
        object.__setattr__(self, "certificates", made)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of each call of a client."""
        handshake = ((PROTOCOL_KEY, str(API_PROTOCOL)),)
        return (*handshake, (GUARD_KEY, self.token)) if self.token else handshake

    def channel(self, address: str, pool_server: str = "") -> grpc.aio.Channel:
        """A connection to `host:port` or `unix:/path`; raises UserError for an address without
        authentication.

        `pool_server`: the server is an agent of a pool, whose certificate has this name and no address.
        """
        check_open_door(address, self.tls, insecure=self.insecure)
        if self.certificates is None or address.startswith("unix:"):
            return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        if pool_server and self.certificates.files.pool_ca is not None:
            credentials = self.certificates.current().pool_credentials()
            options = (*_CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", pool_server))
            return grpc.aio.secure_channel(address, credentials, options=options)
        credentials = self.certificates.client_credentials()
        return grpc.aio.secure_channel(address, credentials, options=_CHANNEL_OPTIONS)

    def check(self, context: Context) -> None:
        """Raise Refused for a caller without the token, IncompatibleRecord for another protocol."""
        given: dict[str, str | bytes] = dict(context.invocation_metadata() or ())
        shown = given.get(GUARD_KEY, "")
        shown = shown if isinstance(shown, str) else ""
        if self.token and not hmac.compare_digest(shown.encode(), self.token.encode()):
            raise Refused("the token is missing or wrong; use the client configuration of this cluster")
        check_protocol(str(given.get(PROTOCOL_KEY, "")))


@dataclass(frozen=True, slots=True)
class Entrance:
    """The checks before one method is served. `method`: `SERVICE.METHOD`."""

    method: str
    guard: Guard
    gate: Gate
    auditor: Auditor
    open_streams: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def room(self, entry: Entry) -> Iterator[None]:
        """Count one more stream to this caller while it is open. Raises Refused for one too many."""
        who = str(entry.caller)
        if self.open_streams[who] >= MOST_STREAMS:
            error = Refused(f"{MOST_STREAMS} streams of {who} are open here already; end one of them first")
            entry.refused(error)
            raise error
        self.open_streams[who] += 1
        try:
            yield
        finally:
            self.open_streams[who] -= 1
            if not self.open_streams[who]:
                del self.open_streams[who]

    def enter(self, context: Context) -> Entry:
        """Check the caller before its request is read. Raises Refused, IncompatibleRecord."""
        entry = self.auditor.request(self.method, context.peer() or "")
        try:
            self.guard.check(context)
            entry.caller = self.gate.identify(context)
            self.gate.enter(self.method, entry.caller)
        except TfSupervisorError as error:
            entry.refused(error)
            raise
        return entry

    def read(self, entry: Entry, kind: type[Q], request: Record) -> Q:
        """Read a request and check it for the caller. Raises Refused, IncompatibleRecord."""
        try:
            record = codec.decode(kind, request.json)
            self.gate.check(self.method, entry.caller, record)
        except TfSupervisorError as error:
            entry.refused(error)
            raise
        return record

    async def admit(self, context: Context, kind: type[Q], request: Record) -> tuple[Q, Entry]:
        """Check the caller and read the only request of a call; returns it with its audit entry.

        Raises as `enter` and `read`.
        """
        entry = self.enter(context)
        record = self.read(entry, kind, request)
        try:
            await entry.received(record)
            # The line may have taken seconds. A name that was free then can be another user's job by now.
            self.gate.check(self.method, entry.caller, record)
        except TfSupervisorError as error:
            entry.refused(error)
            raise
        except asyncio.CancelledError as error:
            entry.gone(error)
            raise
        return record, entry


Method: TypeAlias = Callable[[Entrance], Handler]
"""Makes the handler of a method, behind its entrance; returned by `unary`, `stream` and `exchange`."""


class Server:
    """A gRPC server on one address.

    Args:
        listen: `host:port` or `unix:/path`.
        guard: the authentication of callers.
        services: service name -> method name -> method.
        policy: the known callers. By default no user has a role.
        auditor: writes the audit log. By default there is none.
    """

    def __init__(
        self,
        listen: str,
        guard: Guard,
        services: dict[str, dict[str, Method]],
        policy: Policy | None = None,
        auditor: Auditor | None = None,
    ) -> None:
        # A command, which serves nothing, need not load them.
        from supervisor.wire.audit import Auditor
        from supervisor.wire.gate import Gate, Policy

        check_open_door(listen, guard.tls, insecure=guard.insecure)
        self._listen = listen
        self._guard = guard
        self._server = grpc.aio.server(options=_SERVER_OPTIONS)
        gate, auditor = (
            Gate(policy or Policy(), way_in(listen, guard), guard.certificates),
            auditor or Auditor(),
        )
        streams: Counter[str] = Counter()
        self._server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(
                    service,
                    {
                        name: serve(
                            Entrance(f"{service.rpartition('.')[2]}.{name}", guard, gate, auditor, streams)
                        )
                        for name, serve in methods.items()
                    },
                )
                for service, methods in services.items()
            )
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
        """Bind a Unix socket. gRPC replaces the file of a dead owner; a live owner holds the lock of its
        state directory.
        """
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
            if self._guard.certificates is None or address.startswith("unix:"):
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, self._guard.certificates.server_credentials())
        except RuntimeError as error:
            raise Conflict(
                f"cannot listen on {address}: in use, or not an address of this machine"
            ) from error


def unary(kind: type[Q], answer: Callable[[Q], Awaitable[object]]) -> Method:
    """A method that takes one record of class `kind` and returns one; errors of our tree become Failures."""

    def behind(entrance: Entrance) -> Handler:
        async def serve(request: Record, context: Context) -> Record:
            try:
                record, entry = await entrance.admit(context, kind, request)
                with entry:
                    return Record(json=codec.encode(await answer(record)))
            except TfSupervisorError as error:
                await _fail(context, error)

        return grpc.unary_unary_rpc_method_handler(serve, Record.FromString, Record.SerializeToString)

    return behind


def stream(kind: type[Q], answer: Callable[[Q], AsyncGenerator[object, None]]) -> Method:
    """A method that takes one record and returns a stream of them; `answer` is closed when the caller
    disconnects.
    """

    def behind(entrance: Entrance) -> Handler:
        async def serve(request: Record, context: Context) -> AsyncIterator[Record]:
            try:
                record, entry = await entrance.admit(context, kind, request)
                with entrance.room(entry), entry:
                    target = entrance.gate.target(entrance.method, record)
                    async with aclosing(answer(record)) as items:
                        async for item in items:
                            entrance.gate.remain(entrance.method, entry.caller, target)
                            yield Record(json=codec.encode(item))
            except TfSupervisorError as error:
                await _fail(context, error)

        return grpc.unary_stream_rpc_method_handler(serve, Record.FromString, Record.SerializeToString)

    return behind


def exchange(
    kind: type[Q], answer: Callable[[Q], A], is_news: Callable[[A | None, A], bool] = lambda *_: True
) -> Method:
    """A method that answers each record of a stream at once; the audit log has only refused records.

    An answer that `is_news` denies is left out. It gets the last one that was sent, None before the first.
    """

    def behind(entrance: Entrance) -> Handler:
        async def serve(requests: AsyncIterator[Record], context: Context) -> AsyncIterator[Record]:
            try:
                entry = entrance.enter(context)
                told: A | None = None
                async for request in requests:
                    now = answer(entrance.read(entry, kind, request))
                    if is_news(told, now):
                        told = now
                        yield Record(json=codec.encode(now))
            except TfSupervisorError as error:
                await _fail(context, error)

        return grpc.stream_stream_rpc_method_handler(serve, Record.FromString, Record.SerializeToString)

    return behind


def way_in(listen: str, guard: Guard) -> str:
    """The name for all callers of a server without client certificates; empty if it asks for one.

    The kernel lets the owner of a socket of mode 0600 connect, and root. The owner's uid stands for both.
    """
    if listen.startswith("unix:"):
        return f"uid:{os.geteuid()}"
    if guard.tls is not None:
        return ""
    return "token" if guard.token else "anyone"


async def _fail(context: Context, error: TfSupervisorError) -> NoReturn:
    failure = to_failure(error)
    await context.abort(status_of(failure), failure.message[:500], ((FAILURE_KEY, codec.encode(failure)),))
    raise AssertionError("abort returned")
