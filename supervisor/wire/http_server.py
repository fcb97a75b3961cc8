"""Answers the requests at an HTTP door, by aiohttp.

A request passes these checks in this order: its form, its Host header, its route, its caller, the caller's
right (`wire.gate`). Then its handler answers. Every answer has the headers of SECURITY.

Nothing that a caller does holds up another one: connections, streams, sizes and times are bounded, and
whoever does not read is dropped.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import socket
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import NoReturn, cast
from urllib.parse import unquote

from aiohttp import web

from supervisor.contract import codec
from supervisor.contract.access import Caller, Kind, Target
from supervisor.contract.addresses import bare, split_host_port
from supervisor.contract.containment import contained, told
from supervisor.contract.errors import Refused, TfSupervisorError, Unreachable, UserError
from supervisor.contract.views.jobs import Failure, JobRequest
from supervisor.wire.audit import Entry
from supervisor.wire.failures import NotLeading, to_failure
from supervisor.wire.gate import Gate
from supervisor.wire.http import JSON, Answer, Asked, HttpDoor, Route
from supervisor.wire.rpc import way_in

MOST_CONNECTIONS = 128
"""Most open connections. One more takes the place of the one that has been idle for longest, if any is."""
MOST_STREAMS = 32
"""Most streams to one caller at a time."""
MOST_HANDSHAKES = 64
"""Most connections that have not shown a certificate yet. One more takes the place of the oldest."""
HANDSHAKE_S = 5.0
PACE_S = 0.01
"""Seconds from one connection to the next. A handshake costs the daemon's loop milliseconds, and any
caller can ask for one.
"""
IDLE_S = 15.0
"""Seconds for which a connection may be open without a whole request."""
ANSWER_S = 10.0
"""Seconds to make an answer, and again to send it."""
SLOW_S = 5.0
"""Seconds for which a stream waits for a caller that does not read."""
MOST_AT_ONCE = 4
"""Most answers that are made for one caller at a time, and again most pieces of its streams."""
LONGEST_REST_S = 1.0
"""After an answer its place rests for as long as it took, and for so many seconds at most."""
SEND_BUFFER = 1 << 17
MOST_LINE, MOST_HEADERS = 4096, 64
"""Most bytes of the first line and of a header, and most headers."""
_STATUS = {
    "UserError": 400,
    "Refused": 403,
    "NotFound": 404,
    "Conflict": 409,
    "Unreachable": 503,
    "CoordinationUnreachable": 503,
    "CoordinationFull": 503,
    "StoreUnreachable": 503,
}
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "tf-supervisor",
}
_QUIET = logging.getLogger("tf-supervisor.http")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False
_QUIET.setLevel(logging.CRITICAL)


class _Unknown(Refused):
    """The caller has not shown the token."""


class _Protocol(web.RequestHandler):
    """One connection, in `opened` as long as its socket is open.

    An answer to what is no HTTP has our headers, too, and no line in the log.
    """

    def __init__(self, server: web.Server, opened: dict[asyncio.Transport, float | None]) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            logger=_QUIET,
            access_log=_QUIET,
            keepalive_timeout=IDLE_S,
            max_line_size=MOST_LINE,
            max_field_size=MOST_LINE,
            max_headers=MOST_HEADERS,
            lingering_time=0.0,
        )
        self._opened = opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection. With TLS its handshake is over."""
        self._opened[cast("asyncio.Transport", transport)] = asyncio.get_running_loop().time()
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The socket is closed. A caller that does not read can keep it open after we have ended it."""
        if self.transport is not None:
            self._opened.pop(self.transport, None)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that cannot be read."""
        del request, exc, message
        response = web.Response(status=status, text="this is no request that can be read\n", headers=SECURITY)
        response.force_close()
        return response


class HttpServer:
    """Serves a door's routes on a listening socket."""

    def __init__(self, door: HttpDoor, routes: Sequence[Route]) -> None:
        guard = door.guard
        self._door = door
        self._gate = Gate(door.policy, way_in(door.settings.listen, guard), guard.certificates)
        self._routes = [(tuple(route.path.split("/")), route) for route in routes]
        self._hosts = door.hosts
        self._cookie = _cookie_of(guard.token)
        self._open: dict[asyncio.Transport, float | None] = {}
        """Connection -> since when it is idle; None while a request is answered."""
        self._connecting: dict[asyncio.Task[None], None] = {}
        """Connections before the end of their handshake, oldest first."""
        self._reading: asyncio.Task[ssl.SSLContext] | None = None
        self._streams: Counter[str] = Counter()
        self._places: dict[str, asyncio.Semaphore] = {}
        # A stream may have nothing to send for long: it ends when its caller is gone.
        self._server = web.Server(self._handle, handler_cancellation=True)

    async def serve(self, listener: socket.socket, first: socket.socket) -> NoReturn:
        """Serve until cancelled. `first`: a connection that was accepted before."""
        loop = asyncio.get_running_loop()
        sweeping = asyncio.create_task(self._sweep())
        connection = first
        try:
            while True:
                self._take(connection)
                await asyncio.sleep(PACE_S)
                connection = await self._accept(loop, listener)
        finally:
            sweeping.cancel()
            for task in self._connecting:
                task.cancel()
            await asyncio.gather(*self._connecting, return_exceptions=True)
            for transport in list(self._open):
                transport.abort()
            await self._server.shutdown(0.0)

    async def _accept(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> socket.socket:
        while True:
            try:
                return (await loop.sock_accept(listener))[0]
            except OSError as error:
                # As a rule this process has no file descriptor left.
                self._door.sink.warning("cannot accept an HTTP connection", reason=str(error))
                await asyncio.sleep(1.0)

    def _take(self, connection: socket.socket) -> None:
        if len(self._connecting) >= MOST_HANDSHAKES:
            oldest = next(iter(self._connecting))
            del self._connecting[oldest]
            oldest.cancel()
        if len(self._open) + len(self._connecting) >= MOST_CONNECTIONS and not self._drop_idle():
            connection.close()
            return
        task = asyncio.create_task(self._connect(connection))
        self._connecting[task] = None
        task.add_done_callback(lambda done: self._connecting.pop(done, None))

    def _drop_idle(self) -> bool:
        """Close the connection that has been idle for longest; False if there is none."""
        idle = {transport: since for transport, since in self._open.items() if since is not None}
        if not idle:
            return False
        oldest = min(idle, key=lambda transport: idle[transport])
        oldest.abort()
        del self._open[oldest]
        return True

    async def _connect(self, connection: socket.socket) -> None:
        ready = False
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            context = await self._context()
            ready = True
        except (OSError, TfSupervisorError) as error:
            self._door.sink.warning("cannot serve an HTTP connection", reason=str(error))
            return
        finally:
            if not ready:
                connection.close()
        with suppress(OSError):  # also what TLS refuses
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Protocol(self._server, self._open),
                connection,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S if context else None,
            )

    async def _context(self) -> ssl.SSLContext | None:
        """The TLS context of a connection that begins now; None: there is no TLS.

        Others need the threads, too: files that hang hold up one of them.
        """
        certificates = self._door.guard.certificates
        if certificates is None:
            return None
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(asyncio.to_thread(certificates.server_context))
        return await asyncio.shield(self._reading)

    async def _sweep(self) -> NoReturn:
        """Close connections that send no whole request."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(1.0)
            for transport, since in list(self._open.items()):
                if since is not None and loop.time() - since > IDLE_S:
                    transport.abort()
                    del self._open[transport]

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError
        self._open[transport] = None
        try:
            return await self._respond(request, transport)
        finally:
            if transport in self._open:
                self._open[transport] = asyncio.get_running_loop().time()

    async def _respond(self, request: web.BaseRequest, transport: asyncio.Transport) -> web.StreamResponse:
        """Answer, and send the answer here, so that a caller that does not read is dropped in time."""
        answer = self._objection(request)
        entry: Entry | None = None
        if answer is None:
            answer, entry = await self._answer(request)
        headers = {**SECURITY, **answer.headers, "Content-Type": answer.kind}
        try:
            if not isinstance(answer.body, bytes):
                response = web.StreamResponse(status=answer.status, headers=headers)
                await self._stream(request, response, answer.body, entry)
                return response
            plain = web.Response(status=answer.status, headers=headers, body=answer.body)
            if entry is None:
                # It was turned away before anything was known of it.
                plain.force_close()
            async with asyncio.timeout(ANSWER_S):
                await plain.prepare(request)
                await plain.write_eof()
        except (TimeoutError, TfSupervisorError) as error:
            transport.abort()
            raise ConnectionResetError from error
        return plain

    def _objection(self, request: web.BaseRequest) -> Answer | None:
        """The answer to a request whose form is wrong."""
        if request.method not in ("GET", "HEAD"):
            return _failed(405, UserError("only GET and HEAD are served"), {"Allow": "GET, HEAD"})
        if request.body_exists:
            return _failed(400, UserError("a request has no body here"))
        if not self._knows_host(request.headers.getall("Host", ())):
            return _failed(
                421, UserError("the Host header names another machine; use the address of `http.listen`")
            )
        return None

    def _knows_host(self, given: tuple[str, ...] | list[str]) -> bool:
        """Whether the caller meant this door: a foreign page can give its own name our address.

        With TLS the name of the certificate tells.
        """
        if len(given) != 1:
            return False
        if self._door.guard.certificates is not None:
            return True
        try:
            host = given[0] if given[0].endswith("]") or ":" not in given[0] else split_host_port(given[0])[0]
        except UserError:
            return False
        host = bare(host).lower()
        with suppress(ValueError):
            ipaddress.ip_address(host)
            return True
        return host == "localhost" or host in self._hosts

    async def _answer(self, request: web.BaseRequest) -> tuple[Answer, Entry | None]:
        """The answer to a request, and its audit entry if the caller was let in."""
        parts = [unquote(part) for part in request.rel_url.raw_path.split("/")]
        route, names = self._route(parts)
        if route is None:
            return _failed(404, UserError("there is nothing at this path")), None
        entry = self._door.auditor.request(route.method, _peer(request))
        try:
            given = request.rel_url.query.get("token")
            if self._door.guard.token and given is not None:
                return self._let_in(request, given), None
            caller = entry.caller = self._identify(request)
            self._gate.enter(route.method, caller)
            await entry.received(SimpleNamespace(**names))
        except TfSupervisorError as error:
            entry.refused(error)
            known = not isinstance(error, _Unknown)
            return _failed(403, error) if known else _failed(401, error, {"WWW-Authenticate": "Bearer"}), None
        asked = Asked(
            caller=caller,
            path=request.path,
            target=request.rel_url.raw_path_qs,
            names=names,
            query={name: request.rel_url.query[name] for name in request.rel_url.query},
            headers={name.lower(): value for name, value in request.headers.items()},
            turn=partial(self._turn, f"streams of {caller}"),
        )
        return await self._ask(route, asked, entry), entry

    async def _ask(self, route: Route, asked: Asked, entry: Entry) -> Answer:
        """The answer of a route's handler; what it raises is an answer, too."""
        errors: list[Exception] = []
        try:
            async with self._turn(str(asked.caller)):
                with contained(errors.append), entry:
                    return await self._of_leader(route, asked)
        except Unreachable as late:
            return _failed(503, late)
        error = errors[0]
        if isinstance(error, TfSupervisorError):
            return _failed(_STATUS.get(to_failure(error).error, 500), error)
        self._door.sink.error("an HTTP request failed", path=route.path, reason=told(error))
        return _failed(500, TfSupervisorError("this is a bug; the daemon's log has the error"))

    async def _of_leader(self, route: Route, asked: Asked) -> Answer:
        """The answer of the handler, for a caller who may see this job; of another place, if that leads."""
        try:
            self._gate.check(route.method, asked.caller, JobRequest(asked.names.get("job", "")))
            return await route.handler(asked)
        except NotLeading:
            if instead := route.elsewhere(asked):
                return instead
            raise

    @asynccontextmanager
    async def _turn(self, who: str) -> AsyncIterator[None]:
        """A place among the answers that are made for a caller. Raises Unreachable after ANSWER_S."""
        try:
            async with asyncio.timeout(ANSWER_S), self._place(who):
                yield
        except TimeoutError as error:
            raise Unreachable(f"there is no answer within {ANSWER_S:g} s") from error

    @asynccontextmanager
    async def _place(self, who: str) -> AsyncIterator[None]:
        """One who asks without pause leaves half of the loop's time to the daemon's own work."""
        places = self._places.setdefault(who, asyncio.Semaphore(MOST_AT_ONCE))
        await places.acquire()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            yield
        finally:
            loop.call_later(min(loop.time() - began_s, LONGEST_REST_S), places.release)

    def _route(self, parts: list[str]) -> tuple[Route | None, dict[str, str]]:
        for pattern, route in self._routes:
            if len(pattern) == len(parts):
                pairs = list(zip(pattern, parts, strict=True))
                if all((part and _is_name(wanted)) or wanted == part for wanted, part in pairs):
                    return route, {wanted[1:-1]: part for wanted, part in pairs if _is_name(wanted)}
        return None, {}

    def _identify(self, request: web.BaseRequest) -> Caller:
        """The caller; raises Refused, UserError."""
        guard = self._door.guard
        if guard.certificates is not None:
            secured = request.get_extra_info("ssl_object")
            der = secured.getpeercert(binary_form=True) if secured is not None else None
            return self._gate.holder(ssl.DER_cert_to_PEM_cert(der).encode() if der else b"")
        if guard.token:
            scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
            name, value = self._cookie
            shown = scheme.lower() == "bearer" and _same(bearer.strip(), guard.token)
            if not shown and not _same(request.cookies.get(name, ""), value):
                raise _Unknown(
                    "the token is missing or wrong: send it as `Authorization: Bearer TOKEN`, or open "
                    "the page once with `?token=TOKEN`"
                )
        return Caller(Kind.LOCAL, way_in(self._door.settings.listen, guard))

    def _let_in(self, request: web.BaseRequest, given: str) -> Answer:
        """The answer to a browser that shows the token: a cookie, and the address without the token.

        Browsers show cookies to all ports of a host, so the cookie is not the token: it opens
        this door alone.
        """
        if not _same(given, self._door.guard.token):
            raise _Unknown("this token is wrong; use the one of this daemon")
        name, value = self._cookie
        url = request.rel_url.without_query_params("token")
        headers = {
            "Location": url.raw_path_qs,
            "Set-Cookie": f"{name}={value}; Path=/; HttpOnly; SameSite=Strict",
        }
        return Answer(b"", status=303, headers=headers)

    async def _stream(
        self,
        request: web.BaseRequest,
        response: web.StreamResponse,
        chunks: AsyncGenerator[bytes, None],
        entry: Entry | None,
    ) -> None:
        who = str(entry.caller) if entry is not None else ""
        async with aclosing(chunks):
            if self._streams[who] >= MOST_STREAMS:
                response.set_status(503)
                response.headers["Retry-After"] = "5"
                await response.prepare(request)
                return
            self._streams[who] += 1
            try:
                await response.prepare(request)
                if request.method == "HEAD":
                    return
                async for chunk in chunks:
                    if entry is not None:
                        self._gate.remain(entry.method, entry.caller, Target())
                    async with asyncio.timeout(SLOW_S):
                        await response.write(chunk)
                await response.write_eof()
            finally:
                self._streams[who] -= 1


def _cookie_of(token: str) -> tuple[str, str]:
    """The name and value of the cookie for a token."""
    value = hmac.new(token.encode(), b"tf-supervisor's page", hashlib.sha256).hexdigest()
    return f"tfsup-{hashlib.sha256(value.encode()).hexdigest()[:8]}", value


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def _is_name(part: str) -> bool:
    return part.startswith("{")


def _peer(request: web.BaseRequest) -> str:
    found = request.get_extra_info("peername")
    return f"http:{found[0]}:{found[1]}" if found else "http"


def _failed(status: int, error: TfSupervisorError, headers: Mapping[str, str] | None = None) -> Answer:
    failure: Failure = to_failure(error)
    return Answer(json.dumps(codec.to_plain(failure)).encode() + b"\n", JSON, status, headers or {})
