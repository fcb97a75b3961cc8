"""News in a node's beat: it tells more than the progress of its tasks since the beat before. Pure.

A beat of a healthy node says that time has passed: tasks have made more steps, and ages have begun anew.
What rules wait for (a first step, a save, a loss that is not a number, the end of a silence) is news.

A rule that waits for progress itself must not rest (`Rests.suspect`).
"""

from __future__ import annotations

from dataclasses import replace

from recovery.policy.hangs import STEP, lives
from supervisor.contract.observed import SaverBeat, Sign, TaskBeat
from supervisor.contract.timing import Timing
from supervisor.control.decide.snapshot import BeatSeen

SLACK_PARTS = 4
"""Of the interval of beats: by so much two beats may differ about when the same thing was."""


def settled(before: BeatSeen, beat: BeatSeen, timing: Timing) -> BeatSeen:
    """The last beat. What was not shown again since the one `before` is as much older as time has passed.

    By itself a beat says so a little earlier or later, as it was under way for longer or shorter.
    """
    passed_ms, slack_ms = beat.received_ms - before.received_ms, timing.beat_ms // SLACK_PARTS
    tasks = {
        name: _settled(before.tasks[name], task, passed_ms, slack_ms) if name in before.tasks else task
        for name, task in beat.tasks.items()
    }
    same = all(tasks[name] is task for name, task in beat.tasks.items())
    return beat if same else replace(beat, tasks=tasks)


def _settled(before: TaskBeat, task: TaskBeat, passed_ms: int, slack_ms: int) -> TaskBeat:
    def age(name: str, before_ms: int, age_ms: int) -> int:
        due_ms = before_ms + passed_ms
        stands_still = name != STEP or task.step == before.step
        same = stands_still and min(before_ms, age_ms) >= 0 and abs(age_ms - due_ms) <= slack_ms
        return due_ms if same else age_ms

    step_age_ms, signs = age(STEP, before.step_age_ms, task.step_age_ms), task.signs
    if len(signs) == len(before.signs):
        pairs = zip(before.signs, signs, strict=True)
        signs = tuple(
            Sign(new.name, age(new.name, old.age_ms, new.age_ms), new.pause_ms) for old, new in pairs
        )
    if signs == task.signs and step_age_ms == task.step_age_ms:
        return task
    return replace(task, step_age_ms=step_age_ms, signs=signs)


def is_news(before: BeatSeen | None, beat: BeatSeen | None, timing: Timing) -> bool:
    """Whether a node's last beat tells of more than progress since the one `before`."""
    if before is None or beat is None:
        return before is not beat
    passed_ms = beat.received_ms - before.received_ms
    return (
        passed_ms >= timing.suspect_ms
        or max(before.unread_ms, beat.unread_ms) >= timing.unread_ms
        or (beat.free, beat.spares, beat.blocked, beat.notices)
        != (before.free, before.spares, before.blocked, before.notices)
        or beat.tasks.keys() != before.tasks.keys()
        or beat.savers.keys() != before.savers.keys()
        or any(_changed(before.tasks[name], task, passed_ms) for name, task in beat.tasks.items())
        or any(_is_busy(saver) or saver != before.savers[job] for job, saver in beat.savers.items())
    )


def _changed(before: TaskBeat, task: TaskBeat, passed_ms: int) -> bool:
    """Whether a task has changed in another way than to go on."""
    return (
        task.step < before.step
        or (task.step < 0) != (before.step < 0)
        or _is_older(before.step_age_ms, task.step_age_ms, passed_ms)
        or (task.first_step_age_ms < 0) != (before.first_step_age_ms < 0)
        or (task.silent_ms < 0) != (before.silent_ms < 0)
        or not _is_longer(before.slowest_ms, task.slowest_ms)
        or (task.pace < 0) != (before.pace < 0)
        or lives(task.signs) != lives(before.signs)
        or len(task.signs) != len(before.signs)
        or any(map(_has_paused, before.signs, task.signs, [passed_ms] * len(task.signs)))
        or _lasting(task) != _lasting(before)
    )


def _lasting(task: TaskBeat) -> tuple[object, ...]:
    return task.first_step, task.nan, task.stopped, task.ended, task.saves, task.is_local


def _has_paused(before: Sign, sign: Sign, passed_ms: int) -> bool:
    return (
        sign.name != before.name
        or _is_older(before.age_ms, sign.age_ms, passed_ms)
        or not _is_longer(before.pause_ms, sign.pause_ms)
    )


def _is_older(before_ms: int, age_ms: int, passed_ms: int) -> bool:
    """Whether what has this age happened earlier than was known, or one of the two never."""
    return (age_ms < 0) != (before_ms < 0) or age_ms > before_ms + passed_ms


def _is_longer(before_ms: int, pause_ms: int) -> bool:
    """Whether the longest pause has become no shorter, and is as known, or unknown, as before."""
    return pause_ms >= before_ms and (pause_ms < 0) == (before_ms < 0)


def _is_busy(saver: SaverBeat) -> bool:
    return saver.waiting_ms >= 0 or saver.still_ms >= 0 or saver.trouble_ms >= 0 or bool(saver.trouble)
