"""What a job has been through, as the snapshot tells it: its failures so far, its steps and its commits."""

from __future__ import annotations

from recovery.checkpoints.select import candidates
from recovery.decide.history import Past, present_life, trained
from recovery.decide.progress import newest_step
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.control.snapshot import JobPicture, Snapshot


def life_of(job: JobPicture, without: str = "") -> tuple[Past, ...]:
    """The incidents of the job's present life, oldest first; `without` names one that is being answered."""
    held = sorted(job.incidents.values(), key=lambda entry: entry.create_revision)
    life = present_life(Past(entry.value, entry.created_ms) for entry in held)
    return tuple(past for past in life if past.incident.id != without)


def has_trained(snap: Snapshot, job: JobPicture) -> bool:
    """Whether the job has made a step since somebody last started it."""
    life = life_of(job)
    first = life[0].incident.generation if life else job.record.value.generation_floor + 1
    saved = any(ref.generation >= first for ref in job.commits)
    return saved or trained(life) or job_step(snap, job) >= 0


def steps_are_read(snap: Snapshot, job: JobPicture) -> bool:
    """Whether this program is known to report its steps, in whatever life."""
    recorded = any(max(held.value.to_step, held.value.from_step) >= 0 for held in job.incidents.values())
    return recorded or job_step(snap, job) >= 0


def job_step(snap: Snapshot, job: JobPicture) -> int:
    """The newest step that any task of the generation in force reported, -1 if none did."""
    prefix = f"{job.name}/"
    beats = [
        beat
        for node in snap.nodes.values()
        if node.beat is not None
        for name, beat in node.beat.tasks.items()
        if name.startswith(prefix) and f"@{job.switch.value.generation}." in name
    ]
    reported = [
        held.value.last_step
        for attempt, held in job.attempts.items()
        if attempt.generation == job.switch.value.generation
    ]
    return max([newest_step(beats), *reported], default=-1)


def newest_commit(job: JobPicture) -> CheckpointRef | None:
    """The newest commit that the next generation could start from by itself."""
    usable = candidates((held.value for held in job.commits.values()), job.switch.value)
    return usable[0].ref if usable else None
