"""Nodes whose machines a fence device is to switch off, so that their tasks need not be waited for (rule 3).

A lost mark comes first. An agent that is alive and reaches etcd appeals against it, before its machine is
switched off. A node that has a cordon is in somebody's hands: its machine is left alone. So is that of a job
whose restarts are held, as nothing is to be replaced.
"""

from __future__ import annotations

from supervisor.contract import keys
from supervisor.control.decide.facts import hold, promises
from supervisor.control.decide.facts.standing import appeal_of, not_dead, wait_ms
from supervisor.control.decide.plan import PowerOff, unchanged, unchanged_or_absent
from supervisor.control.decide.snapshot import NodeState, Snapshot

DISPROVED = "power_off_disproved"
"""Kind of the event that tells of a node that was alive after its device had said that it is off."""


def decide(snap: Snapshot, picture: NodeState) -> list[PowerOff]:
    """One for each mark of a node that tasks may still run on. A leader repeats it until the mark changes."""
    if picture.node in snap.nodes_aside or picture.cordon is not None or promises.held_ms(snap, picture.node):
        return []
    offs = _of_node(snap, picture)
    waited_for = {
        mark.key
        for job in (snap.jobs.values() if offs else ())
        if not job.switch.value.phase.ended and not hold.held(snap, job)
        for placement in not_dead(job)
        if placement.node == picture.node and (mark := picture.mark_of(placement.incarnation)) is not None
    }
    return [off for off in offs if off.mark.key in waited_for]


def _of_node(snap: Snapshot, picture: NodeState) -> list[PowerOff]:
    holder, wait = picture.incarnation, wait_ms(snap, picture)
    labels = holder.value.resources.labels if holder is not None else {}
    found = []
    for life, mark in picture.marks.items():
        # Another life holds the key: the machine is in use again, and its agent has ended what was left.
        taken_over = holder is not None and holder.value.incarnation != life
        if taken_over or mark.value.final or mark.value.off or appeal_of(picture, mark) is not None:
            continue
        if picture.fenced(life) is not None:
            continue
        unappealed = unchanged_or_absent(keys.appeal(picture.node, life), picture.appeals.get(life))
        counts = (unchanged(mark), unappealed)
        begins = (*counts, unchanged_or_absent(keys.node(picture.node), holder))
        suspected_ms = snap.now_ms - mark.created_ms
        found.append(PowerOff(mark, begins, counts, labels, suspected_ms, wait - suspected_ms))
    return found
