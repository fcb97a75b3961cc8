"""The history of a job in a snapshot: its failures so far, its steps and its commits."""

from __future__ import annotations

from collections.abc import Iterator

from recovery.formats.lineage import on_lineage
from recovery.formats.selection import candidates
from recovery.policy.history import Past, failed_after_a_step, goes_on, present_life, trained
from recovery.policy.progress import Reached, global_step
from recovery.policy.roles import training_roles
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.errors import NotFound
from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Cause, Incident, Outcome
from supervisor.contract.job.spec import Scope
from supervisor.contract.observed import AttemptReport, TaskBeat
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned

AGAIN = "#"
"""Between the natural id of an incident and its number, where it is not the first. No name has it."""


def incident_id(job: JobState, natural: str) -> str:
    """The id under which a failure is told of: its natural one, the same for whoever looks (decision 0006).

    What had passed, so that its record is closed, and has come back gets the next of that name.
    """
    again = f"{natural}{AGAIN}"
    after = {name.removeprefix(again): name for name in job.incidents if name.startswith(again)}
    known = {int(number): name for number, name in after.items() if number.isdigit()}
    known |= {1: natural} if natural in job.incidents else {}
    still = [name for name in known.values() if job.incidents[name].value.outcome is Outcome.OPEN]
    return still[0] if still else f"{again}{max(known) + 1}" if known else natural


def _past(entry: Versioned[Incident]) -> Past:
    return Past(entry.value, entry.created_ms, entry.value.began or entry.create_revision)


def life_of(job: JobState, without: str = "") -> tuple[Past, ...]:
    """The incidents of the job's present life, oldest first; `without` names one that is being answered."""
    held = sorted(job.incidents.values(), key=lambda entry: entry.create_revision)
    life = present_life(_past(entry) for entry in held)
    return tuple(past for past in life if past.incident.id != without)


def has_trained(snap: Snapshot, job: JobState) -> bool:
    """Whether the job has made a step since somebody last started it."""
    life = life_of(job)
    first = life[0].incident.generation if life else job.record.value.generation_floor + 1
    saved = any(ref.generation >= first for ref in job.commits)
    return saved or trained(life) or has_stepped(snap, job)


def steps_are_read(snap: Snapshot, job: JobState) -> bool:
    """Whether this program is known to report its steps, in whatever life."""
    past = (held.value for held in job.incidents.values())
    recorded = any(goes_on(each) or failed_after_a_step(each) or each.from_step >= 0 for each in past)
    return recorded or has_stepped(snap, job)


def has_stepped(snap: Snapshot, job: JobState) -> bool:
    """Whether a training task of the generation in force has made a step, of whatever number."""
    return job.once(_tells_of_a_step) or any(each.has_stepped for each in _beats_of_training(snap, job))


def role_has_stepped(snap: Snapshot, job: JobState, role: str) -> bool:
    """Whether a task of this role in the generation in force tells of a step of its own."""
    plan = job.plan_in_force
    placed = [each for each in plan.value.placements if each.role == role] if plan is not None else []
    reports = (job.report(each, plan.value) for each in placed if plan is not None)
    beats = (snap.beat_of(held.value.node, held.value.attempt) for held in reports if held is not None)
    return any(each is not None and each.has_stepped for each in beats)


def sizes_before(snap: Snapshot, job: JobState, accused: TaskId | None = None) -> dict[str, int]:
    """The counts with which the job last trained, of roles that have another one now (rule 6.11).

    Empty once the job has made a step with the new ones; for a task that is new with them (`accused`), once
    this task has made one.
    """
    generation = job.switch.value.generation
    life = [past.incident for past in life_of(job) if past.incident.generation <= generation]
    whole = [each for each in life if each.scope is Scope.ALL]
    sized = max((each for each in whole if each.sizes), key=lambda each: each.generation, default=None)
    if sized is None or any(_undoes(each) and each.generation > sized.generation for each in whole):
        return {}
    counts = {role.name: role.count for role in job.record.value.spec.roles}
    before = {role: count for role, count in sized.sizes.items() if counts.get(role, count) != count}
    is_new = accused is not None and accused.index >= before.get(accused.role, counts[accused.role])
    since = [each for each in life if each.generation >= sized.generation]
    if is_new and accused is not None and generation == sized.generation:
        return {} if _has_stepped_itself(snap, job, accused) else before
    return {} if _has_worked(snap, job, since, sized.generation) else before


def _undoes(incident: Incident) -> bool:
    """Whether it took a resize back, so that what fails after it is the program's."""
    return incident.cause is Cause.RESIZED and not incident.sizes


def _has_worked(snap: Snapshot, job: JobState, since: list[Incident], first: int) -> bool:
    """Whether the job has made a step, or a checkpoint, since generation `first`.

    A program that prints no steps has worked when its tasks have run for a while.
    """
    stepped = any(goes_on(each) for each in since if each.scope is Scope.ALL)
    stepped |= any(failed_after_a_step(each) for each in since if each.from_generation >= first)
    saved = any(ref.generation >= first for ref in job.commits)
    quiet = not steps_are_read(snap, job) and any(each.outcome is Outcome.RECOVERED for each in since)
    return stepped or saved or quiet or has_stepped(snap, job)


def _has_stepped_itself(snap: Snapshot, job: JobState, task: TaskId) -> bool:
    """Whether a task has made a step in the generation in force; of one that makes none, whether any has."""
    if not role_has_stepped(snap, job, task.role):
        return has_stepped(snap, job)
    generation, plan = job.switch.value.generation, job.plan_in_force
    held = job.assigned(plan.value.plan_id, task.member) if plan is not None else None
    beat = snap.beat_of(held.value.node, held.value.attempt_id) if held is not None else None
    return (beat is not None and beat.has_stepped) or any(
        report.value.has_stepped
        for attempt, report in job.attempts.items()
        if (attempt.task, attempt.generation) == (task, generation)
    )


def job_step(snap: Snapshot, job: JobState) -> int:
    """The newest global step that a training task of the generation in force reported; -1: none is known.

    Of any task, where none trains. An evaluator tells at once which step it reads, before any is made.
    """
    beats, reports = list(_beats_of_training(snap, job)), job.once(_reports_of_training)
    base = job.switch.value.base
    reached = global_step((_reached(each) for each in beats), base.step if base is not None else -1)
    if reached < 0 and any(each.step >= 0 for each in beats):
        return -1
    return max([reached, *(each.last_step for each in reports)])


def _reached(beat: TaskBeat) -> Reached:
    number = beat.attempt.rpartition(".")[2]
    return Reached(int(number) if number.isdigit() else 1, beat.first_step, beat.step, beat.is_local)


def _training_roles(job: JobState) -> frozenset[str]:
    """The roles that train; all of them where none does."""
    spec = job.record.value.spec
    return training_roles(spec) or frozenset(role.name for role in spec.roles)


def _placed_to_train(job: JobState) -> dict[str, set[str]]:
    """The training tasks of the generation in force, by their nodes."""
    plan, roles = job.plan_in_force, _training_roles(job)
    found: dict[str, set[str]] = {}
    for each in plan.value.placements if plan is not None else ():
        if each.role in roles:
            found.setdefault(each.node, set()).add(str(job.task(each.member)))
    return found


def _beats_of_training(snap: Snapshot, job: JobState) -> Iterator[TaskBeat]:
    """The beats of the training tasks of the generation in force."""
    of_generation = f"@{job.switch.value.generation}."
    for node, tasks in job.once(_placed_to_train).items():
        state = snap.nodes.get(node)
        # An agent speaks for what is placed on its own node.
        for name, beat in state.beat.tasks.items() if state is not None and state.beat is not None else ():
            if of_generation in name and name.partition("@")[0] in tasks:
                yield beat


def _reports_of_training(job: JobState) -> list[AttemptReport]:
    """The reports of the training tasks of the generation in force."""
    roles, switch = _training_roles(job), job.switch.value
    generation = switch.generation
    if not switch.plan_id and switch.base is None:
        return []  # those of an earlier life, from which this one does not go on
    return [
        held.value
        for attempt, held in job.attempts.items()
        if attempt.generation == generation and attempt.task.role in roles
    ]


def _tells_of_a_step(job: JobState) -> bool:
    return any(each.has_stepped for each in job.once(_reports_of_training))


def newest_commit(job: JobState) -> CheckpointRef | None:
    """The newest commit that the next generation could start from by itself."""
    usable = candidates((held.value for held in job.commits.values()), job.switch.value)
    return usable[0].ref if usable else None


def find_checkpoint(picture: JobState, ref: CheckpointRef) -> CommitRecord:
    """The record of `ref`; with generation 0, of its step: the one on the lineage, else the newest.

    Raises NotFound, which names the steps that there are.
    """
    mine = [
        held.value
        for held in picture.commits.values()
        if held.value.job_uuid == picture.switch.value.job_uuid
        and held.value.state is not CommitState.COLLECTING
    ]
    found = {record.ref: record for record in mine if ref in (record.ref, CheckpointRef(0, record.ref.step))}
    if not found:
        what = f"step {ref.step}" if ref.generation == 0 else str(ref)
        have = ", ".join(map(str, sorted({record.ref.step for record in mine})))
        raise NotFound(
            f"job {picture.name} has no checkpoint of {what}; "
            + (f"it has those of the steps {have}" if have else "none is committed yet")
        )
    switch = picture.switch.value
    lineage = on_lineage(mine, switch.job_uuid, switch.generation, switch.base)
    preferred = [record for record in lineage if record.ref in found]
    return preferred[0] if preferred else found[max(found)]


def check_task(job: JobState, task: TaskId) -> None:
    """Raise `no_task` unless the job has this task."""
    if task not in job.record.value.spec.tasks():
        raise no_task(job, str(task))


def no_task(job: JobState, task: str) -> NotFound:
    """The error about a task that a job does not have, with the names of those that it has."""
    tasks = job.record.value.spec.tasks()
    known = ", ".join(map(str, tasks[:20])) + (", ..." if len(tasks) > 20 else "")
    return NotFound(f"no task {task}; tasks of this job: {known}")


def records_are_lost(job: JobState) -> bool:
    """Whether etcd has lost the job's commit records: it began from a checkpoint, so that it had a head."""
    return job.head is None and job.switch.value.base is not None


def asked_base(job: JobState) -> CheckpointRef | None:
    """The checkpoint that an operator's pending restart is to start from; None: the newest."""
    intent = job.intent.value
    return intent.restart_from if intent.restart_serial > job.switch.value.restart_serial else None
