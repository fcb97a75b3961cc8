"""The choice of an etcd member: the first healthy one, and another one as soon as that one fails.

gRPC's own balancing sticks to a member that accepts connections but never answers (SIGSTOP, a dying disk), so
each member has its own channel here, and one counts as healthy only when it has answered and knows a leader.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
from aetcd import rpc

from supervisor.adapters.backoff import Backoff
from supervisor.adapters.certificates.reload import Certificates
from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.contract.addresses import join, split_host_port
from supervisor.contract.errors import UserError

_STAGGER_S = 0.05
_RETRY_MS = 50
_MOST_RETRY_MS = 200
"""Waits between two tries to reach a member. Where one fails, a thousand clients look for another at once."""

_OPTIONS = (
    # A fresh channel must be a fresh connection; by default channels to one target share theirs.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 256 * 1024 * 1024),
    ("grpc.max_send_message_length", -1),
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One etcd member: its address in the configuration, and in gRPC's form."""

    text: str
    target: str

    @classmethod
    def parse(cls, text: str, tls: TlsFiles | None) -> Endpoint:
        """Read `http(s)://host:port`, `host:port` or `unix:/path`; raises UserError."""
        if text.startswith("unix:"):
            path = text.removeprefix("unix:").removeprefix("//")
            if not path.startswith("/"):
                raise UserError(f"etcd endpoint {text!r}: write unix:/absolute/path")
            return cls(text, f"unix:{path}")
        if text.startswith("https://") and tls is None:
            raise UserError(f"etcd endpoint {text!r} needs TLS files: configure ca, cert and key")
        if text.startswith("http://") and tls is not None:
            raise UserError(
                f"etcd endpoint {text!r} is not encrypted, but TLS files are given: write https://"
            )
        host, port = split_host_port(text.removeprefix("http://").removeprefix("https://"))
        try:
            version = ipaddress.ip_address(host).version
        except ValueError:
            return cls(text, f"dns:///{join(host, port)}")
        return cls(text, f"ipv{version}:{join(host, port)}")


def open_channel(endpoint: Endpoint, certificates: Certificates | None) -> grpc.aio.Channel:
    """A fresh connection to one member; without certificates a plain one."""
    if certificates is None:
        return grpc.aio.insecure_channel(endpoint.target, options=_OPTIONS)
    return grpc.aio.secure_channel(endpoint.target, certificates.client_credentials(), options=_OPTIONS)


@dataclass(slots=True)
class Link:
    """A channel to one member that has answered."""

    index: int
    channel: grpc.aio.Channel
    kv: rpc.KVStub = field(init=False)
    lease: rpc.LeaseStub = field(init=False)
    watch: rpc.WatchStub = field(init=False)

    def __post_init__(self) -> None:
        self.kv = rpc.KVStub(self.channel)
        self.lease = rpc.LeaseStub(self.channel)
        self.watch = rpc.WatchStub(self.channel)


class EndpointPool:
    """Hands out a link to a healthy member.

    Args:
        endpoints: one or more members, see Endpoint.parse.
        tls: certificates, read again when the files change; None for plain connections.
        connect_s: seconds to look for a healthy member.
        grace_s: seconds for which calls on an abandoned link may go on.
    """

    def __init__(
        self, endpoints: Sequence[str], tls: TlsFiles | None, *, connect_s: float, grace_s: float
    ) -> None:
        if not endpoints:
            raise UserError("no etcd endpoint is configured")
        self._endpoints = [Endpoint.parse(text, tls) for text in endpoints]
        self._certificates = Certificates(tls) if tls is not None else None
        if self._certificates is not None:
            self._certificates.current()
        self._connect_s = connect_s
        self._grace_s = grace_s
        self._failed_at = [0.0] * len(self._endpoints)
        self._errors = ["no answer"] * len(self._endpoints)
        self._current: Link | None = None
        self._search: asyncio.Task[Link | None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def describe_errors(self) -> str:
        """The last answer or error of each member, for an error message."""
        pairs = zip(self._endpoints, self._errors, strict=True)
        return "; ".join(f"{endpoint.text}: {error}" for endpoint, error in pairs)

    async def link(self) -> Link | None:
        """A link to a healthy member; None if none was found within `connect_s`."""
        current = self._current
        if current is not None:
            if current.channel.get_state() is grpc.ChannelConnectivity.READY:
                return current
            self.abandon(current, "connection lost")
        if self._search is None:
            self._search = asyncio.create_task(self._find())
            self._search.add_done_callback(self._found)
        return await asyncio.shield(self._search)

    def abandon(self, link: Link, reason: str) -> None:
        """Use another member from now on; calls on `link` fail after the grace time."""
        if link is not self._current:
            return
        self._current = None
        self._failed_at[link.index] = asyncio.get_running_loop().time()
        self._errors[link.index] = reason
        self._retire(link.channel, self._grace_s)

    async def close(self) -> None:
        """Close every connection; calls in flight fail."""
        if self._search is not None:
            self._search.cancel()
            await asyncio.wait([self._search])
        if self._current is not None:
            self._retire(self._current.channel, 0)
            self._current = None
        for task in list(self._closing):
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _found(self, search: asyncio.Task[Link | None]) -> None:
        self._search = None
        if not search.cancelled():
            self._current = search.result()

    def _retire(self, channel: grpc.aio.Channel, grace_s: float) -> None:
        task = asyncio.create_task(_close_later(channel, grace_s))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _find(self) -> Link | None:
        """Probe all members at once, with a head start for those that failed longest ago or never."""
        order = sorted(range(len(self._endpoints)), key=self._failed_at.__getitem__)
        attempts = [
            asyncio.create_task(self._attempt(index, head_start * _STAGGER_S))
            for head_start, index in enumerate(order)
        ]
        try:
            await asyncio.wait(attempts, timeout=self._connect_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for attempt in attempts:
                attempt.cancel()
            results = await asyncio.gather(*attempts, return_exceptions=True)
        links = [result for result in results if isinstance(result, Link)]
        for failure in results:
            if isinstance(failure, Exception):
                raise failure
        for spare in links[1:]:
            self._retire(spare.channel, 0)
        return links[0] if links else None

    async def _attempt(self, index: int, delay_s: float) -> Link:
        await asyncio.sleep(delay_s)
        backoff = Backoff(_RETRY_MS, _MOST_RETRY_MS)
        while True:
            channel = open_channel(self._endpoints[index], self._certificates)
            try:
                problem = await self._probe(channel)
            except BaseException:
                await channel.close()
                raise
            if problem is None:
                return Link(index, channel)
            self._errors[index] = problem
            await channel.close()
            await backoff.wait()

    async def _probe(self, channel: grpc.aio.Channel) -> str | None:
        """None if the member is healthy, else its problem."""
        try:
            status = await rpc.MaintenanceStub(channel).Status(rpc.StatusRequest(), timeout=self._connect_s)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
                return None
            return f"{error.code().name}: {error.details()}"
        return None if status.leader else "this member knows no leader"


async def _close_later(channel: grpc.aio.Channel, grace_s: float) -> None:
    try:
        await asyncio.sleep(grace_s)
    finally:
        await channel.close()
