"""The one assessment of a job: made once in a snapshot, and read by `reconcile`, by views and for beats."""

from __future__ import annotations

from supervisor.contract.desired import JobPhase
from supervisor.control.decide.assess import leaving, progress, sizing
from supervisor.control.decide.assess.assessment import Assessment, Liveness
from supervisor.control.decide.assess.completion import judge_completion
from supervisor.control.decide.assess.failures import find_need
from supervisor.control.decide.assess.hanging import liveness_of
from supervisor.control.decide.assess.members import Member, members
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.facts import hold
from supervisor.control.decide.snapshot import JobState, Snapshot


def assess(snap: Snapshot, job: JobState) -> Assessment:
    """Assess a job.

    The same answer for as long as these are the same: the job's own records, the nodes with their last beats,
    GPU quarantines, events that tell of GPU faults, the promises and durations of this supervisor, and its
    clocks, the pause of the cluster. The records of other jobs do not count. Of a node that the job is not
    placed on it counts only whether it is usable, and whether it is lost.
    """
    phase, plan = job.switch.value.phase, job.plan_in_force
    if phase is JobPhase.WAITING or (phase is JobPhase.RUNNING and plan is None):
        need = progress.wall_time(snap, job) or find_need(snap, job, ())
        return Assessment(need=need, held=hold.held(snap, job))
    if phase is not JobPhase.RUNNING or plan is None:
        return Assessment()
    found = members(snap, job, plan.value)
    left = sizing.leaving(snap, job, found)
    there = tuple(member for member in found if member not in left)
    liveness = liveness_of(snap, job, there)
    return Assessment(
        members=there,
        leaving=left,
        liveness=liveness,
        completion=judge_completion(snap, job, plan.value),
        need=_need(snap, job, there, liveness),
        held=hold.held(snap, job),
    )


def _need(snap: Snapshot, job: JobState, there: tuple[Member, ...], liveness: Liveness) -> Need | None:
    """The first that there is: what comes later waits."""
    return (
        progress.wall_time(snap, job)
        or find_need(snap, job, there)
        or progress.find(snap, job, there, liveness)
        or leaving.gpu_need(snap, job, there)
        or leaving.drain_need(snap, job, there)
    )


class Assessments:
    """The assessments of the jobs of one snapshot, each made when it is first asked for.

    They are kept beside the snapshot by whoever reads it more than once.
    """

    def __init__(self, snap: Snapshot) -> None:
        self.snap = snap
        self._made: dict[str, Assessment] = {}

    def of(self, job: JobState, snap: Snapshot | None = None) -> Assessment:
        """The assessment of a job of the snapshot; `snap` is the same one, whose reads are noted."""
        found = self._made.get(job.name)
        if found is None:
            found = self._made[job.name] = assess(snap or self.snap, job)
        return found

    def suspects(self, job: JobState) -> bool:
        """Whether the job was assessed, and has a task that may hang."""
        found = self._made.get(job.name)
        return found is not None and bool(found.liveness.judgement.suspected)
