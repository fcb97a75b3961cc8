"""The pretend etcd of the simulator: the contract-tested one, with a full record of what took effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from chaos.sim.cluster.loop import SimProcess, VirtualLoop
from supervisor.adapters.etcd.memory import Fault, MemoryCoordination
from supervisor.adapters.etcd.memory_store import Change, MemoryStore, Stream
from supervisor.adapters.etcd.txn_rules import check_txn
from supervisor.contract.boundaries import (
    Compare,
    Delete,
    DeletePrefix,
    Get,
    GetPrefix,
    KeyValue,
    Listing,
    Op,
    Put,
    TxnResult,
    WatchBatch,
)
from supervisor.contract.errors import CoordinationUnreachable, Refused
from supervisor.contract.etcd_roles import may

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Effect:
    """One write that took effect.

    Attributes:
        process: whose transaction it was; None for the end of a lease.
        before: the keys that it changed, as they were.
        puts: what it wrote.
        deleted: keys that it removed.
    """

    revision: int
    at_s: float
    process: SimProcess | None
    compares: tuple[Compare, ...]
    before: dict[str, KeyValue]
    puts: dict[str, bytes]
    deleted: tuple[str, ...]


Watcher = Callable[[Effect], None]


class RecordingStore(MemoryStore):
    """A MemoryStore that tells `watcher` of every write, before anybody else hears of it."""

    def __init__(self, loop: VirtualLoop, *, election_timeout_s: float = 0.5) -> None:
        super().__init__(election_timeout_s=election_timeout_s)
        self.watcher: Watcher = lambda _effect: None
        self.vouched_s: dict[str, float] = {}
        """Node key -> when its agent last sent a request that rule 3 counts: a read of key and mark, or a new
        key."""
        self._loop = loop

    def commit_as(
        self, process: SimProcess, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op]
    ) -> TxnResult:
        """Run one transaction of `process`."""
        before: dict[str, KeyValue] = {}
        for op in (*then, *otherwise):
            if isinstance(op, Put | Delete):
                before.update((entry.key, entry) for entry in self.read(op.key))
            elif isinstance(op, DeletePrefix):
                before.update((entry.key, entry) for entry in self.select(op.prefix))
        result = self.commit(compares, then, otherwise)
        branch = then if result.succeeded else otherwise
        puts = {op.key: op.value for op in branch if isinstance(op, Put)}
        written = before.keys() | puts.keys()
        deleted = tuple(sorted(key for key in written if key not in puts and not self.read(key)))
        if puts or deleted:
            held = tuple(compares) if result.succeeded else ()
            changed = {key: entry for key, entry in before.items() if key in puts or key in deleted}
            self.watcher(Effect(result.revision, self._loop.time(), process, held, changed, puts, deleted))
        return result

    def vouch(self, sent_s: float, then: Sequence[Op], result: TxnResult) -> None:
        """Note what lets an agent run its tasks for another D (rule 3)."""
        if not result.succeeded:
            return
        for op in then:
            joins = isinstance(op, Put)
            beats = isinstance(op, Get) and any(
                isinstance(each, Get) and each.key.startswith("lost/") for each in then
            )
            if isinstance(op, Put | Get) and op.key.startswith("nodes/") and (joins or beats):
                self.vouched_s[op.key] = max(self.vouched_s.get(op.key, 0.0), sent_s)

    def revoke(self, lease_id: int) -> None:
        """End a lease, by its client or by time."""
        lease = self._leases.get(lease_id)
        keys = sorted(lease.keys) if lease is not None else []
        before = {entry.key: entry for key in keys for entry in self.read(key)}
        super().revoke(lease_id)
        if before:
            self.watcher(Effect(self.revision, self._loop.time(), None, (), before, {}, tuple(before)))


@dataclass(frozen=True, slots=True)
class EtcdUser:
    """A daemon as etcd knows it. `denied` is told of what etcd refuses to it: nothing, if all is well."""

    holder: str
    denied: Callable[[str], None]


class SimEtcd(MemoryCoordination):
    """One process's client. Neither a freeze nor a crash calls back a request that it has sent.

    `user` is its user in etcd, which refuses keys that are not for that user.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        store: RecordingStore,
        process: SimProcess,
        user: EtcdUser,
        *,
        rpc_deadline_ms: int,
        silence_ms: int,
        delay: Callable[[str], float],
        fault: Callable[[str], Fault | None],
    ) -> None:
        def trouble(call: str) -> Fault | None:
            return Fault.LOST_REPLY if self.unanswered else fault(call)

        super().__init__(
            store, rpc_deadline_ms=rpc_deadline_ms, silence_ms=silence_ms, delay=delay, fault=trouble
        )
        self._loop = loop
        self._recording = store
        self._process = process
        self._user = user
        self.deaf = False
        """Its watches bring signs of life and no news, as those of a member that is cut off."""
        self.stale = False
        """It talks to such a member: keepalives are acknowledged, and nothing else is answered."""
        self.unanswered = False
        """Whether its requests take effect, and no answer comes back."""

    async def get(self, key: str) -> KeyValue | None:
        """Read one key."""
        self._may(key)
        return await super().get(key)

    async def get_at(self, key: str, revision: int) -> KeyValue | None:
        """Read one key as it was."""
        self._may(key)
        return await super().get_at(key, revision)

    async def list(self, prefix: str) -> Listing:
        """Read every key under a prefix."""
        self._may(prefix, prefix=True)
        return await super().list(prefix)

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Stream changes."""
        self._may(prefix, prefix=True)
        async with aclosing(super().watch(prefix, from_revision)) as batches:
            async for batch in batches:
                yield batch

    def _may(self, key: str, *, prefix: bool = False, writes: bool = False) -> None:
        if not may(self._user.holder, key, prefix=prefix, writes=writes):
            what = "write" if writes else "read"
            self._user.denied(f"{self._user.holder} may not {what} {key}{'*' if prefix else ''}")
            raise Refused(f"etcd: permission denied: {key}")

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        """Run one transaction, under the name of the process."""
        check_txn(compares, then, otherwise)
        for each in compares:
            self._may(each.key)
        for op in (*then, *otherwise):
            ranged = isinstance(op, DeletePrefix | GetPrefix)
            key = op.prefix if isinstance(op, DeletePrefix | GetPrefix) else op.key
            self._may(key, prefix=ranged, writes=not isinstance(op, Get | GetPrefix))
        frozen = (tuple(compares), tuple(then), tuple(otherwise))
        sent_s = self._loop.time()

        def serve() -> TxnResult:
            result = self._recording.commit_as(self._process, *frozen)
            self._recording.vouch(sent_s, frozen[1], result)
            return result

        return await self._call("txn", serve)

    def died(self) -> None:
        """The process is gone: its streams end at the server."""
        for stream in list(self._streams):
            self._store.close_stream(stream)
        self._streams.clear()

    def _readable(self, stream: Stream) -> tuple[Change, ...]:
        return () if self.deaf or self.stale else super()._readable(stream)

    async def keep_alive(self, lease_id: int) -> bool:
        """Renew a lease once, or be told so."""
        return True if self.stale else await super().keep_alive(lease_id)

    async def _call(self, name: str, run: Callable[[], T]) -> T:
        if not self._process.alive:
            # It was killed in the middle of a step that went on to here.
            await asyncio.Event().wait()
        if self.stale:
            await asyncio.sleep(self._deadline_s)
            raise CoordinationUnreachable(f"{name}: this member has no leader")
        sent = self._loop.world(self._send(name, run))
        sent.add_done_callback(_retrieve)
        return await sent

    def _send(self, name: str, run: Callable[[], T]) -> Coroutine[object, object, T]:
        return super()._call(name, run)


def _retrieve(task: asyncio.Task[T]) -> None:
    """A dead caller does not hear of the failure, and that is no fault of the run."""
    if not task.cancelled():
        task.exception()
