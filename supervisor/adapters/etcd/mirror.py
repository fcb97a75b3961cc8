"""An up-to-date copy of the keys under a prefix, through broken streams, outages and compaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import NoReturn

from supervisor.adapters.backoff import Backoff, Retries
from supervisor.adapters.etcd.identity import newest, still_holds
from supervisor.contract.boundaries import (
    Clock,
    Coordination,
    KeyDeleted,
    KeyValue,
    Listing,
    Logger,
    WatchBatch,
)
from supervisor.contract.errors import Compacted, TfSupervisorError

FIRST_WAIT_MS = 50
MOST_WAIT_MS = 1000


@dataclass(frozen=True, slots=True)
class MirrorUpdate:
    """The changes since the update before, up to `revision`.

    With `relisted` it is the difference to a fresh list: each key has only its last state, and a KeyDeleted
    has the revision of the list. The first update is always of this kind, even if it is empty; from then on
    the mirror is complete.

    `forked`: etcd's history lacks changes that were delivered before: its data were lost, or a snapshot was
    restored.
    """

    revision: int
    changes: tuple[KeyValue | KeyDeleted, ...]
    relisted: bool
    forked: bool = False


class Mirror:
    """Lists a prefix once, then follows it.

    Args:
        coordination: the etcd of the keys.
        prefix: the prefix of the keys.
        deliver: called with each update, after `entries` holds it; must not block or raise.
        clock: for `last_alive_ms`.
        sink: logs broken watches, and when they go on.
        apart_ms: how much longer than others it waits before it comes back, see `Backoff`.
    """

    def __init__(
        self,
        coordination: Coordination,
        prefix: str,
        deliver: Callable[[MirrorUpdate], None],
        clock: Clock,
        sink: Logger,
        apart_ms: int = 0,
    ) -> None:
        self._coordination = coordination
        self._prefix = prefix
        self._deliver = deliver
        self._clock = clock
        self._retries = Retries(clock, sink)
        self._entries: dict[str, KeyValue] = {}
        self._revision: int | None = None
        self._listed = False
        self._resumes = False
        self._forked = False
        self._last_alive_ms: int | None = None
        self._backoff = Backoff(FIRST_WAIT_MS, MOST_WAIT_MS, apart_ms)

    @property
    def entries(self) -> Mapping[str, KeyValue]:
        """The keys as of `revision`; a live, read-only view."""
        return MappingProxyType(self._entries)

    @property
    def revision(self) -> int | None:
        """The revision of the last change in the mirror; None before the first list, and after `doubt`."""
        return self._revision

    @property
    def last_alive_ms(self) -> int | None:
        """When etcd last gave a sign of life; None before the first. Silence for D is etcd lost (rule 3)."""
        return self._last_alive_ms

    def doubt(self) -> None:
        """Mark the mirror as possibly of another etcd than the one that answers now.

        It is complete again after a list.

        A watch goes on from a revision. An etcd that was begun anew counts revisions from the start, and once
        it has passed that revision, a watch cannot tell the two apart.
        """
        self._listed, self._forked, self._revision = False, False, None

    async def run(self) -> NoReturn:
        """Follow the prefix until cancelled. Only errors that no retry can mend are raised."""
        while True:
            goes_on = self._listed
            try:
                if self._listed and self._resumes:
                    await self._look_back()
                if not self._listed:
                    await self._relist()
                self._resumes = True
                await self._follow()
            except TfSupervisorError as error:
                if not error.retryable:
                    raise
                if isinstance(error, Compacted):
                    self._listed = False
                self._retries.failed("a watch of etcd broke; starting another", error, prefix=self._prefix)
                # A prefix in which little is written is often behind, and this mirror has waited already.
                if not (goes_on and not self._listed and isinstance(error, Compacted)):
                    await self._backoff.wait()

    async def _look_back(self) -> None:
        """Check, before a watch is resumed, that etcd still has the newest write: it may be another etcd by
        now.
        """
        holds = await still_holds(self._coordination, newest(self._entries.values()))
        # Who has come to doubt it meanwhile knows already.
        if self._listed and not holds:
            self._listed, self._forked = False, True

    async def _relist(self) -> None:
        sent_ms = self._clock.now_ms()
        listing = await self._coordination.list(self._prefix)
        self._last_alive_ms = sent_ms
        forked = self._forked or listing.revision < (self._revision or 0)
        changes = difference(self._entries, listing)
        self._entries = {entry.key: entry for entry in listing.entries}
        self._revision = listing.revision
        self._listed, self._forked = True, False
        self._deliver(MirrorUpdate(listing.revision, changes, relisted=True, forked=forked))

    async def _follow(self) -> None:
        assert self._revision is not None
        async with aclosing(self._coordination.watch(self._prefix, self._revision + 1)) as batches:
            async for batch in batches:
                if not self._listed:
                    return
                self._last_alive_ms = self._clock.now_ms()
                self._backoff.reset()
                self._retries.over("etcd is watched again", prefix=self._prefix)
                self._take(batch)

    def _take(self, batch: WatchBatch) -> None:
        if not batch.changes:
            return
        assert self._revision is not None
        first = min(change.mod_revision for change in batch.changes)
        assert first > self._revision, f"watch went back to {first}, the mirror is at {self._revision}"
        for change in batch.changes:
            if isinstance(change, KeyValue):
                self._entries[change.key] = change
            else:
                self._entries.pop(change.key, None)
        self._revision = batch.revision
        self._deliver(MirrorUpdate(batch.revision, batch.changes, relisted=False))


def difference(old: Mapping[str, KeyValue], listing: Listing) -> tuple[KeyValue | KeyDeleted, ...]:
    """The changes that lead from `old` to `listing`: deletions first, then writes in order of revision."""
    present = {entry.key for entry in listing.entries}
    deleted = [KeyDeleted(key, listing.revision) for key in sorted(old) if key not in present]
    written = [entry for entry in listing.entries if old.get(entry.key) != entry]
    return (*deleted, *sorted(written, key=lambda entry: entry.mod_revision))
