"""Who has stopped making steps, for how long that is borne, and who is to blame (DESIGN section 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from supervisor.contract.ids import TaskId
from supervisor.contract.job import CHIEF_ROLES, ProgressSpec

SUSPECT_TIMES, ACT_TIMES = 3, 10
LEAST_SUSPECT_MS, LEAST_ACT_MS = 5_000, 30_000
MOST_DOUBLINGS = 6
_BLAME_ORDER = ("ps", *CHIEF_ROLES, "worker")


@dataclass(frozen=True, slots=True)
class Running:
    """A task that runs on a node which is heard.

    Attributes:
        stalled_ms: since its last step; -1 when it reports none (yet), or they cannot be seen.
        slowest_ms: the longest pause between two of its steps, -1 before the second.
        stopped: its process is stopped by a signal.
        fresh_ms: since it was started, for one that is to make steps and has made none; -1 otherwise.
    """

    task: TaskId
    stalled_ms: int = -1
    slowest_ms: int = -1
    stopped: bool = False
    fresh_ms: int = -1


@dataclass(frozen=True, slots=True)
class Patience:
    """After how long without a step a task is suspected, and its hang acted upon."""

    suspect_ms: int
    act_ms: int


@dataclass(frozen=True, slots=True)
class Hang:
    """A hang to act upon.

    Attributes:
        root: the task to blame; None when all stopped at once and no one stands out.
        stalled_ms: how long it (or, without a root, the first of them) has made no step.
        late_ms: since when it was time to act.
        everyone: no task of the job makes steps any more.
    """

    root: TaskId | None
    stalled_ms: int
    late_ms: int
    everyone: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """The tasks that are suspected, whether nobody else makes steps, and the hang, if it is time to act."""

    suspected: frozenset[TaskId] = frozenset()
    everyone: bool = False
    hang: Hang | None = None


def patience(
    slowest_ms: int, spec: ProgressSpec, startup_ms: int | None, *, hung_before: int
) -> Patience | None:
    """How long a role's tasks may take for a step; None: for ever.

    `slowest_ms` is the slowest step of the role in this generation. Before two steps were seen nothing is
    known of their length, and the start-up deadline holds. The floor of 30 s is for a save or an evaluation
    that comes between two steps. Each hang that the job was restarted for before doubles what was derived: a
    program that pauses for longer than we thought is not killed for it again and again.
    """
    if not spec.watch_hangs:
        return None
    act_ms = spec.act_after_ms
    if act_ms is None:
        if slowest_ms < 0:
            act_ms = startup_ms
        else:
            act_ms = max(ACT_TIMES * slowest_ms, LEAST_ACT_MS) << min(hung_before, MOST_DOUBLINGS)
    if act_ms is None:
        return None
    suspect_ms = spec.suspect_after_ms
    if suspect_ms is None:
        suspect_ms = max(SUSPECT_TIMES * slowest_ms, LEAST_SUSPECT_MS) if slowest_ms >= 0 else act_ms // 2
    return Patience(min(suspect_ms, act_ms), act_ms)


def slowest_of(tasks: Iterable[Running]) -> dict[str, int]:
    """The slowest step of each role, -1 where none is known."""
    slowest: dict[str, int] = {}
    for each in tasks:
        slowest[each.task.role] = max(slowest.get(each.task.role, -1), each.slowest_ms)
    return slowest


def judge(tasks: tuple[Running, ...], bounds: Mapping[str, Patience | None]) -> Judgement:
    """Look at all running tasks of a job, or at none: one that is missing may be who the others wait for.

    A task that reports no steps is never judged, but blamed when it is stopped and nobody goes on. One that
    hangs while others go on is blamed itself. Between the two nothing is decided: another task that has made
    no step since, but is not late by its own measure, is waited for. So is one that was started a while ago:
    it may have been restarted because it kept the others waiting.
    """
    judged = [(each, bound) for each in tasks if each.stalled_ms >= 0 and (bound := bounds[each.task.role])]
    suspected = frozenset(each.task for each, bound in judged if each.stalled_ms >= bound.suspect_ms)
    everyone = bool(suspected) and len(suspected) == len(judged)
    late = [
        (each, each.stalled_ms - bound.act_ms) for each, bound in judged if each.stalled_ms >= bound.act_ms
    ]
    if not late:
        return Judgement(suspected, everyone)
    worst, late_ms = max(late, key=lambda pair: pair[0].stalled_ms)
    fresh_ms = min((each.fresh_ms for each in tasks if each.fresh_ms >= 0), default=worst.stalled_ms)
    late_ms = min(late_ms, late_ms - worst.stalled_ms + fresh_ms)
    if late_ms < 0:
        return Judgement(suspected, everyone)
    if everyone:
        return Judgement(suspected, everyone, Hang(_blamed(tasks), worst.stalled_ms, late_ms, everyone))
    since_ms = worst.stalled_ms // 2
    if any(each.stalled_ms >= since_ms and each.task not in suspected for each, _ in judged):
        return Judgement(suspected, everyone)
    return Judgement(suspected, everyone, Hang(worst.task, worst.stalled_ms, late_ms, everyone))


def _blamed(tasks: tuple[Running, ...]) -> TaskId | None:
    """Who keeps everybody waiting: a task that is stopped, or the only one that there is."""
    stopped = [each.task for each in tasks if each.stopped]
    if stopped:
        return min(stopped, key=_rank)
    return tasks[0].task if len(tasks) == 1 else None


def _rank(task: TaskId) -> tuple[int, TaskId]:
    """A parameter server's stop stops all others; theirs may be a consequence."""
    return (_BLAME_ORDER.index(task.role) if task.role in _BLAME_ORDER else len(_BLAME_ORDER), task)
