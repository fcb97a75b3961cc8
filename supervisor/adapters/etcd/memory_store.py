"""The state of one pretend etcd cluster, with etcd's bad habits; `memory` has the clients of it.

Deterministic: no randomness, no threads, and no time but the running loop's, so that a loop with a virtual
clock can drive it.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from supervisor.adapters.etcd.txn_rules import MAX_REQUEST_BYTES
from supervisor.contract.boundaries import (
    BULK,
    Absent,
    Compare,
    CreatedAt,
    Delete,
    DeletePrefix,
    Get,
    GetPrefix,
    KeyDeleted,
    KeyValue,
    ModifiedAt,
    Op,
    Put,
    TxnResult,
)
from supervisor.contract.errors import Compacted, CoordinationFull, NotFound

Change = KeyValue | KeyDeleted


@dataclass(slots=True)
class _Lease:
    ttl_s: int
    keys: set[str] = field(default_factory=set)
    expiry: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class Backup:
    """A snapshot of everything at one revision. `leases`: their TTLs in seconds, by id."""

    revision: int
    entries: tuple[KeyValue, ...]
    leases: dict[int, int]


@dataclass(slots=True, eq=False)
class Stream:
    """The server's end of one watch: messages that it has sent and the client has not yet taken."""

    prefix: str
    waker: asyncio.Event
    unread: list[Change] = field(default_factory=list)
    broken: bool = False

    def send(self, changes: Sequence[Change]) -> None:
        """Queue those of one revision's changes that are under the prefix."""
        covered = [change for change in changes if _covers(self.prefix, change.key)]
        if covered:
            self.unread += covered
            self.waker.set()


class MemoryStore:
    """The state of one pretend etcd cluster. Changes are synchronous; clients add the delays.

    Args:
        election_timeout_s: of etcd; the shortest lease is 1.5 times that, rounded up; a new leader adds it.
        expiry_lag_s: seconds between the end of a lease's TTL and its deletion (0.2 to 0.45 s were measured).

    Attributes:
        full: NOSPACE: writes of values and new leases are refused, deletes and reads are not.
        stale_lessor: keepalives are acknowledged and renew nothing (etcd #15247).
        life: grows when its data are lost; requests to an earlier life do not arrive.
    """

    def __init__(self, *, election_timeout_s: float = 0.5, expiry_lag_s: float = 0.3) -> None:
        self.full = False
        self.stale_lessor = False
        self.revision = 1
        self.life = 1
        self._compacted = 0
        self._answering = True
        self._dead = False
        self._backlog: list[Callable[[], None]] = []
        self._keys: dict[str, KeyValue] = {}
        self._history: list[tuple[int, tuple[Change, ...]]] = []
        self._leases: dict[int, _Lease] = {}
        self._next_lease = 1
        self._election_timeout_s = election_timeout_s
        self._expiry_lag_s = expiry_lag_s
        self._streams: list[Stream] = []

    # What tests and the simulator do to it.

    def freeze(self) -> None:
        """Freeze all members: no request is answered, watches are silent, requests wait for the thaw, leases
        go on ageing.
        """
        self._answering = False

    def thaw(self) -> None:
        """Answer again, first the requests that came meanwhile, even if their callers gave up long ago."""
        self._answering = True
        backlog, self._backlog = self._backlog, []
        for request in backlog:
            request()
        for stream in self._streams:
            stream.waker.set()

    def down(self) -> None:
        """All members die: requests are lost, watches break."""
        self._answering = False
        self._backlog = []
        self._dead = True
        self.break_watches()

    def up(self) -> None:
        """Start the members again on the same data, with every lease at its full TTL."""
        self._dead = False
        self.elect_new_leader()
        self.thaw()

    def lose(self) -> None:
        """Lose all data of all members, and all connections: it begins anew, empty."""
        self.life += 1
        self.revision, self._compacted = 1, 0
        for lease in self._leases.values():
            if lease.expiry is not None:
                lease.expiry.cancel()
        self._keys, self._history, self._leases, self._backlog = {}, [], {}, []
        self.break_watches()

    def backup(self) -> Backup:
        """A snapshot, for `restore`."""
        leases = {lease_id: lease.ttl_s for lease_id, lease in self._leases.items()}
        return Backup(self.revision, tuple(self._keys.values()), leases)

    def restore(self, backup: Backup) -> None:
        """Go on from a snapshot, without history, and with every lease at its full TTL."""
        self.lose()
        self.revision = self._compacted = backup.revision
        self._keys = {entry.key: entry for entry in backup.entries}
        for lease_id, ttl_s in backup.leases.items():
            keys = {entry.key for entry in backup.entries if entry.lease_id == lease_id}
            self._leases[lease_id] = _Lease(ttl_s, keys)
            self._arm(lease_id, 0.0)

    def elect_new_leader(self) -> None:
        """Elect a new leader: every lease is set to its full TTL plus an election timeout."""
        for lease_id in list(self._leases):
            self._arm(lease_id, self._election_timeout_s)

    def expire_lease(self, lease_id: int) -> None:
        """Revoke a lease although it was renewed in time (the other half of etcd #15247)."""
        self.revoke(lease_id)

    def compact(self, revision: int) -> None:
        """Forget the history up to `revision`; watches that begin there get Compacted."""
        assert revision <= self.revision, f"revision {revision} is in the future"
        self._compacted = max(self._compacted, revision)
        self._history = [entry for entry in self._history if entry[0] > self._compacted]

    def break_watches(self) -> None:
        """End every watch stream, as a restarting member does."""
        for stream in self._streams:
            stream.broken = True
            stream.waker.set()

    # What its clients ask.

    @property
    def answering(self) -> bool:
        """Whether requests are answered."""
        return self._answering

    def receive(self, request: Callable[[], None]) -> None:
        """Run a request now, or at the thaw, or never if the members are dead."""
        if self._answering:
            request()
        elif not self._dead:
            self._backlog.append(request)

    def select(self, prefix: str) -> tuple[KeyValue, ...]:
        """Keys under a prefix in etcd's order, which is that of their bytes."""
        # Characters are in the order of their bytes in UTF-8.
        return tuple(self._keys[key] for key in sorted(key for key in self._keys if _covers(prefix, key)))

    def read(self, key: str) -> tuple[KeyValue, ...]:
        """The key, or an empty tuple."""
        return (self._keys[key],) if key in self._keys else ()

    def read_at(self, key: str, revision: int) -> tuple[KeyValue, ...]:
        """The key at a revision. Raises Compacted if that is gone, which is a little sooner than in etcd."""
        if revision > self.revision:
            return ()
        if revision < self._compacted:
            raise Compacted(self._compacted)
        found = self.read(key)
        if found and found[0].mod_revision <= revision:
            return found
        later = [change for _, changes in self._history for change in changes if change.key == key]
        before = [change for change in later if change.mod_revision <= revision]
        if before:
            return (before[-1],) if isinstance(before[-1], KeyValue) else ()
        first = later[0] if later else None
        made = isinstance(first, KeyValue) and first.create_revision == first.mod_revision
        if first is not None and not made and self._compacted > 0:
            raise Compacted(self._compacted)
        return ()

    def commit(self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op]) -> TxnResult:
        """Run one transaction at once."""
        self._admit(then, otherwise)
        succeeded = all(self._holds(compare) for compare in compares)
        branch = then if succeeded else otherwise
        for op in branch:
            if isinstance(op, Put) and op.lease_id and op.lease_id not in self._leases:
                raise NotFound(f"lease {op.lease_id} is gone")
        revision = self.revision + 1
        changes: list[Change] = []
        reads: list[tuple[KeyValue, ...]] = []
        for op in branch:
            match op:
                case Put():
                    changes.append(self._put(op, revision))
                case Delete(key):
                    changes += self._remove(self.read(key), revision)
                case DeletePrefix(prefix):
                    changes += self._remove(self.select(prefix), revision)
                case Get(key):
                    reads.append(self.read(key))
                case GetPrefix(prefix):
                    reads.append(self.select(prefix))
        self._publish(changes)
        return TxnResult(succeeded, self.revision, tuple(reads))

    def grant(self, ttl_s: int) -> int:
        """A new lease of at least the shortest TTL."""
        if self.full:
            raise CoordinationFull("database space exceeded")
        lease_id, self._next_lease = self._next_lease, self._next_lease + 1
        self._leases[lease_id] = _Lease(max(ttl_s, math.ceil(1.5 * self._election_timeout_s)))
        self._arm(lease_id, 0.0)
        return lease_id

    def keep_alive(self, lease_id: int) -> bool:
        """Renew; False if the lease is gone, unless the lessor is stale."""
        if self.stale_lessor:
            return True
        if lease_id not in self._leases:
            return False
        self._arm(lease_id, 0.0)
        return True

    def revoke(self, lease_id: int) -> None:
        """End a lease; its keys go in one revision."""
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return
        if lease.expiry is not None:
            lease.expiry.cancel()
        entries = [self._keys[key] for key in sorted(lease.keys, key=str.encode)]
        self._publish(self._remove(entries, self.revision + 1))

    def open_stream(self, prefix: str, from_revision: int) -> Stream:
        """Begin a watch; raises Compacted if a part of its history is gone."""
        if from_revision <= self._compacted:
            raise Compacted(self._compacted)
        if from_revision > self.revision + 1:
            raise Compacted(self.revision)
        stream = Stream(prefix, asyncio.Event())
        for _, changes in self._history[bisect_left(self._history, from_revision, key=itemgetter(0)) :]:
            stream.send(changes)
        stream.waker.set()
        self._streams.append(stream)
        return stream

    def close_stream(self, stream: Stream) -> None:
        """The inverse of `open_stream`."""
        self._streams.remove(stream)

    def _admit(self, then: Sequence[Op], otherwise: Sequence[Op]) -> None:
        size = sum(len(op.key.encode()) + len(op.value) for op in (*then, *otherwise) if isinstance(op, Put))
        if size > MAX_REQUEST_BYTES:
            raise CoordinationFull("request is too large")
        # Like etcd, which adds up the puts of both branches without looking at which will run.
        if self.full and size:
            raise CoordinationFull("database space exceeded")

    def _holds(self, compare: Compare) -> bool:
        match compare:
            case Absent(key):
                return key not in self._keys
            case CreatedAt(key, revision):
                return key in self._keys and self._keys[key].create_revision == revision
            case ModifiedAt(key, revision):
                return key in self._keys and self._keys[key].mod_revision == revision

    def _put(self, op: Put, revision: int) -> KeyValue:
        old = self._keys.get(op.key)
        if old is not None and old.lease_id in self._leases:
            self._leases[old.lease_id].keys.discard(op.key)
        if op.lease_id:
            self._leases[op.lease_id].keys.add(op.key)
        entry = KeyValue(op.key, op.value, old.create_revision if old else revision, revision, op.lease_id)
        self._keys[op.key] = entry
        return entry

    def _remove(self, entries: Sequence[KeyValue], revision: int) -> list[Change]:
        for entry in entries:
            del self._keys[entry.key]
            if entry.lease_id in self._leases:
                self._leases[entry.lease_id].keys.discard(entry.key)
        return [KeyDeleted(entry.key, revision) for entry in entries]

    def _publish(self, changes: Sequence[Change]) -> None:
        if changes:
            self.revision += 1
            self._history.append((self.revision, tuple(changes)))
            for stream in self._streams:
                stream.send(changes)

    def _arm(self, lease_id: int, extra_s: float) -> None:
        lease = self._leases[lease_id]
        if lease.expiry is not None:
            lease.expiry.cancel()
        delay = lease.ttl_s + extra_s + self._expiry_lag_s
        lease.expiry = asyncio.get_running_loop().call_later(delay, self.revoke, lease_id)


def _covers(prefix: str, key: str) -> bool:
    return key.startswith(prefix) and (prefix.startswith(BULK) or not key.startswith(BULK))
