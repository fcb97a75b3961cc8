"""The standing of the nodes that tasks were placed on: alive, suspected or lost (rule 3). Pure.

A node is lost for good once D has passed on this leader's clock since it saw the node's lost mark, or its
machine is known to be off, or it has fenced all that ran there. No appeal may be there, and no promise of
rule 11 in force.
"""

from __future__ import annotations

from enum import Enum

from supervisor.contract.desired import LostMark, Placement, Plan
from supervisor.contract.observed import Appeal
from supervisor.control.decide.facts import promises
from supervisor.control.decide.snapshot import JobState, NodeState, Snapshot, Versioned

ENDED_AFTER = 2
"""D's after which an agent that has told nothing of an ended job's task has begun none."""


class Standing(Enum):
    """The standing of the agent that a task was placed on."""

    ALIVE = "alive"
    SUSPECTED = "suspected"
    LOST = "lost"


def standing(snap: Snapshot, placement: Placement) -> Standing:
    """Whether the placement's agent is alive, suspected, or lost: D has passed since its mark was seen, or a
    fence device, or the node itself, has confirmed that nothing runs there.

    One that etcd does not answer is suspected before it is marked: it is about to end its tasks and cannot
    report that, so that what ends elsewhere meanwhile may have followed from it.
    What this supervisor has promised (rule 11) is over by then too.
    """
    picture = snap.nodes.get(placement.node)
    if picture is None:
        return Standing.SUSPECTED
    mark = picture.mark_of(placement.incarnation)
    if mark is None:
        acts = picture.acts_for(placement.incarnation)
        return Standing.ALIVE if acts and not snap.unread_ms(picture) else Standing.SUSPECTED
    if appeal_of(picture, mark) is not None:
        return Standing.SUSPECTED
    lost = snap.now_ms >= lost_from_ms(snap, picture, mark)
    return Standing.LOST if lost and not promises.held_ms(snap, placement.node) else Standing.SUSPECTED


def lost_since_ms(snap: Snapshot, placement: Placement) -> int:
    """When a lost placement's wait was over, on this leader's clock; 0 for one that is not marked."""
    picture = snap.nodes.get(placement.node)
    mark = picture.mark_of(placement.incarnation) if picture is not None else None
    return lost_from_ms(snap, picture, mark) if picture is not None and mark is not None else 0


def lost_from_ms(snap: Snapshot, picture: NodeState, mark: Versioned[LostMark]) -> int:
    """When the wait that a mark begins is over, on this leader's clock."""
    waited_ms = mark.created_ms + wait_ms(snap, picture)
    known_ms = [mark.seen_ms] if mark.value.off else []
    if (holder := picture.fenced(mark.value.incarnation)) is not None:
        known_ms.append(max(mark.created_ms, holder.seen_ms))
    return min([waited_ms, *known_ms])


def suspected_placements(snap: Snapshot, job: JobState) -> tuple[Placement, ...]:
    """Placements in force that no flip may replace yet: suspected for less than D, and not reported dead."""
    return tuple(
        placement
        for placement in not_dead(job)
        if standing(snap, placement) is Standing.SUSPECTED or promises.held_ms(snap, placement.node)
    )


def not_dead(job: JobState) -> tuple[Placement, ...]:
    """Placements in force whose attempts are not reported to be confirmed dead."""
    plan = job.plan_in_force
    if plan is None:
        return ()
    return tuple(each for each in plan.value.placements if not _reported_dead(job, each, plan.value))


def untold_ms(snap: Snapshot, job: JobState, placement: Placement) -> int:
    """Milliseconds for which an unreported attempt in force may still begin or run.

    Its agent may have begun it just before it saw that the job has ended.
    """
    plan = job.plan_in_force
    if plan is None or job.report(placement, plan.value) or standing(snap, placement) is Standing.LOST:
        return 0
    picture = snap.nodes.get(placement.node)
    if (
        picture is not None
        and picture.incarnation is not None
        and not picture.acts_for(placement.incarnation)
    ):
        return 0  # the agent registered now has killed all that was left
    ended_ms = snap.now_ms - max(job.switch.seen_ms, snap.etcd_since_ms)
    return max(0, ENDED_AFTER * snap.timing.d_ms - ended_ms, promises.held_ms(snap, placement.node))


def _reported_dead(job: JobState, placement: Placement, plan: Plan) -> bool:
    report = job.report(placement, plan)
    return report is not None and report.value.confirmed_dead


def wait_ms(snap: Snapshot, picture: NodeState) -> int:
    """The larger of the cluster's D and the one that the incarnation runs under (rule 11)."""
    own = picture.incarnation.value.d_ms if picture.incarnation is not None else 0
    return max(snap.timing.d_ms, own)


def appeal_of(picture: NodeState, mark: Versioned[LostMark]) -> Versioned[Appeal] | None:
    """The one to which this mark gives way."""
    appeal = picture.appeals.get(mark.value.incarnation)
    if appeal is None or mark.value.final or appeal.mod_revision < mark.create_revision:
        return None
    return appeal
