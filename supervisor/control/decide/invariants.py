"""The invariants of every snapshot of etcd, checked before each decision, in production too.

A violation in one job parks that job. A violation among all jobs ends the supervisor.
"""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.contract.checkpoint import CommitState
from supervisor.contract.errors import InvariantBroken
from supervisor.contract.observed import AttemptReport, AttemptState
from supervisor.control.decide.facts.claims import by_gpu, planned
from supervisor.control.decide.set_aside import Claim
from supervisor.control.decide.snapshot import JobState, Snapshot


def check(snap: Snapshot) -> None:
    """Raise InvariantBroken that names what is broken of all jobs together."""
    if broken := list(_gpus(snap)):
        raise InvariantBroken("; ".join(broken))


def check_job(snap: Snapshot, job: JobState) -> None:
    """Raise InvariantBroken that names every broken invariant of one job."""
    if broken := [*job.once(_of_its_records), *_attempts(snap, job)]:
        raise InvariantBroken("; ".join(broken))


def _gpus(snap: Snapshot) -> Iterator[str]:
    """No GPU is given to more tasks than all of them agreed to, whatever the job and the generation.

    Of each job the plan counts that asks for more: its next generation takes over what its present one has,
    also for another of its members.
    """
    found: dict[str, list[Claim]] = {}
    for job in snap.jobs.values():
        most: dict[str, list[Claim]] = {}
        for plan in planned(job):
            for uuid, claims in by_gpu(plan).items():
                most[uuid] = max(most.get(uuid, []), claims, key=len)
        for uuid, claims in most.items():
            found.setdefault(uuid, []).extend(claims)
    for uuid, claims in found.items():
        jobs = {claim.job for claim in claims}
        if len(jobs) > 1 and len(claims) > min(claim.resources.gpu_share for claim in claims):
            names = ", ".join(f"{claim.job}/{claim.member} on {claim.node}" for claim in claims)
            yield f"GPU {uuid} is given to {names} (rule 5)"


def _of_its_records(job: JobState) -> tuple[str, ...]:
    return (*_generations(job), *_checkpoints(job))


def _generations(job: JobState) -> Iterator[str]:
    switch = job.switch.value
    if switch.job_uuid != job.record.value.uuid:
        yield f"{job.name}: switch and record have different UUIDs"
    if switch.plan_id and switch.generation <= job.record.value.generation_floor:
        yield f"{job.name}: generation {switch.generation} is not above its floor (rule 12)"
    if switch.plan_id and not switch.phase.ended and job.plan_in_force is None:
        yield f"{job.name}: the plan in force, {switch.plan_id}, is gone"
    for held in job.assignments.values():
        if held.value.generation == switch.generation and held.value.plan_id != switch.plan_id:
            continue
        plan = job.plans.get(held.value.plan_id)
        if plan is not None and held.value.generation != plan.value.generation:
            yield f"{job.name}: {held.key} is of another generation than its plan"


def _checkpoints(job: JobState) -> Iterator[str]:
    switch = job.switch.value
    for ref, held in job.commits.items():
        if held.value.job_uuid == switch.job_uuid and ref.generation > switch.generation:
            yield f"{job.name}: commit {ref} is of a generation that is not in force yet (rule 7)"
    named = [switch.base] if not switch.phase.ended else []
    if switch.closing is not None:
        named.append(switch.closing.base)
    for base in named:
        record = job.commits.get(base) if base is not None else None
        if record is not None and record.value.state is CommitState.COLLECTING:
            yield f"{job.name}: base {base} is being collected (rule 7)"


def _attempts(snap: Snapshot, job: JobState) -> Iterator[str]:
    """Inside a generation one attempt of a task is alive at most (rule 6).

    What a task that has moved left on a node that is lost for good is never reported dead.
    """
    running: dict[tuple[str, int], int] = {}
    for attempt, held in job.attempts.items():
        if held.value.state is not AttemptState.RUNNING or _left_behind(snap, held.value):
            continue
        key = (attempt.task.member, attempt.generation)
        if key in running:
            yield f"{job.name}: {attempt} and attempt {running[key]} are both reported as running (rule 6)"
        running[key] = attempt.number


def _left_behind(snap: Snapshot, report: AttemptReport) -> bool:
    """Whether it was reported by an incarnation that is over."""
    picture = snap.nodes.get(report.node)
    if picture is None or not picture.acts_for(report.incarnation):
        return True
    mark = picture.mark_of(report.incarnation)
    return mark is not None and mark.value.final
