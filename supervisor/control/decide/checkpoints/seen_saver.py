"""The task of a generation that saves, if it is another than its roles let expect. Pure.

The node of the saver commits. The switch names the saver, and each commit compares the switch (rule 7): once
it is rewritten no commit of the task before takes effect, and the agent of that task stops when it sees it.
Tasks tell of their saves themselves (`Saves`): a lie can keep its own job from committing, and no other job.
"""

from __future__ import annotations

from supervisor.contract.checkpoint import CommitRecord
from supervisor.contract.desired import JobPhase
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.observed import AttemptState, Saves
from supervisor.control.decide.checkpoints.advice import saves_of
from supervisor.control.decide.checkpoints.saving import STAGED, share_files
from supervisor.control.decide.plan import Action, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot
from supervisor.control.decide.switch import Transition, turn

CHANGED = "saver_changed"
_PHASES = (JobPhase.RUNNING, JobPhase.FINISHING, JobPhase.STOPPING)


def follow(snap: Snapshot, job: JobState) -> list[Action]:
    """The step by which the node of the task that saves commits from now on, if another one does so now."""
    switch = job.switch.value
    if job.plan_in_force is None or switch.closing is not None or switch.phase not in _PHASES:
        return []
    if job.record.value.spec.checkpoint.mode != STAGED:
        return []  # a mount shows the saves of all tasks to whichever node commits
    task = _seen(snap, job, dict(saves_of(snap, job)))
    if task is None or task == job.saver:
        return []
    text = f"{task} saves the checkpoints, not {job.saver}: its node commits them from now on"
    return [
        Action(
            CHANGED,
            job.name,
            text,
            (unchanged(job.switch),),
            (turn(job.switch, Transition.FOLLOW_SAVER, saver=task.member),),
            {"task": str(task), "before": str(job.saver)},
        )
    ]


def _seen(snap: Snapshot, job: JobState, known: dict[AttemptId, Saves]) -> TaskId | None:
    """The expected one as soon as it saves; else the only other, if the present one surely saves nothing."""
    spec = job.record.value.spec
    saving = {attempt.task for attempt, saves in known.items() if saves.inside}
    if spec.saver in saving:
        return spec.saver
    plan = job.plan_in_force
    members = {each.member for each in plan.value.placements} if plan is not None else set()
    # A worker that has left the generation saves no more.
    candidates = [task for task in saving if task.member in members and not spec.role(task.role).outside]
    if len(candidates) != 1 or job.saver in saving:
        return None
    (task,) = candidates
    if not _saves_nothing(job, known) or _found_its_own(snap, job, task):
        return None
    # All may save at the same moment, most of them to be thrown away: the first one may be told of a little
    # before the one that counts.
    times = sum(saves.inside for attempt, saves in known.items() if attempt.task == task)
    ended = all(
        job.attempts[attempt].value.state is AttemptState.EXITED for attempt in known if attempt.task == task
    )
    return task if times > 1 or ended or job.switch.value.phase is not JobPhase.RUNNING else None


def _saves_nothing(job: JobState, known: dict[AttemptId, Saves]) -> bool:
    """Whether the present saver is known to have noted no save in this generation."""
    its = [(attempt, saves) for attempt, saves in known.items() if attempt.task == job.saver]
    if not its or not all(saves.watched for _, saves in its):
        return False
    restarted = min(attempt.number for attempt, _ in its) > 1
    return not (restarted and _commits(job))


def _found_its_own(snap: Snapshot, job: JobState, other: TaskId) -> bool:
    """Whether the saver's node has committed what `other` cannot have saved, as it sees other files.

    A child process, or a call that no hook knows, saves without a note.
    """
    plan = job.plan_in_force
    nodes = {each.member: each.node for each in plan.value.placements} if plan else {}
    its = nodes.get(job.saver.member, "")
    if share_files(snap, its, nodes.get(other.member, "")):
        return False
    return any(record.node == its for record in _commits(job))


def _commits(job: JobState) -> list[CommitRecord]:
    generation = job.switch.value.generation
    return [held.value for ref, held in job.commits.items() if ref.generation == generation]
