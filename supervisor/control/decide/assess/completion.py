"""When a job's training is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from recovery.policy.roles import training_roles
from supervisor.contract.desired import Plan
from supervisor.contract.ids import TaskId
from supervisor.contract.job.spec import CHIEF_ROLES, JobSpec, SuccessPolicy
from supervisor.contract.observed import AttemptReport, AttemptState, ExitReason
from supervisor.control.decide.assess.members import as_taken
from supervisor.control.decide.snapshot import JobState, Snapshot


class CompletionState(Enum):
    """Whether training is over."""

    NOT_YET = "not_yet"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Completion:
    """How far a job is from its end.

    Attributes:
        detail: why it is done, or what it waits for.
        chief_done: the task that decides alone exited with 0: the chief, or worker 0 where the job says so.
            The leader notes when it first saw this; from then on the end of another task is no failure, and
            the job is done after a grace at the latest.
    """

    state: CompletionState
    detail: str
    chief_done: bool = False


def judge_completion(snap: Snapshot, job: JobState, plan: Plan) -> Completion:
    """How far the generation in force is from its end."""
    spec = job.record.value.spec
    reports: dict[str, AttemptReport] = {}
    first_done_ms: int | None = None
    chiefs = {task.member for task in _chiefs(spec)}
    for placement in plan.placements:
        held = job.report(placement, plan)
        if held is not None:
            reports[placement.member] = as_taken(snap, job, held.value)
            if placement.member in chiefs and held.value.exit is not None:
                # Not `created_ms`: the report was created when the attempt started.
                first_done_ms = held.seen_ms if first_done_ms is None else first_done_ms
    grace_ms = snap.timing.completion_grace_ms
    return completion(spec, reports, snap.now_ms, first_done_ms, grace_ms)


def completion(
    spec: JobSpec,
    reports: Mapping[str, AttemptReport],
    now_ms: int,
    first_done_ms: int | None,
    grace_ms: int,
) -> Completion:
    """Judge a job by the latest report of each member in the generation in force.

    Done when all training tasks (`recovery.policy.roles`) exited with 0; or when the chief did and either
    every other training task has ended, however, or `grace_ms` have passed since `first_done_ms`, when the
    leader first saw `chief_done`. Without a chief that may be worker 0 (`success_policy`). Parameter servers,
    evaluators and other servers are not waited for. A job that has no training role is done when all of its
    tasks exited with 0.
    """
    trains = training_roles(spec)
    training = tuple(task for task in spec.tasks() if task.role in trains)
    awaited = training or spec.tasks()
    chiefs = _chiefs(spec)

    chief_done = bool(chiefs) and all(_succeeded(reports.get(task.member)) for task in chiefs)

    if all(_succeeded(reports.get(task.member)) for task in awaited):
        detail = f"{_count(awaited)} exited with code 0"
        return Completion(CompletionState.DONE, detail, chief_done)
    if not chief_done:
        waiting = next(task for task in awaited if not _succeeded(reports.get(task.member)))
        return Completion(CompletionState.NOT_YET, f"waits for {waiting} to exit with code 0")

    left = tuple(task for task in training if not _ended(reports.get(task.member)))
    until_ms = (now_ms if first_done_ms is None else first_done_ms) + grace_ms
    ended = f"{_count(chiefs)} exited with code 0"
    if not left:
        detail = f"{ended}, and every other training task has ended"
    elif now_ms >= until_ms:
        role = chiefs[0].role
        setting = "write `success_policy: all_workers`"
        longer = f"let the {role} wait for them" if role in CHIEF_ROLES else setting
        late = f"{_count(left)} did not end within {grace_ms / 1000:g} s after"
        detail = f"{ended}, and {late}; to train longer, {longer}"
    else:
        detail = f"{ended}; {_count(left)} may end by itself"
        return Completion(CompletionState.NOT_YET, detail, chief_done=True)
    return Completion(CompletionState.DONE, detail, chief_done=True)


def _chiefs(spec: JobSpec) -> tuple[TaskId, ...]:
    """The tasks whose success is the job's, whatever the others do."""
    trains = training_roles(spec)
    chiefs = {name: spec.role(name).count for name in CHIEF_ROLES if name in trains}
    if not chiefs and "worker" in trains and spec.success_policy is SuccessPolicy.WORKER_0:
        chiefs = {"worker": 1}
    return tuple(TaskId(spec.name, name, index) for name, count in chiefs.items() for index in range(count))


def _ended(report: AttemptReport | None) -> bool:
    return report is not None and report.state is AttemptState.EXITED


def _succeeded(report: AttemptReport | None) -> bool:
    """Exit code 0, of its own accord."""
    if report is None or report.exit is None:
        return False
    return report.exit.reason is ExitReason.EXIT and report.exit.code == 0


def _count(tasks: tuple[TaskId, ...]) -> str:
    return str(tasks[0]) if len(tasks) == 1 else f"{len(tasks)} training tasks"
