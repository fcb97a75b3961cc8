"""Detection of hangs: tasks that show no sign of life, the time that each may be silent, and the task to
blame.

Signs of training are new output, steps and saves. Signs of work (processor time, GPUs, files) tell a task
that does something, say an evaluation or a save, from one that does nothing. The truth table is in
docs/progress.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from supervisor.contract.ids import TaskId
from supervisor.contract.job.spec import CHIEF_ROLES, ProgressSpec
from supervisor.contract.observed import Sign

OUTPUT, STEP, SAVE = "output", "step", "save"
TRAINING = (STEP, OUTPUT, SAVE)
WORK = ("cpu", "gpu", "files")
DATA = "data"
"""Shown by a task that waits for its data. It is no evidence of its own: it says why others are missing."""
SUSPECT_TIMES, ACT_TIMES = 3, 10
LEAST_SUSPECT_MS, LEAST_ACT_MS = 5_000, 30_000
WORK_TIMES, LEAST_WORK_MS = 3, 20_000
IDLE_MS = 600_000
"""Milliseconds without a sign of work after which a task that shows no sign of training is suspected.

A task that makes no step for as long is suspected too, even if it writes new output.
"""
SAVES_LEAST = 3
MOST_DOUBLINGS = 6
TOGETHER_PART = 6
"""A late task is waited with while another one is within this part of its patience of being late, too.

Tasks that stop for one reason stop one soon after the other. The wait takes at most as long as the patience.
"""
_BLAME_ORDER = ("ps", *CHIEF_ROLES, "worker")
WAITS = "waits for data whose store does not answer"
_FLAT = {
    STEP: "made no step",
    OUTPUT: "written nothing new",
    SAVE: "saved nothing",
    "cpu": "used hardly any processor time",
    "gpu": "hardly used its GPUs",
    "files": "hardly read or written files",
}


@dataclass(frozen=True, slots=True)
class Running:
    """A task that runs on a node whose heartbeats arrive. Times are in milliseconds.

    Attributes:
        signs: the signs that it has shown, each with its age; empty when they cannot be read. A step counts
            from its first showing, the others once their pauses are learnt.
        silent_ms: time since it wrote any output, even output that repeats itself; -1: never, or unknown.
        stopped: its process is stopped by a signal.
        fresh_ms: time since its start, if it must make steps and has made none; -1 otherwise.
    """

    task: TaskId
    signs: tuple[Sign, ...] = ()
    silent_ms: int = -1
    stopped: bool = False
    fresh_ms: int = -1

    @property
    def training(self) -> tuple[Sign, ...]:
        """Its signs of training. A save that was seen while the task did nothing is not its own: another
        task has made it, or it was made long before.
        """
        idle_ms = min((each.age_ms for each in self.signs if each.name in WORK), default=0)
        return tuple(
            each
            for each in self.signs
            if each.name in TRAINING and not (each.name == SAVE and idle_ms - each.age_ms >= LEAST_WORK_MS)
        )

    @property
    def stalled_ms(self) -> int:
        """Milliseconds since its last sign of training; -1 when it has shown none, or they cannot be read."""
        return min((each.age_ms for each in self.training), default=-1)

    @property
    def stepless_ms(self) -> int:
        """Milliseconds since its last step, or since its last sign of training if it shows no steps."""
        return next((each.age_ms for each in self.signs if each.name == STEP), self.stalled_ms)


@dataclass(frozen=True, slots=True)
class Patience:
    """The times that a sign may be flat before its task is suspected, and before the leader acts."""

    suspect_ms: int
    act_ms: int


Bounds = Mapping[tuple[str, str], Patience]
"""Role and sign -> patience. A sign without patience is no evidence of a hang; where it is shown, it is a
sign of life."""


@dataclass(frozen=True, slots=True)
class Hang:
    """A hang that the leader acts on.

    Attributes:
        root: the task to blame; None when all stopped at the same time and none stands out.
        stalled_ms: time since the last sign of training of the root, or without a root of the first task.
        late_ms: time since the bound for acting was passed.
        everyone: no task of the job shows a sign of training any more.
        flat: names of the signs that are flat.
        writes: one of the tasks still writes output that repeats itself.
        others: tasks that hang as the root does, while the rest of the job goes on.
        waits: the root, if it waits for its data; without a root the first task that does. None if none does.
    """

    root: TaskId | None
    stalled_ms: int
    late_ms: int
    everyone: bool
    flat: tuple[str, ...] = ()
    writes: bool = False
    others: tuple[TaskId, ...] = ()
    waits: TaskId | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of `judge`.

    Attributes:
        suspected: tasks that may hang: they show no sign of training, or have made no step for long.
        everyone: no task shows a sign of training.
        hang: the hang to act on now; None if there is none.
        busy: suspected tasks that work, write or save, or are assumed to.
    """

    suspected: frozenset[TaskId] = frozenset()
    everyone: bool = False
    hang: Hang | None = None
    busy: frozenset[TaskId] = frozenset()
    look: _Look | None = field(default=None, repr=False, compare=False)

    def hang_beside(self, left: Collection[TaskId]) -> Hang | None:
        """The hang to act on where those of some tasks are left alone; None if there is none.

        Where no task goes on there is no other: all that hang are one failure.
        """
        if self.look is None or self.everyone:
            return None
        look = self.look
        return _first_hang(_Look(look.tasks, look.judged, by_training=look.by_training, left=left))


def bounds_of(
    tasks: Iterable[Running], spec: ProgressSpec, startup_ms: int | None, *, hung_before: int
) -> dict[tuple[str, str], Patience]:
    """The patience for each sign of training, by role and sign; empty where hangs are not watched.

    It is derived from the longest pause that a task of the role has shown. The floor of 30 s covers work
    between two steps that shows no sign. Before the pauses of steps are learnt, the start-up deadline holds
    for them. Saves have long pauses, so they are judged only where there is neither a step nor output to
    judge. Each restart for a hang doubles the derived values, so that a program with a longer pause than
    expected is not killed for it repeatedly.
    """
    if not spec.watch_hangs:
        return {}
    found: dict[tuple[str, str], Patience] = {}
    roles = {each.task.role for each in tasks}
    for role in roles:
        shown = [sign for each in tasks if each.task.role == role for sign in each.training]
        for name in TRAINING:
            pauses = [sign.pause_ms for sign in shown if sign.name == name]
            known_ms = max(pauses, default=-1)
            if not pauses or (known_ms < 0 and name != STEP):
                continue
            if name == SAVE and ((role, STEP) in found or (role, OUTPUT) in found):
                continue
            bound = _patience(known_ms, spec, startup_ms, hung_before)
            if bound is not None:
                found[role, name] = bound
    return found


def _patience(pause_ms: int, spec: ProgressSpec, startup_ms: int | None, hung_before: int) -> Patience | None:
    act_ms = spec.act_after_ms
    if act_ms is None:
        if pause_ms < 0:
            act_ms = startup_ms
        else:
            act_ms = max(ACT_TIMES * pause_ms, LEAST_ACT_MS) << min(hung_before, MOST_DOUBLINGS)
    if act_ms is None:
        return None
    suspect_ms = spec.suspect_after_ms
    if suspect_ms is None:
        suspect_ms = max(SUSPECT_TIMES * pause_ms, LEAST_SUSPECT_MS) if pause_ms >= 0 else act_ms // 2
    return Patience(min(suspect_ms, act_ms), act_ms)


@dataclass(frozen=True, slots=True)
class _Standing:
    """The signs of one task against their bounds.

    Attributes:
        quiet: all its signs of training are older than their bounds for suspicion.
        late_ms: time since all of them passed their bounds for acting; negative before that.
        busy: it works.
        step: the bound of its steps; None without one.
    """

    each: Running
    quiet: bool
    late_ms: int
    busy: bool
    step: Patience | None

    def late_since(self, fresh_ms: int) -> int:
        """`late_ms`, where nothing counts from before the start of a task `fresh_ms` ago."""
        return min(self.late_ms, self.late_ms - self.each.stalled_ms + fresh_ms)


def judge(tasks: tuple[Running, ...], bounds: Bounds, *, by_training: bool = False) -> Judgement:
    """Judge the running tasks of a job.

    `tasks` must be all of them: the others may wait for one that is left out.

    A task without a bound is never judged, but it is blamed when it is stopped by a signal and no task goes
    on. A task that hangs while others make steps is blamed itself; of several the one that stopped first, and
    the verdict names the others. Between these two cases the leader waits, for any of four kinds of task:

    - a task that has made no step since, is not late by its own bound, and works or writes new output: the
      late task may wait at a barrier until it has evaluated;
    - a task that has shown a sign of training since, but none lately;
    - a task that was started a while ago: it may have been restarted because the others waited for it;
    - a task that is about to be late, so that one verdict is about all that hang together.

    Where a late task is stopped by a signal, the leader waits for none of the first two, and names no other
    that is not stopped: it may be who they wait for.

    `by_training`: the job has set its own bound. Then only signs of training count, for each task by itself.
    """
    stands = [(each, _stand(each, bounds, by_training=by_training)) for each in tasks]
    judged = [found for _, found in stands if found is not None]
    look = _Look(tasks, judged, by_training=by_training)
    suspected = frozenset(found.each.task for found in look.quiet)
    busy = frozenset(found.each.task for found in look.quiet if found.busy)
    idle = frozenset(each.task for each, found in stands if found is None and _idles(each))
    stepless = frozenset(found.each.task for found in judged if not found.quiet and _is_stepless(found))
    hang = _first_hang(look)
    return Judgement(suspected | idle | stepless, look.everyone, hang, busy | stepless, look)


class _Look:
    """The tasks of a job against their bounds, at one look. Those in `left` are not blamed, whatever they do.

    Attributes:
        quiet: those that are suspected for their signs of training.
        everyone: all tasks with a bound are.
        stopped: a late task that may be blamed is stopped by a signal.
        idlers: tasks that may be blamed now or soon. Where one is stopped, only tasks that are.
        late: those of them that are late, in the order in which they stopped.
        fresh_ms: time since the newest start of a task that has yet to make a step.
    """

    def __init__(
        self,
        tasks: tuple[Running, ...],
        judged: list[_Standing],
        *,
        by_training: bool,
        left: Collection[TaskId] = (),
    ) -> None:
        self.tasks, self.judged, self.by_training = tasks, judged, by_training
        self.quiet = [found for found in judged if found.quiet]
        self.everyone = bool(self.quiet) and len(self.quiet) == len(judged)
        idlers = [found for found in self.quiet if not found.busy and found.each.task not in left]
        self.stopped = any(found.each.stopped and found.late_ms >= 0 for found in idlers)
        self.idlers = [found for found in idlers if found.each.stopped] if self.stopped else idlers
        late = [found for found in self.idlers if found.late_ms >= 0]
        self.late = sorted(late, key=lambda found: found.each.stalled_ms, reverse=True)
        longest_ms = self.late[0].each.stalled_ms if late else 0
        self.fresh_ms = min((each.fresh_ms for each in tasks if each.fresh_ms >= 0), default=longest_ms)


def _first_hang(look: _Look) -> Hang | None:
    """The hang of the task that stopped first."""
    worst = next(iter(look.late), None)
    if worst is None or _waits_for_others(look, worst):
        return None
    if worst.late_since(look.fresh_ms) < 0:
        return None
    return _of_all(look, worst) if look.everyone else _of_some(look, worst)


def _waits_for_others(look: _Look, worst: _Standing) -> bool:
    """Whether the late task may wait for one that works, or that has stopped or started since."""
    since_ms = worst.each.stalled_ms // 2
    goes_on = (found.each for found in look.judged if found.busy or not found.quiet)
    behind_ms = (each.stalled_ms if look.by_training else each.stepless_ms for each in goes_on)
    if not look.stopped and any(each_ms >= since_ms for each_ms in behind_ms):
        return True
    starting = (each for each in look.tasks if each.fresh_ms >= 0 and each.training)
    others = (*starting, *(found.each for found in look.judged))
    return look.everyone and any(each.stalled_ms < since_ms for each in others)


def _of_all(look: _Look, worst: _Standing) -> Hang:
    """The hang of a job of which no task shows a sign of training."""
    root = _blamed(look.tasks)
    blamed = [found for found in look.judged if found.each.task == root] or look.quiet
    return Hang(
        root,
        worst.each.stalled_ms,
        worst.late_since(look.fresh_ms),
        everyone=True,
        flat=_flat(blamed, by_training=look.by_training),
        writes=_writes(blamed),
        waits=_waits(look.quiet if root is None else blamed),
    )


def _of_some(look: _Look, worst: _Standing) -> Hang | None:
    """The hang of a task, and of those that hang as it does; None while another one is about to be late."""
    patience_ms, late_ms = worst.each.stalled_ms - worst.late_ms, worst.late_since(look.fresh_ms)
    lates_ms = [(found, found.late_since(look.fresh_ms)) for found in look.idlers]
    soon = any(-patience_ms // TOGETHER_PART <= each_ms < 0 for _, each_ms in lates_ms)
    if soon and late_ms < patience_ms:
        return None

    def lacks(found: _Standing) -> tuple[tuple[str, ...], bool, bool]:
        flat = _flat([found], by_training=look.by_training)
        return flat, _writes([found]), waits_for_data(found.each)

    # The consequences depend on these three: none of the others is to have them worse than it would alone.
    flat, writes, waits = lacks(worst)
    others = tuple(
        found.each.task
        for found, each_ms in lates_ms
        if found is not worst and each_ms >= 0
        if lacks(found) == (flat, writes, waits)
    )
    root = worst.each.task
    waiting = root if waits else None
    return Hang(root, worst.each.stalled_ms, late_ms, False, flat, writes, others, waiting)


def slow_starts(
    tasks: Iterable[Running], startup_ms: int | None, *, steps_are_read: bool
) -> frozenset[TaskId]:
    """Tasks that were started at least `startup_ms` ago and have made no step, but work or write new output.

    They may compile or spin, so they are reported and not ended. Tasks that never print steps are left out: a
    task prints steps if `steps_are_read`, or if another task of its role has made one.
    """
    tasks = tuple(tasks)
    stepping = {each.task.role for each in tasks if any(sign.name == STEP for sign in each.signs)}
    return frozenset(
        each.task
        for each in tasks
        if startup_ms is not None and each.fresh_ms >= startup_ms and lives(each.signs)
        if steps_are_read or each.task.role in stepping
    )


def idle_starts(tasks: Iterable[Running], startup_ms: int | None) -> frozenset[TaskId]:
    """Tasks that were started at least half of `startup_ms` ago, have made no step, and neither work nor
    write: at its end they are ended, and until then their stacks are taken.
    """
    return frozenset(
        each.task
        for each in tasks
        if startup_ms is not None and 2 * each.fresh_ms >= startup_ms and each.signs and not lives(each.signs)
    )


def bounds_for(each: Running, bounds: Bounds) -> dict[str, Patience]:
    """The bounds of a task's signs of training, by sign: those of its role.

    Empty until the task itself has made a step or has a learnt pause: the pauses of training do not apply to
    a start.
    """
    if not any(sign.name == STEP or sign.pause_ms >= 0 for sign in each.training):
        return {}
    found = {sign.name: bounds.get((each.task.role, sign.name)) for sign in each.training}
    return {name: bound for name, bound in found.items() if bound is not None}


def _stand(each: Running, bounds: Bounds, *, by_training: bool) -> _Standing | None:
    own = bounds_for(each, bounds)
    if not own:
        return None
    # What is not learnt, and is shown now, is life all the same.
    least = Patience(max(b.suspect_ms for b in own.values()), max(b.act_ms for b in own.values()))
    pairs = [(sign, own.get(sign.name, least)) for sign in each.training]
    return _Standing(
        each,
        quiet=all(sign.age_ms >= bound.suspect_ms for sign, bound in pairs),
        late_ms=min(sign.age_ms - bound.act_ms for sign, bound in pairs),
        busy=not by_training and not each.stopped and works(each.signs),
        step=own.get(STEP),
    )


def works(signs: Iterable[Sign]) -> bool:
    """Whether a sign of work is fresh."""
    work = [sign for sign in signs if sign.name in WORK]
    return any(sign.age_ms < max(WORK_TIMES * sign.pause_ms, LEAST_WORK_MS) for sign in work)


def lives(signs: Iterable[Sign]) -> bool:
    """Whether a task that has made no step yet works, or writes what is new."""
    signs = tuple(signs)
    return works(signs) or any(each.name == OUTPUT and each.age_ms < LEAST_ACT_MS for each in signs)


def _is_stepless(found: _Standing) -> bool:
    """Whether a task that writes or saves has made no step for long.

    It may evaluate, or only a side thread is alive.
    """
    return found.step is not None and found.each.stepless_ms >= max(IDLE_MS, found.step.act_ms)


def _idles(each: Running) -> bool:
    """Whether a task without a sign of training to judge has shown no sign of work for IDLE_MS."""
    work = [sign for sign in each.signs if sign.name in WORK]
    return bool(work) and all(sign.age_ms >= IDLE_MS for sign in each.signs if sign.name != DATA)


def _flat(blamed: list[_Standing], *, by_training: bool) -> tuple[str, ...]:
    names = {sign.name for found in blamed for sign in found.each.signs}
    known = TRAINING if by_training else (*TRAINING, *WORK)
    return tuple(name for name in known if name in names)


def _writes(blamed: list[_Standing]) -> bool:
    return any(0 <= found.each.silent_ms < LEAST_ACT_MS for found in blamed)


def _waits(blamed: list[_Standing]) -> TaskId | None:
    return next((found.each.task for found in blamed if waits_for_data(found.each)), None)


def waits_for_data(each: Running) -> bool:
    """Whether a task waits for its data, or tries to get it again and again."""
    return any(sign.name == DATA and sign.age_ms < LEAST_WORK_MS for sign in each.signs)


def describe(each: Running) -> str:
    """A sentence for people about the flat signs of a task and their ages."""
    shown = {sign.name: sign.age_ms for sign in each.signs if sign.age_ms >= LEAST_SUSPECT_MS}
    words = [f"{_FLAT[name]} for {shown[name] / 1000:.1f} s" for name in (*TRAINING, *WORK) if name in shown]
    lacks = f"has {', '.join(words)}" if words else "shows no sign of life"
    return f"{lacks}, and {WAITS}" if waits_for_data(each) else lacks


def _blamed(tasks: tuple[Running, ...]) -> TaskId | None:
    """The task that all others wait for: one that is stopped by a signal, or the only task of the job."""
    stopped = [each.task for each in tasks if each.stopped]
    if stopped:
        return min(stopped, key=_rank)
    return tasks[0].task if len(tasks) == 1 else None


def _rank(task: TaskId) -> tuple[int, TaskId]:
    """Sort key: a parameter server first, because all other tasks stop after it."""
    return (_BLAME_ORDER.index(task.role) if task.role in _BLAME_ORDER else len(_BLAME_ORDER), task)
