"""A job in the form in which `kubectl get tfjob -o json` shows one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Cause, Outcome
from supervisor.contract.job.tfjob.convert import API_VERSION, KIND
from supervisor.contract.job.tfjob.tasks import TYPES
from supervisor.contract.views.jobs import EventView, Explanation, IncidentView, JobView

Plain = dict[str, object]
Moment = Callable[[int], str]

_NO_FAILURES = (Cause.SUBMITTED.value, Cause.OPERATOR.value)
_ENDS = {
    JobPhase.SUCCEEDED: ("Succeeded", "succeeded"),
    JobPhase.FAILED: ("Failed", "job_failed"),
    JobPhase.STOPPED: ("Suspended", "stopped"),
    JobPhase.PARKED: ("Suspended", "parked"),
}
"""Phases at the end -> the condition, and the kind of the event that tells of it."""


def as_tfjob(told: Explanation, events: Iterable[EventView], moment: Moment) -> Plain:
    """A job as an object of Kubernetes, without its spec. `moment` writes a wall-clock time."""
    job, listed = told.job, tuple(event for event in events if event.job == told.job.name)
    status: Plain = {
        "conditions": list(_conditions(told, listed, moment)),
        "replicaStatuses": _replicas(told),
    }
    if job.generation or not job.phase.ended:
        status["startTime"] = moment(job.submitted_wall_ms)
    ended_ms = _ended_ms(job, listed)
    if job.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED) and ended_ms:
        status["completionTime"] = moment(ended_ms)
    metadata = {"name": job.name, "uid": job.uuid, "creationTimestamp": moment(job.submitted_wall_ms)}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": status}


def _conditions(told: Explanation, events: tuple[EventView, ...], moment: Moment) -> Iterator[Plain]:
    job = told.job

    def condition(kind: str, message: str, wall_ms: int, *, holds: bool = True) -> Plain:
        at = moment(wall_ms or job.submitted_wall_ms)
        return {
            "type": kind,
            "status": "True" if holds else "False",
            "reason": f"{KIND}{kind}",
            "message": message,
            "lastUpdateTime": at,
            "lastTransitionTime": at,
        }

    yield condition("Created", f"job {job.name} is recorded", job.submitted_wall_ms)
    runs_ms = _last(events, "flip")
    if job.phase.ended:
        kind, _ = _ENDS[job.phase]
        ended_ms = _ended_ms(job, events)
        if job.generation:
            yield condition("Running", f"job {job.name} does not run any more", ended_ms, holds=False)
        yield condition(kind, job.reason or job.phase.value, ended_ms)
    elif (failure := _open_failure(told)) is not None:
        text = f"{failure.cause}: {failure.task or job.name}: restart {failure.scope}"
        yield condition("Restarting", text, failure.wall_ms)
    elif job.generation and any(task.state == "running" for task in job.tasks):
        yield condition("Running", f"generation {job.generation} runs", runs_ms)


def _open_failure(told: Explanation) -> IncidentView | None:
    """The failure that the job recovers from now."""
    for incident in reversed(told.incidents):
        if incident.outcome is Outcome.OPEN and incident.cause not in _NO_FAILURES:
            return incident
    return None


def _replicas(told: Explanation) -> Plain:
    """By replica type, how many tasks run, have ended well, and have ended the job."""
    names = {name.lower(): name for name in TYPES}
    blamed = {
        incident.task for incident in told.incidents if incident.outcome is Outcome.FAILED and incident.task
    }
    counts: dict[str, dict[str, int]] = {}
    for task in told.job.tasks:
        count = counts.setdefault(names.get(task.role, task.role), {"active": 0, "succeeded": 0, "failed": 0})
        count["active"] += task.state == "running"
        count["succeeded"] += task.state == "exited" and task.detail.startswith("exit code 0")
        count["failed"] += told.job.phase is JobPhase.FAILED and task.task in blamed
    return {name: {key: number for key, number in count.items() if number} for name, count in counts.items()}


def _ended_ms(job: JobView, events: tuple[EventView, ...]) -> int:
    return _last(events, _ENDS[job.phase][1]) if job.phase.ended else 0


def _last(events: tuple[EventView, ...], kind: str) -> int:
    """The time of the newest event of a kind; 0 if none is there any more."""
    return max((event.wall_ms for event in events if event.kind == kind), default=0)
