"""The ages of records in etcd, by no wall clock: leaders count the time, one after the other.

Every few minutes the leader notes which revision etcd had reached at which of its times, and more often while
a lost mark may count for the brake; the next leader goes on from there. A record whose revision is in such a
note is at least as old as the note. All errors make ages too small: the time between two notes, that before a
leader's end, and the time without a leader.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from supervisor.contract import keys
from supervisor.contract.desired import ClusterTime, Tick
from supervisor.control.decide.plan import Action, put, unchanged_or_absent
from supervisor.control.decide.snapshot import Snapshot

TICK_MS, MARKED_TICK_MS = 600_000, 60_000
PRECISION = 24
"""A note goes when those around it are no further apart than this part of their age."""


@dataclass(frozen=True, slots=True)
class Ages:
    """The present time, `now_ms` on the cluster's own count, and what is known of earlier revisions."""

    now_ms: int
    ticks: Sequence[Tick] = ()

    def of(self, revision: int) -> int:
        """At least how long ago etcd reached that revision, in milliseconds; 0 for one just made."""
        found = bisect_left(self.ticks, revision, key=lambda tick: tick.revision)
        return self.now_ms - self.ticks[found].at_ms if found < len(self.ticks) else 0

    def since(self, at_ms: int) -> int:
        """How long ago that time was, on the same count."""
        return self.now_ms - at_ms

    def noted(self, revision: int) -> ClusterTime:
        """With a note that etcd has reached this revision now, and without those that are not needed."""
        return ClusterTime(_thinned((*self.ticks, Tick(revision, self.now_ms)), self.now_ms))


def ages(snap: Snapshot) -> Ages:
    """The cluster's time at this snapshot, and the notes that date revisions."""
    held = snap.time
    if held is None:
        return Ages(0)
    return Ages(held.value.ticks[-1].at_ms + snap.now_ms - held.seen_ms, held.value.ticks)


def tick(snap: Snapshot) -> list[Action]:
    """Note the time, as long as there is a job."""
    if not snap.jobs:
        return []
    noted, since_ms = snap.time, (job.record.created_ms for job in snap.jobs.values())
    period_ms = MARKED_TICK_MS if _is_a_mark_new(snap) else TICK_MS
    if snap.now_ms - (noted.seen_ms if noted is not None else min(since_ms)) < period_ms:
        return []
    compares = (unchanged_or_absent(keys.TIME, snap.time),)
    return [Action("time", "", "", compares, (put(keys.TIME, ages(snap).noted(snap.revision)),))]


def _is_a_mark_new(snap: Snapshot) -> bool:
    """Whether a lost mark is younger than the brake's window, as far as a new leader could tell."""
    ticks = snap.time.value.ticks if snap.time is not None else ()
    known = Ages(ticks[-1].at_ms if ticks else 0, ticks)
    marks = (mark for state in snap.nodes.values() for mark in state.marks.values())
    return any(known.of(mark.create_revision) < snap.brake.window_ms for mark in marks)


def _thinned(ticks: tuple[Tick, ...], now_ms: int) -> tuple[Tick, ...]:
    """The first and last, and of the others as many as their ages need: some 260 for ten years."""
    kept = [ticks[0]]
    for one, following in pairwise(ticks[1:]):
        if following.at_ms - kept[-1].at_ms > (now_ms - following.at_ms) // PRECISION:
            kept.append(one)
    return (*kept, ticks[-1]) if len(ticks) > 1 else ticks
