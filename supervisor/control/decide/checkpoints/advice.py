"""Advice for users: one event, and a line in `status` as long as it holds. Pure.

It is about saves that are not kept, or not read after a restart, and about a job that may never end.

The place of a program's saves is known from its own process alone (`Saves`). It is a hint: only this advice
depends on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from supervisor.contract.errors import UserError
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.incident import Cause, Event
from supervisor.contract.job.adopted_path import check_adopted, holds_program
from supervisor.contract.job.spec import Scope
from supervisor.contract.observed import AttemptState, Saves
from supervisor.control.decide.assess.hanging import left_behind
from supervisor.control.decide.plan import Action, short, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot

ELSEWHERE, CHANGING = "saves_elsewhere", "saves_at_changing_places"
NO_RESTORE, NO_END = "does_not_restore", "cannot_end"
LEFT_ALONE_MS = 30_000
"""The time for which tasks may run on after others have ended, before advice is given about them."""
_MADE_UP = re.compile(r"/[t]mp[a-z0-9_]{8}(?:/|$)")
"""A directory that Python's `tempfile.mkdtemp` has named."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing that the user should know. `fields` tell it from others of its kind."""

    kind: str
    text: str
    fields: dict[str, str]


def advice(snap: Snapshot, job: JobState) -> tuple[Advice, ...]:
    """The advice that holds now."""
    found = (_elsewhere(snap, job), _no_restore(snap, job), _no_end(snap, job))
    return tuple(each for each in found if each is not None)


def tell(snap: Snapshot, job: JobState) -> list[Action]:
    """An event for each that was not told in this life of the job."""
    found = advice(snap, job)
    if not found:
        return []
    told = [(each.kind, each.fields.get("uuid"), each.fields.get("member")) for each in _events(job)]
    return [
        Action(each.kind, job.name, each.text, (unchanged(job.switch),), (), each.fields)
        for each in found
        if (each.kind, each.fields["uuid"], each.fields["member"]) not in told
    ]


def saves_of(snap: Snapshot, job: JobState) -> Iterator[tuple[AttemptId, Saves]]:
    """The attempts of the generation in force, each with its own report of its saves."""
    for attempt, held in job.attempts.items():
        if attempt.generation != job.switch.value.generation:
            continue
        report = held.value
        beat = snap.beat_of(report.node, attempt) if report.state is AttemptState.RUNNING else None
        yield attempt, beat.saves if beat is not None else report.saves


def _elsewhere(snap: Snapshot, job: JobState) -> Advice | None:
    """Advice about the task that saves elsewhere, the saver first; None if any task saves inside."""
    known = list(saves_of(snap, job))
    if any(saves.inside for _, saves in known):
        return None
    saver = job.saver
    # Tasks that do not save may all write to scratch directories when the saver saves, a little before it.
    outside = [
        (attempt, saves)
        for attempt, saves in known
        if saves.elsewhere and (attempt.task == saver or saves.outside > 1 or _has_ended(job, attempt))
    ]
    if not outside:
        return None
    attempt, saves = min(outside, key=lambda each: (each[0].task != saver, each[0]))
    member, directory = attempt.task.member, saves.elsewhere[0]
    fields = {
        "uuid": job.record.value.uuid,
        "member": member,
        "directory": short(directory, 300),
        "attempt": str(attempt),
    }
    name = f"{attempt.task.role}:{attempt.task.index}"
    keeps = (
        "save to os.environ['CHECKPOINT_DIR'], or to what `{checkpoint_dir}` in its command is filled with"
    )
    before = _other_place(job, fields, saves)
    if before or _MADE_UP.search(directory):
        places = f"{before}, then {directory}" if before else directory
        text = f"{name} saves to another directory at each start ({places}): the program must {keeps}"
        return Advice(CHANGING, short(text), fields)
    lost = "which is not read from there" if "://" in directory else "which is lost with its node"
    path = "" if job.record.value.spec.checkpoint.adopt else _adoptable(job, directory)
    todo = f"write `checkpoint.adopt: {path}` in the job file, and empty that directory"
    if not path:
        todo = f"let it {keeps}, and write its other files to `{{output_dir}}`"
    return Advice(ELSEWHERE, short(f"{name} saves to {directory}, {lost}; {todo}"), fields)


def _adoptable(job: JobState, directory: str) -> str:
    """The directory as `checkpoint.adopt` takes it; empty where it takes it not."""
    code = job.record.value.spec.code
    if code is not None:
        # Each node has its own copy of the shipped directory, in which the program runs.
        directory = directory.partition(f"/{code.digest}/")[2] or directory
        if directory.endswith(f"/{code.digest}"):
            return ""
    try:
        path = check_adopted(directory)
    except UserError:
        return ""
    return "" if holds_program(path, job.record.value.spec.workdir) else path


def _no_restore(snap: Snapshot, job: JobState) -> Advice | None:
    """Advice about a program that began as a fresh one does although its generation has a base.

    Step numbers of a program that does not call them global may begin anew although it restored. Then its
    saves are evidence, too, unless it numbers those anew: one that was seen to read a checkpoint restores.
    """
    noted = [saves for _, saves in saves_of(snap, job)]
    if any(saves.restored for saves in noted):
        return None
    # Where its saves are seen, its restores would be, too.
    seen = any(saves.inside for saves in noted)
    generation = job.switch.value.generation
    incidents = [held.value for held in job.incidents.values() if held.value.scope is Scope.ALL]
    fresh = max([1, *(each.to_step for each in incidents if each.cause is Cause.SUBMITTED)])
    for each in incidents:
        base = each.to_base
        if each.generation != generation or base is None or not 0 <= each.to_step < base.step:
            continue
        saved = any(ref.generation == generation and ref.step < base.step for ref in job.commits)
        known = saved or any(event.fields.get("incident") == each.id for event in _events(job))
        if each.to_step > fresh or (each.lost_steps < 0 and not known):
            continue
        saver = job.saver
        text = (
            f"{saver.role}:{saver.index} began at step {each.to_step} although checkpoint {base} was in "
            f"$CHECKPOINT_DIR: it does not restore{'' if seen else ', or counts its steps anew'}; let it "
            "load the newest checkpoint there when it starts, or each restart trains from the beginning"
        )
        fields = {"uuid": job.record.value.uuid, "member": saver.member, "incident": each.id}
        return Advice(NO_RESTORE, short(text), fields)
    return None


def _no_end(snap: Snapshot, job: JobState) -> Advice | None:
    """Advice about tasks that run on after other training tasks have ended with 0: the job waits for them."""
    left, ended = left_behind(snap, job, LEFT_ALONE_MS)
    if not left:
        return None
    roles = {each.task.role for each in left}
    waits = f"the job waits for {_named(each.task for each in left)}, which may never end by themselves: "
    after = f"{_named(job.task(member) for member in ended)} ended with exit code 0"
    if roles == {"worker"} and "worker.0" in ended:
        setting = "`success_policy: worker_0`, or give them a role of their own with `serves: true`"
    else:
        setting = ", ".join(f"`roles.{role}.serves: true`" for role in sorted(roles))
    fields = {"uuid": job.record.value.uuid, "member": left[0].task.member}
    return Advice(NO_END, short(f"{waits}{after}; if so, write {setting} in the job file"), fields)


def _named(tasks: Iterable[TaskId]) -> str:
    """`actor:0, actor:1 and 3 more`."""
    names = [f"{each.role}:{each.index}" for each in tasks]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _has_ended(job: JobState, attempt: AttemptId) -> bool:
    return job.attempts[attempt].value.state is AttemptState.EXITED


def _other_place(job: JobState, fields: dict[str, str], saves: Saves) -> str:
    """The directory in which an earlier attempt of the task saved, if this one does not; empty otherwise."""
    for event in reversed(_events(job)):
        said = event.fields
        if event.kind != ELSEWHERE or any(said.get(name) != fields[name] for name in ("uuid", "member")):
            continue
        directory = said.get("directory", "")
        return (
            directory if said.get("attempt") != fields["attempt"] and directory not in saves.elsewhere else ""
        )
    return ""


def _events(job: JobState) -> list[Event]:
    kinds = (ELSEWHERE, CHANGING, NO_RESTORE, NO_END)
    return [held.value for held in job.events if held.value.kind in kinds]
