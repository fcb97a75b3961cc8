"""The HTTP door of a daemon: what a daemon gives it to serve, and the socket that it listens on.

`wire.http_server` answers requests. It is loaded, and aiohttp with it, when the first caller connects: a door
that nobody uses costs nothing.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

from supervisor.adapters.files.config.daemon import DaemonConfig, HttpConfig
from supervisor.contract.access import Caller
from supervisor.contract.addresses import bare, split_host_port
from supervisor.contract.boundaries import Logger
from supervisor.contract.containment import contained, told
from supervisor.wire.audit import Auditor
from supervisor.wire.gate import Policy
from supervisor.wire.rpc import Guard

JSON, TEXT = "application/json", "text/plain; charset=utf-8"
AGAIN_S = 1.0
BACKLOG = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that has passed the door.

    Attributes:
        target: the path and the parameters, as they were sent.
        names: the values of the `{name}` parts of the route's path.
        query: the parameters after the `?`; of one that is given twice, the first.
        headers: by name in lower case.
        turn: spans work of a stream of this caller, such as each new rendering of a page. A stream waits
            outside of it. Raises Unreachable when the work takes too long.
    """

    caller: Caller
    path: str
    target: str
    names: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. A body that is a generator is sent as it comes, until the caller leaves or is too slow."""

    body: bytes | AsyncGenerator[bytes, None] = b""
    kind: str = TEXT
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Handler: TypeAlias = Callable[[Asked], Awaitable[Answer]]


def _nowhere(_: Asked) -> Answer | None:
    return None


@dataclass(frozen=True, slots=True)
class Route:
    """A path that a daemon serves to GET and HEAD.

    Attributes:
        path: as `/jobs/{job}`; a part in braces stands for any one part.
        method: the row of the table of rights that lets a caller in, as `Control.Status`.
        handler: answers. Errors of our tree that it raises become answers, too.
        elsewhere: the answer where another supervisor leads; None: that error.
    """

    path: str
    method: str
    handler: Handler
    elsewhere: Callable[[Asked], Answer | None] = _nowhere


def guard_of(config: DaemonConfig) -> Guard:
    """The authentication of the HTTP door of a configuration."""
    return Guard(config.http_tls_files(), config.http_token, config.insecure)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpDoor:
    """The door of one daemon. `routes` is called in a thread, when the first caller connects."""

    settings: HttpConfig
    guard: Guard
    policy: Policy
    auditor: Auditor
    sink: Logger
    routes: Callable[[], Sequence[Route]]

    @property
    def hosts(self) -> frozenset[str]:
        """The names under which callers know this door, beside `localhost` and addresses."""
        known = (self.settings.listen, self.settings.advertise or self.settings.listen)
        return frozenset(split_host_port(each)[0].lower() for each in known)

    async def run(self) -> NoReturn:
        """Listen and serve until cancelled.

        A port that is in use is tried again, and so is all else that fails: a page never keeps a daemon from
        its work.
        """
        said = ""
        while True:
            errors: list[Exception] = []
            with contained(errors.append):
                await self._serve()
            if told(errors[0]) != said:
                said = told(errors[0])
                self.sink.error("the HTTP door has failed", reason=said, next="it is opened again")
            await asyncio.sleep(AGAIN_S)

    async def _serve(self) -> NoReturn:
        with await self._listen() as listener:
            first, _ = await asyncio.get_running_loop().sock_accept(listener)
            with first:
                server = await asyncio.to_thread(importlib.import_module, "supervisor.wire.http_server")
                routes = await asyncio.to_thread(self.routes)
                await server.HttpServer(self, routes).serve(listener, first)
        raise AssertionError("a door serves until it is cancelled")

    async def _listen(self) -> socket.socket:
        host, port = split_host_port(self.settings.listen)
        said = ""
        while True:
            try:
                listener = await asyncio.to_thread(_bind, host, port)
            except OSError as error:
                if str(error) != said:
                    said = str(error)
                    self.sink.error(
                        "cannot listen for HTTP", listen=self.settings.listen, reason=said, next="tried again"
                    )
                await asyncio.sleep(AGAIN_S)
                continue
            self.sink.info("HTTP door is open", listen=self.settings.listen)
            return listener


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in bare(host) else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    listener.setblocking(False)
    return listener
