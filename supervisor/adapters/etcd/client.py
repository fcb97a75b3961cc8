"""etcd behind the `Coordination` boundary: aetcd's stubs over `grpc.aio` channels.

Every call has a deadline and every error is one of ours. Only the search for a member that answers is
retried, and it comes before a request is sent. So a failed write is *unknown* to its caller, but never sent
twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

import grpc
from aetcd import rpc

from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.etcd.endpoints import EndpointPool, Link
from supervisor.adapters.etcd.txn_rules import check_txn
from supervisor.adapters.etcd.watch_stream import REQUIRE_LEADER, Watch, WatchStream
from supervisor.adapters.metrics.daemon import ETCD_REFUSED, Metrics
from supervisor.contract.boundaries import (
    BULK,
    Absent,
    Compare,
    Coordination,
    CreatedAt,
    Delete,
    DeletePrefix,
    Get,
    GetPrefix,
    KeyDeleted,
    KeyValue,
    Listing,
    ModifiedAt,
    Op,
    Put,
    TxnResult,
    WatchBatch,
)
from supervisor.contract.errors import (
    Compacted,
    CoordinationFull,
    CoordinationUnreachable,
    NotFound,
    Refused,
    TfSupervisorError,
)
from supervisor.contract.ids import check_name

T = TypeVar("T")

PAGE = 500
"""Keys in one answer to a list."""
PROGRESS_EVERY_MS = 400
PROGRESS_SHARE = 5
"""A member is asked for a sign of life so often in the time after which silence is a failure, at most each
PROGRESS_EVERY_MS."""

# A search for a healthy member may take this part of a call's deadline; the call itself has the rest.
_CONNECT_SHARE = 0.6

_UNKNOWN_OUTCOME = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.ABORTED,
    }
)


def namespaces(cluster: str) -> tuple[str, str]:
    """The prefixes of a cluster's keys and of its large ones (BULK). Raises UserError."""
    return f"/tfsup/{check_name('cluster', cluster)}/", f"/tfsup-bulk/{cluster}/"


class EtcdCoordination(Coordination):
    """One client of an etcd cluster. Create and use it on one event loop.

    Args:
        endpoints: members, each `http(s)://host:port`, `host:port` or `unix:/path`.
        cluster: this installation's name; every key lives under `/tfsup/CLUSTER/`,
            large ones (BULK) under `/tfsup-bulk/CLUSTER/`.
        tls: certificates, or None for plain connections.
        rpc_deadline_ms: bound of every call.
        silence_ms: a watch without any message for this long raises CoordinationUnreachable.
        metrics: where requests are counted and timed.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        cluster: str,
        *,
        tls: TlsFiles | None = None,
        rpc_deadline_ms: int,
        silence_ms: int,
        metrics: Metrics | None = None,
    ) -> None:
        assert silence_ms > 2 * PROGRESS_EVERY_MS, f"silence_ms={silence_ms} is below two signs of life"
        self._namespace, self._bulk = namespaces(cluster)
        self._deadline_s = rpc_deadline_ms / 1000
        self._silence_s = silence_ms / 1000
        self._ask_every_s = max(PROGRESS_EVERY_MS, silence_ms // PROGRESS_SHARE) / 1000
        self._closed = False
        self._metrics = metrics
        self._watching: WatchStream | None = None
        self._pool = EndpointPool(
            endpoints, tls, connect_s=self._deadline_s * _CONNECT_SHARE, grace_s=self._deadline_s
        )

    async def get(self, key: str) -> KeyValue | None:
        """Read one key, linearizably."""
        request = rpc.RangeRequest(key=self._key(key))
        response = await self._call("range", lambda link, timeout: link.kv.Range(request, timeout=timeout))
        return self._entry(response.kvs[0]) if response.kvs else None

    async def get_at(self, key: str, revision: int) -> KeyValue | None:
        """Read one key as it was at a revision."""
        request = rpc.RangeRequest(key=self._key(key), revision=revision)
        try:
            response = await self._call(
                "range", lambda link, timeout: link.kv.Range(request, timeout=timeout)
            )
        except Refused as error:
            if "has been compacted" in str(error):
                raise Compacted(revision + 1) from error
            if "is a future revision" in str(error):
                return None
            raise
        return self._entry(response.kvs[0]) if response.kvs else None

    async def list(self, prefix: str) -> Listing:
        """Read every key under a prefix, linearizably, at one revision, sorted by key.

        It asks for PAGE keys at a time: a member holds up its other clients while it sends many. Each page
        has a deadline of its own. Raises Compacted where the revision of the first page is forgotten before
        the last one is read.
        """
        request = rpc.RangeRequest(key=self._key(prefix), range_end=self._end(prefix), limit=PAGE)
        entries: list[KeyValue] = []
        while True:
            response = await self._page(request)
            request.revision = request.revision or response.header.revision
            entries.extend(self._entry(kv) for kv in response.kvs)
            if not response.more:
                return Listing(request.revision, tuple(entries))
            request.key = response.kvs[-1].key + b"\0"

    async def _page(self, request: rpc.RangeRequest) -> rpc.RangeResponse:
        try:
            return await self._call("range", lambda link, timeout: link.kv.Range(request, timeout=timeout))
        except Refused as error:
            if "has been compacted" in str(error):
                raise Compacted(request.revision + 1) from error
            if "is a future revision" in str(error):
                raise CoordinationUnreachable("etcd lost data while a list was read") from error
            raise

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        """Run one transaction. A put under a lease that is gone raises NotFound and changes nothing."""
        check_txn(compares, then, otherwise)
        request = rpc.TxnRequest(
            compare=[self._compare(compare) for compare in compares],
            success=[self._op(op) for op in then],
            failure=[self._op(op) for op in otherwise],
        )
        response = await self._call("txn", lambda link, timeout: link.kv.Txn(request, timeout=timeout))
        if not response.succeeded and self._metrics is not None:
            self._metrics.kept.add(ETCD_REFUSED, 1)
        ran = then if response.succeeded else otherwise
        reads = tuple(
            tuple(self._entry(kv) for kv in part.response_range.kvs)
            for op, part in zip(ran, response.responses, strict=True)
            if isinstance(op, Get | GetPrefix)
        )
        return TxnResult(bool(response.succeeded), response.header.revision, reads)

    async def grant(self, ttl_s: int) -> int:
        """Make a lease. The shortest in etcd is 1.5 election timeouts, rounded up."""
        request = rpc.LeaseGrantRequest(TTL=ttl_s)
        response = await self._call(
            "lease_grant", lambda link, timeout: link.lease.LeaseGrant(request, timeout=timeout)
        )
        return int(response.ID)

    async def keep_alive(self, lease_id: int) -> bool:
        """Renew a lease once; False when it is gone."""
        return await self._call("lease_keep_alive", lambda link, timeout: _renew(link, lease_id, timeout))

    async def revoke(self, lease_id: int) -> None:
        """End a lease and delete its keys in one revision."""
        request = rpc.LeaseRevokeRequest(ID=lease_id)
        try:
            await self._call(
                "lease_revoke", lambda link, timeout: link.lease.LeaseRevoke(request, timeout=timeout)
            )
        except NotFound:
            pass  # gone already, which is what was asked for

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Stream changes; the revision of an empty batch is that of the last change delivered.

        It is not the revision in etcd's progress answer, because before 3.4.25 and 3.5.8 that answer may
        overtake the changes that it covers (etcd #15220). A member that is behind `from_revision` has lost
        data or lags. Listing again is right in both cases, so Compacted is raised.
        """
        link = await self._link()
        watch = self._stream_on(link).open(self._watch_request(prefix, from_revision))
        revision = from_revision - 1
        changes: list[KeyValue | KeyDeleted] = []
        try:
            created = await self._read_watch(link, watch)
            if created.header.revision < from_revision - 1:
                raise Compacted(created.header.revision)
            yield WatchBatch(revision)
            while True:
                response = await self._read_watch(link, watch)
                changes.extend(
                    self._change(event) for event in response.events if event.kv.mod_revision >= from_revision
                )
                if response.fragment:
                    continue
                revision = max([revision, *(change.mod_revision for change in changes)])
                batch, changes = WatchBatch(revision, tuple(changes)), []
                yield batch
        finally:
            watch.close()

    async def close(self) -> None:
        """Close every connection; calls in flight raise CoordinationUnreachable."""
        self._closed = True
        if self._watching is not None:
            self._watching.close()
        await self._pool.close()

    async def _link(self) -> Link:
        if self._closed:
            raise CoordinationUnreachable("this etcd client is closed")
        link = await self._pool.link()
        if link is None:
            raise CoordinationUnreachable(f"no etcd member answers: {self._pool.describe_errors()}")
        return link

    async def _call(self, operation: str, send: Callable[[Link, float], Awaitable[T]]) -> T:
        if self._metrics is None:
            return await self._send(send)
        with self._metrics.etcd.timed(operation):
            return await self._send(send)

    async def _send(self, send: Callable[[Link, float], Awaitable[T]]) -> T:
        deadline = asyncio.get_running_loop().time() + self._deadline_s
        link: Link | None = None
        try:
            link = await self._link()
            return await send(link, deadline - asyncio.get_running_loop().time())
        except grpc.aio.AioRpcError as error:
            assert link is not None
            raise self._mapped(link, error) from error
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            raise CoordinationUnreachable("the connection to etcd was given up during the call") from None

    def _mapped(self, link: Link, error: grpc.aio.AioRpcError) -> TfSupervisorError:
        mapped = map_error(error)
        if isinstance(mapped, CoordinationUnreachable):
            self._pool.abandon(link, str(mapped))
        return mapped

    def _lost(self, link: Link, reason: str) -> CoordinationUnreachable:
        self._pool.abandon(link, reason)
        error = CoordinationUnreachable(reason)
        if self._metrics is not None:
            self._metrics.etcd.failed("watch", error)
        return error

    def _canceled(self, link: Link, response: rpc.WatchResponse) -> TfSupervisorError:
        if response.compact_revision > 0:
            return Compacted(response.compact_revision)
        if "permission denied" in response.cancel_reason:
            return Refused(f"etcd: {response.cancel_reason}")
        return self._lost(link, f"etcd cancelled a watch: {response.cancel_reason}")

    def _stream_on(self, link: Link) -> WatchStream:
        """The stream of all watches on this link."""
        known = self._watching
        if known is None or known.over or known.link is not link:
            known = self._watching = WatchStream(link, self._ask_every_s)
        return known

    def _watch_request(self, prefix: str, from_revision: int) -> rpc.WatchCreateRequest:
        # Begins one revision early, and what is not wanted is dropped. A current etcd answers no progress
        # request of a watch whose first revision is still to come, however long the cluster is quiet; and an
        # older one loses a delete at exactly the compacted revision, without saying Compacted (etcd #18089).
        # The price is that a new watch catches up for 0.1 s before it is prompt.
        return rpc.WatchCreateRequest(
            key=self._key(prefix),
            range_end=self._end(prefix),
            start_revision=max(1, from_revision - 1),
            fragment=True,
        )

    async def _read_watch(self, link: Link, watch: Watch) -> rpc.WatchResponse:
        try:
            async with asyncio.timeout(self._silence_s):
                response = await watch.read()
        except TimeoutError:
            raise self._lost(link, f"a watch heard nothing for {self._silence_s:g} s") from None
        if response is None and watch.error is not None:
            raise self._mapped(link, watch.error) from watch.error
        if response is None:
            raise self._lost(link, "the stream of a watch has ended")
        if response.canceled:
            raise self._canceled(link, response)
        return response

    def _key(self, key: str) -> bytes:
        return ((self._bulk if key.startswith(BULK) else self._namespace) + key).encode()

    def _end(self, prefix: str) -> bytes:
        """The first key after all that begin with `prefix`; the namespace keeps the last byte below 255."""
        start = self._key(prefix)
        return start[:-1] + bytes([start[-1] + 1])

    def _own(self, key: bytes) -> str:
        return key.decode().removeprefix(self._namespace).removeprefix(self._bulk)

    def _entry(self, kv: rpc.KeyValue) -> KeyValue:
        return KeyValue(
            self._own(kv.key), bytes(kv.value), int(kv.create_revision), int(kv.mod_revision), int(kv.lease)
        )

    def _change(self, event: rpc.Event) -> KeyValue | KeyDeleted:
        if event.type == rpc.Event.DELETE:
            return KeyDeleted(self._own(event.kv.key), int(event.kv.mod_revision))
        return self._entry(event.kv)

    def _compare(self, compare: Compare) -> rpc.Compare:
        match compare:
            case Absent(key):
                return _equal(self._key(key), rpc.Compare.CREATE, create_revision=0)
            case CreatedAt(key, revision):
                return _equal(self._key(key), rpc.Compare.CREATE, create_revision=revision)
            case ModifiedAt(key, revision):
                return _equal(self._key(key), rpc.Compare.MOD, mod_revision=revision)

    def _op(self, op: Op) -> rpc.RequestOp:
        match op:
            case Put(key, value, lease_id):
                put = rpc.PutRequest(key=self._key(key), value=value, lease=lease_id)
                return rpc.RequestOp(request_put=put)
            case Delete(key):
                return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=self._key(key)))
            case DeletePrefix(prefix):
                delete = rpc.DeleteRangeRequest(key=self._key(prefix), range_end=self._end(prefix))
                return rpc.RequestOp(request_delete_range=delete)
            case Get(key):
                return rpc.RequestOp(request_range=rpc.RangeRequest(key=self._key(key)))
            case GetPrefix(prefix):
                read = rpc.RangeRequest(key=self._key(prefix), range_end=self._end(prefix))
                return rpc.RequestOp(request_range=read)


def map_error(error: grpc.aio.AioRpcError) -> TfSupervisorError:
    """Our error for one of gRPC's; the table is etcd's api/v3rpc/rpctypes/error.go."""
    code, details = error.code(), error.details() or ""
    message = f"etcd: {code.name}: {details}"
    if code in _UNKNOWN_OUTCOME or "too many requests" in details:
        return CoordinationUnreachable(message)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED or "request is too large" in details:
        return CoordinationFull(message)
    if code is grpc.StatusCode.NOT_FOUND:
        return NotFound(message)
    return Refused(message)


def _equal(key: bytes, target: int, **value: int) -> rpc.Compare:
    return rpc.Compare(result=rpc.Compare.EQUAL, target=target, key=key, **value)


async def _renew(link: Link, lease_id: int, timeout_s: float) -> bool:
    call = link.lease.LeaseKeepAlive(timeout=timeout_s, metadata=REQUIRE_LEADER)
    try:
        await call.write(rpc.LeaseKeepAliveRequest(ID=lease_id))
        response = await call.read()
    finally:
        call.cancel()
    if response is grpc.aio.EOF:
        raise CoordinationUnreachable("etcd ended the keepalive stream")
    return bool(response.TTL > 0)


def _cancelled_from_outside() -> bool:
    """Whether our own task is being cancelled; gRPC raises CancelledError too when a channel is closed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
