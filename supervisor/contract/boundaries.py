"""The interfaces behind which all I/O lives. Each has a real implementation and an in-memory one that
pass the same contract suite; the simulator runs the daemons over the in-memory ones.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

BULK = "bulk/"
"""Prefix of large keys. Only a prefix that begins with it covers them; the empty prefix does not.

A mirror of the whole cluster neither receives nor keeps them. A transaction may mix them with other keys.
"""


class Clock(Protocol):
    """Time. Intervals use `now_ms` alone; `wall_ms` is for people."""

    def now_ms(self) -> int:
        """Milliseconds on CLOCK_BOOTTIME (counts suspension); comparable on this machine only."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""


class Logger(Protocol):
    """The log of a daemon. A structlog logger implements it."""

    def debug(self, event: str, **fields: object) -> object:
        """Log a detail for debugging."""

    def info(self, event: str, **fields: object) -> object:
        """Log an event that an operator may want to read later."""

    def warning(self, event: str, **fields: object) -> object:
        """Log an event that an operator should know."""

    def error(self, event: str, **fields: object) -> object:
        """Log an event that an operator must act on."""


class PowerSwitch(Protocol):
    """The fence devices, which switch machines of nodes off."""

    after_ms: int
    """A node is switched off when its lost mark is so old."""

    def device(self, node: str, labels: Mapping[str, str]) -> str:
        """The device of a node, for people; empty for none."""

    async def switch_off(self, node: str, labels: Mapping[str, str]) -> None:
        """Returns when the device has confirmed that the machine is off. Raises Refused with the reason if it
        has not.
        """


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as etcd stores it. Revisions count the whole store's writes."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """A key's last write when it was read. `digest` is that of its value."""

    key: str
    revision: int
    digest: str


@dataclass(frozen=True, slots=True)
class Absent:
    """Compare: the key does not exist."""

    key: str


@dataclass(frozen=True, slots=True)
class CreatedAt:
    """Compare: the key exists and is the very one created at this revision (rewrites allowed)."""

    key: str
    create_revision: int


@dataclass(frozen=True, slots=True)
class ModifiedAt:
    """Compare: the key exists and was last written at this revision."""

    key: str
    mod_revision: int


Compare = Absent | CreatedAt | ModifiedAt


def as_read(key: str, found: KeyValue | None) -> Compare:
    """Compare: the key is unchanged since it was read; None: it was absent."""
    return Absent(key) if found is None else ModifiedAt(key, found.mod_revision)


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key, under a lease if `lease_id` is not 0."""

    key: str
    value: bytes
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key; not an error if it is absent."""

    key: str


@dataclass(frozen=True, slots=True)
class DeletePrefix:
    """Remove every key that begins with `prefix`."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Get:
    """Read a key within the transaction."""

    key: str


@dataclass(frozen=True, slots=True)
class GetPrefix:
    """Read every key that begins with `prefix` within the transaction."""

    prefix: str


Op = Put | Delete | DeletePrefix | Get | GetPrefix


@dataclass(frozen=True, slots=True)
class TxnResult:
    """The result of a transaction.

    `reads` has one tuple for each Get and GetPrefix of the branch that ran, in order.
    """

    succeeded: bool
    revision: int
    reads: tuple[tuple[KeyValue, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """All keys under a prefix at one revision, sorted by key."""

    revision: int
    entries: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class KeyDeleted:
    """A key was deleted, or its lease ran out, at `mod_revision`."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """The changes of one or more whole revisions up to `revision`; with no changes, a sign of life."""

    revision: int
    changes: tuple[KeyValue | KeyDeleted, ...] = ()


class Coordination(Protocol):
    """etcd, as this project uses it. Every call has a deadline; reads are linearizable.

    Raises, from any call: CoordinationUnreachable (outcome unknown), CoordinationFull, Refused.
    """

    async def get(self, key: str) -> KeyValue | None:
        """The key, or None."""

    async def get_at(self, key: str, revision: int) -> KeyValue | None:
        """The key at `revision`; None if it was absent, or if the store has not reached that revision.

        Raises Compacted if that revision is gone.
        """

    async def list(self, prefix: str) -> Listing:
        """Every key under `prefix` at one revision.

        Raises Compacted if that revision is forgotten while the list is read; the caller lists again.
        """

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        """Run `then` if all compares hold, else `otherwise`, atomically.

        A put under a lease that is gone raises NotFound and changes nothing.
        """

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Changes under `prefix` from `from_revision` on, gapless and in order.

        Yields an empty batch as a sign of life at least every second while the server answers. Raises
        Compacted when `from_revision` is gone (or ahead of the store, whose data were lost), and
        CoordinationUnreachable when the stream breaks or is silent; the caller then lists and watches
        again (`adapters.etcd.mirror` does).
        """

    async def grant(self, ttl_s: int) -> int:
        """A new lease; etcd may round the TTL up."""

    async def keep_alive(self, lease_id: int) -> bool:
        """Renew once. False when the lease is gone. True proves nothing (rule 3)."""

    async def revoke(self, lease_id: int) -> None:
        """End a lease and delete its keys; not an error if it is gone."""

    async def close(self) -> None:
        """Release connections; pending calls fail."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file in a checkpoint store, by path relative to the store's root.

    `crc32c`: of the bytes that were sent or received, in the result of a copy; None in a listing.
    """

    path: str
    size: int
    crc32c: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class StoredDirectory:
    """The direct children of a directory in a checkpoint store, sorted by name."""

    files: tuple[StoredFile, ...] = field(default=())
    directories: tuple[str, ...] = field(default=())


Moved = Callable[[int], None]
"""Called with the number of bytes that have been moved since the last call, in any thread: a sign of
progress."""


def unwatched(_more_bytes: int) -> None:
    """The `Moved` of work whose progress is not watched."""


class CheckpointStore(Protocol):
    """A job's directory in HDFS or on a local disk; paths are relative, '/'-separated, never leave the root.

    Raises, from any call: StoreUnreachable (outcome unknown), Refused (permission, quota), UserError (path).
    """

    async def prepare(self) -> None:
        """Make the root if it is absent, and prove that it can be written.

        Call it only while no checkpoint is known there (submit, first start). Other calls raise
        StoreUnreachable for a root that was not prepared, so that a missing mount does not look like missing
        checkpoints.
        """

    async def upload(self, source: str, path: str, moved: Moved = unwatched) -> StoredFile:
        """Copy the local file `source` to the new file `path`; durable when this returns."""

    async def download(self, path: str, target: str, moved: Moved = unwatched) -> StoredFile:
        """Copy `path` to the new local file `target`, not yet durable; returns it with its crc32c.

        Raises NotFound.
        """

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Create the new file `path`; durable when this returns. Raises Conflict if it exists."""

    async def read_bytes(self, path: str, limit: int) -> bytes:
        """The whole of a small file. Raises NotFound; UserError when it is larger than `limit`."""

    async def crc32c(self, path: str, moved: Moved = unwatched) -> int:
        """Read the whole file back and return its crc32c. Raises NotFound."""

    async def list(self, path: str) -> StoredDirectory:
        """Children of a directory; empty when it does not exist."""

    async def rename(self, source: str, target: str) -> None:
        """Move a directory atomically. Raises Conflict if `target` exists, NotFound if `source` does not."""

    async def delete_tree(self, path: str) -> None:
        """Remove a directory and all below it; not an error if it is absent."""

    async def delete_file(self, path: str) -> None:
        """Remove a file; not an error if it is absent. Raises UserError for a directory."""
