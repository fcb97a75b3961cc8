"""Nodes whose machines a fence device is to switch off, so that their tasks need not be waited for (rule 3).

A lost mark comes first. An agent that is alive and reaches etcd appeals against it, long before its machine
is switched off.
"""

from __future__ import annotations

from supervisor.contract import keys
from supervisor.control.decide.facts import promises
from supervisor.control.decide.facts.standing import appeal_of, not_dead
from supervisor.control.decide.plan import PowerOff, unchanged_or_absent
from supervisor.control.decide.snapshot import NodeState, Snapshot

DISPROVED = "power_off_disproved"
"""Kind of the event that tells of a node that was alive after its device had said that it is off."""


def decide(snap: Snapshot) -> list[PowerOff]:
    """One for each mark of a node that tasks may still run on. A leader repeats it until the mark changes."""
    waited_for = {
        (placement.node, placement.incarnation)
        for job in snap.jobs.values()
        if not job.switch.value.phase.ended
        for placement in not_dead(job)
    }
    return [
        off
        for picture in snap.nodes.values()
        if picture.node not in snap.nodes_aside and not promises.held_ms(snap, picture.node)
        for off in _of_node(snap, picture)
        if (picture.node, off.mark.value.incarnation) in waited_for
    ]


def _of_node(snap: Snapshot, picture: NodeState) -> list[PowerOff]:
    holder = picture.incarnation
    labels = holder.value.resources.labels if holder is not None else {}
    return [
        PowerOff(
            mark,
            unchanged_or_absent(keys.appeal(picture.node, life), picture.appeals.get(life)),
            labels,
            snap.now_ms - mark.created_ms,
        )
        for life, mark in picture.marks.items()
        if not (mark.value.final or mark.value.off or appeal_of(picture, mark))
        # Another life holds the key: the machine is in use again, and its agent has ended what was left.
        and (holder is None or holder.value.incarnation == life)
    ]


def disproved_ms(snap: Snapshot, node: str) -> int:
    """When this node last turned out to be alive after its device had switched it off; 0: never.

    Wall clock, in milliseconds since the epoch, from the events that are kept.
    """
    return max(
        (
            event.value.wall_ms
            for event in snap.events
            if event.value.kind == DISPROVED and event.value.fields.get("node") == node
        ),
        default=0,
    )
