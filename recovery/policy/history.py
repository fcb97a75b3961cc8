"""The failures of a job's present life, and how often they came in a row.

They are read from the incidents, which are in etcd: every leader counts the same, and no monotonic time has
to be stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.incident import Cause, Incident
from supervisor.contract.job.spec import Scope

STEADY_MS = 60_000
"""Milliseconds of life after which an attempt counts as one that worked, even if its steps cannot be read."""

ASKED = frozenset({Cause.SUBMITTED, Cause.OPERATOR})
REPORTED = frozenset({Cause.PEER_LOST, Cause.PORT_CLASH})
"""Causes that are known from the program's output alone. A later step does not prove that they are over; a
newer checkpoint does."""


@dataclass(frozen=True, slots=True)
class Past:
    """A recorded failure. `seen_ms`: when this leader first saw the record, on its own clock.

    `revision`: etcd's revision at the start of the failed attempt, or at the record's own write without an
    attempt.
    """

    incident: Incident
    seen_ms: int
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Present:
    """The present failure, with the values that history is compared with.

    Attributes:
        stepped: the failed attempt made a step; for one that restarts ALL, its generation did.
        base: the base checkpoint of the generation in force.
        newest: the newest commit that can be restored.
        at_ms, wall_ms: the time at which this leader learnt of it, on its own clock and by the wall clock.
        ran: the failed attempt had run. The program cannot have ended the launcher of another.
    """

    cause: Cause
    scope: Scope
    member: str
    node: str
    stepped: bool
    base: CheckpointRef | None
    newest: CheckpointRef | None
    at_ms: int
    wall_ms: int
    ran: bool = True


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of failures. Each includes the present failure if that is of the same kind.

    Attributes:
        task: program faults of this task in a row without a step of its own.
        window: program faults of the job within the window.
        machines: all other failures in a row without a step.
        launchers: losses of a launcher by an attempt that ran, in a row, each within STEADY_MS of the one
            before, without a newer checkpoint between; with steps or without. They are losses of this task,
            or of tasks for which the whole job was restarted.
        clashes: ends for a port that was taken, in a row without a newer checkpoint.
    """

    task: int = 0
    window: int = 0
    machines: int = 0
    launchers: int = 0
    clashes: int = 0


def present_life(pasts: Iterable[Past]) -> tuple[Past, ...]:
    """The failures since an operator last started or restarted the whole job, in the order given (oldest
    first).
    """
    life: list[Past] = []
    for past in pasts:
        if past.incident.cause in ASKED and past.incident.scope is Scope.ALL:
            life.clear()
        life.append(past)
    return tuple(life)


def trained(life: Iterable[Past]) -> bool:
    """Whether a generation of this life has made a step, as far as records show."""
    return any(goes_on(past.incident) or failed_after_a_step(past.incident) for past in life)


def goes_on(incident: Incident) -> bool:
    """Whether a step was made after it."""
    return incident.to_step >= 0 or "first_step" in incident.phases_ms


def tally(life: tuple[Past, ...], present: Present, window_ms: int) -> Tally:
    """Count the present failure among those of its life."""
    fault, lost = present.cause.program_fault, present.cause is Cause.LAUNCHER_LOST and present.ran
    window = sum(past.incident.cause.program_fault and _age_ms(past, present) < window_ms for past in life)
    return Tally(
        task=_in_a_row(life, present, _FAULTS) if fault else 0,
        window=window + fault,
        machines=0 if fault or present.cause in ASKED else _in_a_row(life, present, _OTHERS),
        launchers=_in_a_row(life, present, _LAUNCHERS, by_steps=False) if lost else 0,
        clashes=_in_a_row(life, present, _CLASHES) if present.cause in _CLASHES else 0,
    )


_FAULTS = frozenset(cause for cause in Cause if cause.program_fault)
_OTHERS = frozenset(Cause) - _FAULTS
_CLASHES = frozenset({Cause.PORT_CLASH})
_LAUNCHERS = frozenset({Cause.LAUNCHER_LOST})


def _in_a_row(
    life: tuple[Past, ...], present: Present, causes: frozenset[Cause], *, by_steps: bool = True
) -> int:
    """The present failure and those of these causes before it, since the task, or the job, last worked.

    `by_steps`: a step shows that it worked; else only a newer checkpoint does, or a life of STEADY_MS.
    """
    count = 1
    later_ms, later_wall_ms = present.at_ms, present.wall_ms
    worked = by_steps and present.stepped
    for past in reversed(life):
        incident = past.incident
        if incident.cause in ASKED:
            if incident.scope is Scope.ALL or incident.member == present.member:
                break
            continue
        of_others = incident.scope is Scope.TASK and incident.member != present.member
        if of_others and (present.scope is Scope.TASK or not by_steps):
            continue
        lived_ms = max(later_ms - past.seen_ms, later_wall_ms - incident.wall_ms)
        saved = _saved_since(incident, present.newest)
        if present.cause in REPORTED:
            worked = saved
        elif lived_ms >= STEADY_MS or (saved and not by_steps):
            worked = True
        if worked:
            break
        count += incident.cause in causes and (by_steps or incident.began > 0)
        worked = by_steps and failed_after_a_step(incident)
        later_ms, later_wall_ms = past.seen_ms, incident.wall_ms
    return count


def failed_after_a_step(incident: Incident) -> bool:
    """Whether the failed task had made a step; for a failure of the whole job, whether its generation had."""
    if incident.cause in ASKED:
        return False
    step = incident.from_step if incident.scope is Scope.ALL else incident.last_step
    return incident.stepped or step >= 0


def _saved_since(incident: Incident, newest: CheckpointRef | None) -> bool:
    """Whether a checkpoint was committed that is further than the job was at that failure."""
    base_step = incident.base.step if incident.base is not None else -1
    return newest is not None and newest.step > max(incident.from_step, base_step)


def _age_ms(past: Past, present: Present) -> int:
    """A lower bound of a failure's age: by this leader's own clock, or by the wall clock if that gives more.

    A leader that took over has seen all records for the first time just now, so by its own clock alone old
    faults would count as new. If the wall clock jumps ahead, a fault leaves the window early; if it jumps
    back, the leader's own clock makes up for it. In both cases faults in a row still end the job.
    """
    return max(present.at_ms - past.seen_ms, present.wall_ms - past.incident.wall_ms)
