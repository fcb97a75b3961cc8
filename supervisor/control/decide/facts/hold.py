"""Why the leader restarts and moves nothing: a pause of the cluster or of a job, or the brake. Pure.

The brake counts nodes that have a lost mark and no agent that is registered since. A node that has a cordon
is in somebody's hands, and does not count, nor does one that was dismissed. Nor does one that has said itself
that it ended all that ran there: a switch that died would have kept it from that. Two nodes may fail by
chance, and a small cluster must not wait for them: the brake holds for three lost nodes at least.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from supervisor.contract import keys
from supervisor.contract.desired import LostMark
from supervisor.contract.job.pause import Pause
from supervisor.control.decide.facts.cluster_time import ages
from supervisor.control.decide.plan import Action, unchanged, unchanged_or_absent
from supervisor.control.decide.snapshot import JobState, NodeState, Snapshot, Versioned

LEAST_LOST = 3
MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Losses:
    """The lost nodes that the brake counts.

    Attributes:
        nodes: their names.
        of: how many nodes there are, with them.
        since: the etcd revision of the oldest of their lost marks.
        too_many: they are so many that the brake holds.
    """

    nodes: tuple[str, ...] = ()
    of: int = 0
    since: int = 0
    too_many: bool = False

    @property
    def reason(self) -> str:
        """What is lost, for people."""
        more = f" and {len(self.nodes) - MOST_NAMED} more" if len(self.nodes) > MOST_NAMED else ""
        rest = "" if self.too_many else "; they are waited for, as others have come back"
        lost = f"{', '.join(self.nodes[:MOST_NAMED])}{more}{rest}"
        return f"{len(self.nodes)} of {self.of} nodes are lost: {lost}"


NONE_LOST = Losses()


def held(snap: Snapshot, job: JobState) -> str:
    """Why nothing of a job is restarted or moved now; empty where it may be."""
    return held_cluster(snap) or own(job)


def own(job: JobState) -> str:
    """The pause of a job itself, which stays when the job ends; empty for none."""
    paused = job.intent.value.paused
    return told(paused) if paused is not None else ""


def held_cluster(snap: Snapshot) -> str:
    """The same, for all jobs."""
    if snap.pause is not None and snap.pause.value.in_force:
        return told(snap.pause.value)
    # The record of the brake is written in the same look at the earliest.
    found = snap.once(losses)
    return f"the brake holds: {found.reason}" if found.too_many else ""


def told(pause: Pause) -> str:
    """A pause in one sentence, for people."""
    if pause.brake:
        return f"the brake holds: {pause.reason}"
    reason = f": {pause.reason}" if pause.reason else ""
    return f"paused by {pause.by or 'an operator'}{reason}"


def since_wall_ms(snap: Snapshot, job: JobState | None = None) -> int:
    """When the pause began that holds the job, or all jobs, for people; 0 for none."""
    if snap.pause is not None and snap.pause.value.in_force:
        return snap.pause.value.wall_ms
    paused = job.intent.value.paused if job is not None else None
    return paused.wall_ms if paused is not None else 0


def unless_paused(snap: Snapshot, job: JobState, action: Action) -> Action:
    """The same action, which has no effect if a pause has begun since this snapshot."""
    compares = (unchanged(job.intent), unchanged_or_absent(keys.PAUSE, snap.pause))
    added = (each for each in compares if each not in action.compares)
    return replace(action, compares=(*action.compares, *added))


def losses(snap: Snapshot) -> Losses:
    """The losses that count: those since the brake holds, or else those within its window.

    The age of a mark is the time since this leader saw it, or more, by the time that leaders have counted. A
    leader that has just started may take an older one for a new one, and so hold too early.
    """
    pause = snap.pause.value if snap.pause is not None else Pause(in_force=False)
    marked = [state for state in snap.nodes.values() if state.marks]
    if len(marked) < LEAST_LOST and not pause.brake:
        return NONE_LOST
    found = dict(_lost(marked))
    if pause.in_force and pause.brake:
        counted = {node: mark for node, mark in found.items() if mark.create_revision >= pause.since}
    else:
        known = ages(snap)
        counted = {
            node: mark
            for node, mark in found.items()
            if mark.create_revision > pause.passed
            and max(snap.now_ms - mark.created_ms, known.of(mark.create_revision)) < snap.brake.window_ms
        }
    if not counted:
        return NONE_LOST
    there = sum(
        state.incarnation is not None
        and not state.incarnation.value.fenced
        and state.cordon is None
        and name not in found
        for name, state in snap.nodes.items()
    )
    of = there + len(counted)
    since = min(mark.create_revision for mark in counted.values())
    too_many = len(counted) >= LEAST_LOST and len(counted) > snap.brake.lost_fraction * of
    return Losses(tuple(sorted(counted)), of, since, too_many)


def _lost(marked: list[NodeState]) -> Iterator[tuple[str, Versioned[LostMark]]]:
    """Nodes of which no agent is registered but a marked one, with the mark."""
    for state in marked:
        holder = state.incarnation
        if holder is not None:
            mark = state.marks.get(holder.value.incarnation)
        else:
            mark = max(state.marks.values(), key=lambda each: each.create_revision)
        if mark is None or mark.value.fenced or mark.value.dismissed:
            continue
        if state.cordon is None:
            yield state.node, mark
