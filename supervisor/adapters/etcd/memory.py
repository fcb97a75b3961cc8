"""Clients of a pretend etcd cluster, for tests and the simulator.

Delays and faults come from two hooks, where the simulator plugs its seeded choices in. Time is the loop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from enum import Enum
from typing import TypeVar

from supervisor.adapters.etcd.memory_store import Change, MemoryStore, Stream
from supervisor.adapters.etcd.txn_rules import check_txn
from supervisor.contract.boundaries import Compare, Coordination, KeyValue, Listing, Op, TxnResult, WatchBatch
from supervisor.contract.errors import CoordinationUnreachable, TfSupervisorError

__all__ = ["Fault", "MemoryCoordination", "MemoryStore", "no_delay", "no_fault"]

T = TypeVar("T")

SIGN_OF_LIFE_S = 0.4


class Fault(Enum):
    """Faults of one call. In each case its caller gets CoordinationUnreachable."""

    LOST_REQUEST = "never took effect"
    LOST_REPLY = "took effect"


def no_delay(_step: str) -> float:
    """Every message arrives at once."""
    return 0.0


def no_fault(_call: str) -> Fault | None:
    """Every call succeeds."""
    return None


class MemoryCoordination(Coordination):
    """One client of a MemoryStore.

    Args:
        store: the pretend cluster.
        rpc_deadline_ms: bound of every call.
        silence_ms: a watch without any message for this long raises CoordinationUnreachable.
        delay: seconds that a message takes, asked with "CALL.request", "CALL.reply" or "watch" (a batch).
            A request that is slower than the deadline still takes effect, later.
        fault: asked once for each call with its name.
    """

    def __init__(
        self,
        store: MemoryStore,
        *,
        rpc_deadline_ms: int = 10_000,
        silence_ms: int = 10_000,
        delay: Callable[[str], float] = no_delay,
        fault: Callable[[str], Fault | None] = no_fault,
    ) -> None:
        self._connected = True
        self._store = store
        self._deadline_s = rpc_deadline_ms / 1000
        self._silence_s = silence_ms / 1000
        self._delay = delay
        self._fault = fault
        self._closed = False
        self._pending: set[Callable[[], None]] = set()
        self._streams: set[Stream] = set()

    async def get(self, key: str) -> KeyValue | None:
        """Read one key."""
        found = await self._call("get", lambda: self._store.read(key))
        return found[0] if found else None

    async def get_at(self, key: str, revision: int) -> KeyValue | None:
        """Read one key as it was at a revision."""
        found = await self._call("get_at", lambda: self._store.read_at(key, revision))
        return found[0] if found else None

    async def list(self, prefix: str) -> Listing:
        """Read every key under a prefix."""
        return await self._call("list", lambda: Listing(self._store.revision, self._store.select(prefix)))

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        """Run one transaction."""
        check_txn(compares, then, otherwise)
        frozen = (tuple(compares), tuple(then), tuple(otherwise))
        return await self._call("txn", lambda: self._store.commit(*frozen))

    async def grant(self, ttl_s: int) -> int:
        """Make a lease."""
        return await self._call("grant", lambda: self._store.grant(ttl_s))

    async def keep_alive(self, lease_id: int) -> bool:
        """Renew a lease once."""
        return await self._call("keep_alive", lambda: self._store.keep_alive(lease_id))

    async def revoke(self, lease_id: int) -> None:
        """End a lease."""
        await self._call("revoke", lambda: self._store.revoke(lease_id))

    async def close(self) -> None:
        """Fail pending calls and watches."""
        self._closed = True
        for fail in list(self._pending):
            fail()
        for stream in self._streams:
            stream.waker.set()

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Stream changes, with a sign of life every 0.4 s."""
        self._check_open()
        store, loop = self._store, asyncio.get_running_loop()
        stream = await self._call("watch.open", lambda: store.open_stream(prefix, from_revision))
        self._streams.add(stream)
        delivered = from_revision - 1
        try:
            yield WatchBatch(delivered)
            heard_at = loop.time()
            while True:
                await _wait(stream.waker, SIGN_OF_LIFE_S)
                self._check_open()
                if self._reaches() and stream.broken:
                    raise CoordinationUnreachable("the watch stream broke")
                if self._reaches() and store.answering:
                    changes = self._readable(stream)
                    await asyncio.sleep(self._delay("watch"))
                    if not self._reaches():
                        continue  # the stream sends it again after the partition, or breaks
                    del stream.unread[: len(changes)]
                    delivered = max([delivered, *(change.mod_revision for change in changes)])
                    yield WatchBatch(delivered, changes)
                    heard_at = loop.time()
                elif loop.time() - heard_at >= self._silence_s:
                    raise CoordinationUnreachable(f"a watch heard nothing for {self._silence_s:g} s")
        finally:
            store.close_stream(stream)
            self._streams.discard(stream)

    def disconnect(self) -> None:
        """A partition: messages are lost in both directions, watches fall silent."""
        self._connected = False

    def reconnect(self) -> None:
        """The end of the partition; watches go on where they were, if they have not given up."""
        self._connected = True

    def _readable(self, stream: Stream) -> tuple[Change, ...]:
        """The changes of a watch that the client may read."""
        return tuple(stream.unread)

    def _reaches(self) -> bool:
        return self._connected

    def _check_open(self) -> None:
        if self._closed:
            raise CoordinationUnreachable("this client is closed")

    async def _call(self, name: str, run: Callable[[], T]) -> T:
        self._check_open()
        loop = asyncio.get_running_loop()
        fault = self._fault(name)
        answer: asyncio.Future[T] = loop.create_future()
        life = self._store.life
        request_s, reply_s = self._delay(f"{name}.request"), self._delay(f"{name}.reply")

        def reply(settle: Callable[[], None]) -> None:
            if self._reaches() and fault is not Fault.LOST_REPLY:
                loop.call_later(reply_s, lambda: None if answer.done() else settle())

        def serve() -> None:
            try:
                result = run()
            except TfSupervisorError as error:
                refusal = error
                reply(lambda: answer.set_exception(refusal))
            else:
                reply(lambda: answer.set_result(result))

        def arrive() -> None:
            if self._reaches() and fault is not Fault.LOST_REQUEST and life == self._store.life:
                self._store.receive(serve)

        def fail() -> None:
            if not answer.done():
                answer.set_exception(CoordinationUnreachable(f"{name}: the client was closed"))

        loop.call_later(request_s, arrive)
        self._pending.add(fail)
        try:
            async with asyncio.timeout(self._deadline_s):
                return await answer
        except TimeoutError:
            raise CoordinationUnreachable(f"{name}: no answer for {self._deadline_s:g} s") from None
        finally:
            self._pending.discard(fail)


async def _wait(waker: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await waker.wait()
    except TimeoutError:
        pass  # time for a sign of life
    waker.clear()
