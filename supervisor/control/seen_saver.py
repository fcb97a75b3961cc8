"""Which task of a generation saves, where that is another than its roles let expect. Pure.

The node of the saver commits. The switch names the saver, and each commit compares the switch (rule 7): once
it is rewritten no commit of the task before takes effect, and the agent of that task stops when it sees it.
Tasks tell of their saves themselves (`Saves`): a lie can keep its own job from committing, and no other job.
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.contract.desired import JobPhase
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.observed import AttemptState, Saves
from supervisor.control.advice import saves_of
from supervisor.control.plan import Action, put, unchanged
from supervisor.control.snapshot import JobPicture, Snapshot

CHANGED = "saver_changed"
STAGED = "staged"
_PHASES = (JobPhase.RUNNING, JobPhase.FINISHING, JobPhase.STOPPING)


def follow(snap: Snapshot, job: JobPicture) -> list[Action]:
    """The step by which the node of the task that saves commits from now on, if another one does so now."""
    switch = job.switch.value
    if job.plan_in_force is None or switch.closing is not None or switch.phase not in _PHASES:
        return []
    if job.record.value.spec.checkpoint.mode != STAGED:
        return []  # a mount shows the saves of all tasks to whichever node commits
    task = _seen(job, dict(saves_of(snap, job)))
    if task is None or task == job.saver:
        return []
    text = f"{task} saves the checkpoints, not {job.saver}: its node commits them from now on"
    return [
        Action(
            CHANGED,
            job.name,
            text,
            (unchanged(job.switch),),
            (put(job.switch.key, replace(switch, saver=task.member)),),
            {"task": str(task), "before": str(job.saver)},
        )
    ]


def _seen(job: JobPicture, known: dict[AttemptId, Saves]) -> TaskId | None:
    """The expected one as soon as it saves; else the only other, if the present one surely saves nothing."""
    spec = job.record.value.spec
    saving = {attempt.task for attempt, saves in known.items() if saves.inside}
    if spec.saver in saving:
        return spec.saver
    candidates = [task for task in saving if not spec.role(task.role).outside]
    if len(candidates) != 1 or job.saver in saving or not _saves_nothing(job, known):
        return None
    (task,) = candidates
    # All may save at the same moment, most of them to be thrown away: the first one may be told of a little
    # before the one that counts.
    times = sum(saves.inside for attempt, saves in known.items() if attempt.task == task)
    ended = all(
        job.attempts[attempt].value.state is AttemptState.EXITED for attempt in known if attempt.task == task
    )
    return task if times > 1 or ended or job.switch.value.phase is not JobPhase.RUNNING else None


def _saves_nothing(job: JobPicture, known: dict[AttemptId, Saves]) -> bool:
    """Whether the present saver is known to have saved nothing in this generation."""
    its = [(attempt, saves) for attempt, saves in known.items() if attempt.task == job.saver]
    if not its or not all(saves.watched for _, saves in its):
        return False
    restarted = min(attempt.number for attempt, _ in its) > 1
    generation = job.switch.value.generation
    return not (restarted and any(ref.generation == generation for ref in job.commits))
