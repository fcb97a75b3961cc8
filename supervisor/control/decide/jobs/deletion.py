"""Deleting a job: once nothing of it can run any more, etcd forgets it. Pure.

The wish is in the job's intent, beside the wish to stop: an operator's, or the leader's own once the time of
an ended job is over (`limits.delete_after`). The job ends as by a stop. Then the
leader waits until each of its attempts is proven dead, and removes all of its records in one transaction.
That leaves a small record of the deletion (`DeletedJob`): a later job of this name begins above its
generations, and what agents write late is removed by it. The job's logs are deleted from its store by it, too
(`loop.sweep`); the rest of the store is not touched.
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.contract import keys
from supervisor.contract.boundaries import Absent, Delete, DeletePrefix
from supervisor.contract.desired import DeletedJob, JobPhase, LostMark, Placement
from supervisor.contract.errors import Conflict
from supervisor.contract.job.spec import Wanted
from supervisor.contract.observed import AttemptReport
from supervisor.control.decide.facts.claims import may_live
from supervisor.control.decide.facts.cluster_time import ages
from supervisor.control.decide.facts.standing import Standing, not_dead, standing, untold_ms
from supervisor.control.decide.nodes.node_loss import by_marks
from supervisor.control.decide.plan import Action, fitting, put, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned
from supervisor.control.decide.switch import Transition, check_removal, turn

KEPT_MS = 86_400_000
"""The record of a deletion stays so long."""

SEEN_MS = 10_000
"""An ended job stays at least so long: whoever waits for its end, as `wait` does, asks again and again."""


def ask(job: JobState) -> Action:
    """An operator wants the job to be deleted; what is kept of it for inspection ends."""
    return _ask(job, "asked", "a deletion is asked for")


def expire(snap: Snapshot, job: JobState) -> list[Action]:
    """The job succeeded or failed so long ago that it is to be deleted (`limits.delete_after`).

    A stopped job waits for its start, and one of which something is kept for inspection for the end of that.
    """
    after_ms, switch = job.record.value.spec.limits.delete_after_ms, job.switch
    if after_ms is None or switch.value.phase is JobPhase.STOPPED or switch.value.held:
        return []
    # A leader knows of the time before it led by the revision alone.
    if max(snap.now_ms - switch.seen_ms, ages(snap).of(switch.mod_revision)) < max(after_ms, SEEN_MS):
        return []
    return [_ask(job, "expired", f"it is deleted: limits.delete_after, {after_ms / 1000:g} s, is over")]


def _ask(job: JobState, kind: str, text: str) -> Action:
    intent, switch = job.intent, job.switch
    wish = replace(intent.value, wanted=Wanted.STOP, save=False, delete=True)
    held = (turn(switch, Transition.END_HOLD, held=()),) if switch.value.held else ()
    compares = (unchanged(intent), unchanged(switch))
    return Action(kind, job.name, text, compares, (put(intent.key, wish), *held))


def check_kept(snap: Snapshot, name: str) -> None:
    """Raise Conflict for a job that is being deleted, or whose last records are."""
    job = snap.jobs.get(name)
    if job is not None and job.intent.value.delete:
        raise Conflict(f"job {name} is being deleted")
    if any(keys.subject_of(held.key)[0] == name for held in snap.strays):
        raise Conflict(f"job {name} has been deleted, and its last records are being removed; try again")


def due(job: JobState) -> bool:
    """Whether the job has ended, and is to be deleted. Besides, its open incidents are closed."""
    return job.intent.value.delete and job.switch.value.phase.ended


def decide(snap: Snapshot, job: JobState) -> list[Action]:
    """Remove the job, if nothing of it can run any more.

    An attempt on a node that is lost may be frozen: its mark becomes final, so that its agent cannot come
    back with it.
    """
    if waiting_for(snap, job):
        return []
    check_removal(job.switch)
    compares, ops = by_marks(snap, _marks(snap, job))
    switch = job.switch.value
    return [
        Action(
            "job_deleted",
            job.name,
            "the job is deleted; what it has in its store stays there, except its logs",
            (unchanged(job.record), unchanged(job.switch), unchanged(job.intent), *compares),
            (
                *ops,
                *(DeletePrefix(prefix) for prefix in keys.lists_of(job.name)),
                *(Delete(key) for key in keys.records_of(job.name)),
                put(keys.deleted(job.name), _deleted(job)),
            ),
            {"uuid": switch.job_uuid, "generation": str(switch.generation)},
        )
    ]


def _deleted(job: JobState) -> DeletedJob:
    switch, record = job.switch.value, job.record.value
    return DeletedJob(
        job.name, switch.job_uuid, switch.generation, record.owner, record.group, record.store_uri
    )


def waiting_for(snap: Snapshot, job: JobState) -> str:
    """The reason for which the deletion of an ended job waits; empty for none."""
    if job.switch.value.held:
        return "the end of what is kept for inspection"
    ended_ms = snap.now_ms - max(job.switch.seen_ms, snap.etcd_since_ms)
    for attempt, held in job.attempts.items():
        report = held.value
        if _may_run(snap, report):
            return f"{attempt} on {report.node} to be confirmed dead"
        if report.confirmed_dead and not report.drained and ended_ms < snap.timing.commit_deadline_ms:
            return f"{report.node} to deal with the last checkpoint of {attempt}"
    for placement in not_dead(job):
        left_ms = untold_ms(snap, job, placement)
        if left_ms > 0:
            return f"{placement.member} on {placement.node}, of which nothing is known, for {left_ms} ms more"
    return ""


def sweep(snap: Snapshot) -> list[Action]:
    """Remove what is left of deleted jobs: records by node, what came late, and old records of deletions."""
    actions = []
    for name, held in snap.deleted.items():
        if name in snap.jobs or name in snap.aside:
            continue
        left = [Delete(each.key) for each in snap.strays if keys.subject_of(each.key)[0] == name]
        if left:
            gone = (Absent(keys.job_record(name)), unchanged(held))
            actions.append(Action("records_removed", name, "", gone, fitting(left)))
        elif snap.now_ms - held.created_ms > KEPT_MS:
            actions.append(Action("deletion_forgotten", name, "", (unchanged(held),), (Delete(held.key),)))
    return actions


def _may_run(snap: Snapshot, report: AttemptReport) -> bool:
    return may_live(snap, report) and standing(snap, _place(report)) is not Standing.LOST


def _marks(snap: Snapshot, job: JobState) -> list[Versioned[LostMark]]:
    """The marks by which attempts count as dead that nobody has seen die."""
    places = [_place(held.value) for held in job.attempts.values() if may_live(snap, held.value)]
    places += [each for each in not_dead(job) if standing(snap, each) is Standing.LOST]
    found: dict[str, Versioned[LostMark]] = {}
    for place in places:
        mark = snap.mark_of(place.node, place.incarnation)
        if mark is not None:
            found[mark.key] = mark
    return list(found.values())


def _place(report: AttemptReport) -> Placement:
    return Placement(report.role, report.index, report.node, report.incarnation)
