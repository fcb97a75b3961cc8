"""Notices of agents about a job's files on their nodes: an event for each, and a line in `status`. Pure."""

from __future__ import annotations

from collections import Counter

from supervisor.contract.observed import MODEL_PUBLISHED, NOTICES, Notice
from supervisor.control.decide.plan import MAX_FIELD, MAX_TEXT, Action, short, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot

MOST_TOLD = 64
"""Kept events about notices of one node. Those about published models are counted apart: they are no trouble,
and must not keep a trouble from being told.
"""


def notices_of(snap: Snapshot, job: JobState) -> tuple[tuple[str, Notice], ...]:
    """Node and notice of this job as it was submitted last; of nodes that are not silent."""
    return tuple(each for each in _of_name(snap, job) if each[1].job_uuid == job.record.value.uuid)


def _of_name(snap: Snapshot, job: JobState) -> tuple[tuple[str, Notice], ...]:
    return tuple((node, notice) for node, notice in snap.once(_all_notices) if notice.job == job.name)


def _all_notices(snap: Snapshot) -> tuple[tuple[str, Notice], ...]:
    return tuple(
        (node, notice)
        for node, picture in sorted(snap.nodes.items())
        if picture.beat is not None and picture.beat.notices
        if snap.silence_ms(picture) < snap.timing.suspect_ms
        for notice in picture.beat.notices
        if notice.kind in NOTICES
    )


def tell(snap: Snapshot, job: JobState) -> list[Action]:
    """An event for each that has none yet, one at a time.

    An earlier job of this name has its own, too: work that it has left is removed only after its event.
    A node's notices make no more events while `MOST_TOLD` of them are kept, so that they drive no others
    out. `status` shows all that the node tells now.
    """
    found = _of_name(snap, job)
    if not found:
        return []
    told = {
        (event.kind, event.fields.get("node"), event.fields.get("about"))
        for event in (held.value for held in snap.events)
        if event.kind in NOTICES
    }
    by_node = Counter((node, kind == MODEL_PUBLISHED) for kind, node, _ in told)
    for node, notice in found:
        about = short(notice.about, MAX_FIELD)
        room = MOST_TOLD - by_node[node, notice.kind == MODEL_PUBLISHED]
        if (notice.kind, node, about) not in told and room > 0:
            fields = {"node": node, "about": about}
            earlier = notice.job_uuid != job.record.value.uuid
            text = short(f"of an earlier job {job.name}: {notice.text}" if earlier else notice.text, MAX_TEXT)
            return [Action(notice.kind, job.name, text, (unchanged(job.switch),), (), fields)]
    return []
