"""The one writer of a job's switch: its states, the transitions between them, and the next switch. Pure.

A decision names the transition that it makes. `turn` checks it against the table (`Transition`) and returns
the write of the next switch, for a transaction that compares the switch as it was. An illegal transition
raises, so that nothing is written. If a rule of the leader tried it, the job is parked for that (`parking`).
If an operator's request did, the error is the answer.

docs/design.md shows the table (`python -m tests.support.design_page` writes it there).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TypedDict, Unpack

from supervisor.contract import keys
from supervisor.contract.boundaries import Put
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import Closing, JobPhase, JobSwitch, Ledger, Parked
from supervisor.contract.errors import InvalidTransition
from supervisor.control.decide.plan import put, short
from supervisor.control.decide.snapshot import Versioned

MAX_VALUE = 100
"""Characters of one value in the story of an illegal transition."""


class SwitchState(Enum):
    """The state of a job by its switch: the phase, and what divides it.

    A closed switch takes no commit while the base of the next generation is staged. A job that has failed
    holds tasks that are kept, stopped, for inspection. MIXED: the fields of several states at once. No
    transition leads there, and `park` alone leads away.
    """

    NONE = "none"
    WAITING = "waiting"
    WAITING_CLOSED = "waiting, closed"
    RUNNING = "running"
    RUNNING_CLOSED = "running, closed"
    FINISHING = "finishing"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    FAILED_HOLDING = "failed, holding"
    STOPPED = "stopped"
    PARKED = "parked"
    MIXED = "mixed"


_STATES: Mapping[tuple[JobPhase, bool, bool], SwitchState] = {
    **{(phase, False, False): SwitchState(phase.value) for phase in JobPhase if phase is not JobPhase.PARKED},
    (JobPhase.WAITING, True, False): SwitchState.WAITING_CLOSED,
    (JobPhase.RUNNING, True, False): SwitchState.RUNNING_CLOSED,
    (JobPhase.FAILED, False, True): SwitchState.FAILED_HOLDING,
}
"""(phase, whether it is closed, whether it holds tasks) -> state."""


def state_of(switch: JobSwitch | None) -> SwitchState:
    """The state that a switch is in; NONE where a job has no switch."""
    if switch is None:
        return SwitchState.NONE
    found = _STATES.get((switch.phase, switch.closing is not None, bool(switch.held)), SwitchState.MIXED)
    if switch.parked is None:
        return found
    return SwitchState.PARKED if found is SwitchState.FAILED else SwitchState.MIXED


Moves = Mapping[SwitchState, tuple[SwitchState, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One transition.

    Attributes:
        when: its occasion, for people.
        rules: the statements of docs/design.md that it serves.
        moves: from each state in which it begins, the states to which it may lead.
        changes: the fields that it may change. If `generation` is among them, it grows.
    """

    when: str
    rules: tuple[str, ...]
    moves: Moves
    changes: tuple[str, ...] = ()


def _lead(targets: tuple[SwitchState, ...], *sources: SwitchState) -> Moves:
    return dict.fromkeys(sources, targets)


def _stay(*states: SwitchState) -> Moves:
    return {state: (state,) for state in states}


_WAITING = (SwitchState.WAITING, SwitchState.WAITING_CLOSED)
_RUNNING = (SwitchState.RUNNING, SwitchState.RUNNING_CLOSED)
_CLOSED = (SwitchState.WAITING_CLOSED, SwitchState.RUNNING_CLOSED)
_ENDS = (SwitchState.SUCCEEDED, SwitchState.FAILED, SwitchState.STOPPED)
_OPENED: Moves = {
    SwitchState.WAITING_CLOSED: (SwitchState.WAITING,),
    SwitchState.RUNNING_CLOSED: (SwitchState.RUNNING,),
}
_RESTARTED = ("incident", "ledger", "restart_serial")
_ENDING = ("phase", "closing", "reason", "save_grace_ms", "uncommitted")


class Transition(Enum):
    """The table: all transitions that are legal."""

    SUBMIT = Row(
        "a job is submitted; on hold, or without the records of its checkpoints, it begins as `stopped`",
        ("12.8", "12.9"),
        _lead((SwitchState.WAITING, SwitchState.STOPPED), SwitchState.NONE, *_ENDS, SwitchState.PARKED),
    )
    CLOSE = Row(
        "a plan is prepared: its base is chosen, and no commit is taken from here on",
        ("7.4",),
        {
            SwitchState.WAITING: (SwitchState.WAITING_CLOSED,),
            SwitchState.RUNNING: (SwitchState.RUNNING_CLOSED,),
            **_stay(*_CLOSED),
        },
        ("closing",),
    )
    FALL_BACK = Row(
        "the base could not be read for `fallback_after`: the one before it is staged",
        ("8.3",),
        _stay(*_CLOSED),
        ("closing",),
    )
    REOPEN = Row(
        "the base is bad, or an operator asks for another: the next close chooses anew",
        ("7.6", "8.2"),
        _OPENED,
        ("closing",),
    )
    SUSPECT = Row(
        "a checkpoint is quarantined on suspicion: it is not to be the base",
        ("8.5",),
        {**_stay(SwitchState.WAITING, SwitchState.RUNNING), **_OPENED},
        ("closing",),
    )
    ABANDON = Row(
        "a plan is given up; a start that failed is charged",
        ("6.6", "7.6"),
        {
            **_stay(SwitchState.WAITING, SwitchState.RUNNING),
            SwitchState.WAITING_CLOSED: _WAITING,
            SwitchState.RUNNING_CLOSED: _RUNNING,
        },
        ("closing", "ledger"),
    )
    FLIP = Row(
        "every node has the base: the next generation comes into force",
        ("6.4", "7.5"),
        _lead((SwitchState.RUNNING,), *_CLOSED),
        (
            *("phase", "generation", "plan_id", "base", "closing", "reason", "blameless", "cold", "edition"),
            *("saver", "look", "uncommitted"),
            *_RESTARTED,
        ),
    )
    RESTART = Row(
        "a task restarts in place, as the next attempt",
        ("6.1", "13.1"),
        _stay(SwitchState.RUNNING),
        _RESTARTED,
    )
    MOVE = Row(
        "one task moves to another node",
        ("3.8", "6.2"),
        _stay(SwitchState.RUNNING),
        _RESTARTED,
    )
    PUBLISH = Row(
        "a task that has moved listens at another address than its ClusterSpec says",
        ("6.10",),
        _stay(SwitchState.RUNNING),
        ("edition",),
    )
    RESIZE = Row(
        "a worker joins the generation in force, or leaves it",
        ("6.11",),
        _stay(SwitchState.RUNNING),
        ("edition", "restart_serial"),
    )
    DECLINE = Row(
        "the checkpoint that an operator asked for cannot be restored: the job runs on as it is",
        ("8.7",),
        _lead((SwitchState.RUNNING,), *_RUNNING),
        ("closing", "restart_serial"),
    )
    FOLLOW_SAVER = Row(
        "another task than the expected one saves: its node commits",
        ("7.3",),
        _stay(SwitchState.RUNNING, SwitchState.FINISHING, SwitchState.STOPPING),
        ("saver",),
    )
    FINISH = Row(
        "all training tasks have ended well: servers end, the last checkpoint is committed",
        ("7.8",),
        _lead((SwitchState.FINISHING,), *_RUNNING),
        _ENDING,
    )
    STOP = Row(
        "an operator stops the job, with or without time to save",
        ("6.5",),
        _lead((SwitchState.STOPPING,), *_WAITING, *_RUNNING),
        _ENDING,
    )
    LOOK = Row(
        "what may write checkpoints is dead: the saver's node looks for the last save, then others do",
        ("7.8",),
        _stay(SwitchState.FINISHING, SwitchState.STOPPING),
        ("look",),
    )
    END_GRACE = Row(
        "the time to save, or to judge the last checkpoint, is over: what still runs is ended",
        ("6.5",),
        _stay(SwitchState.FINISHING, SwitchState.STOPPING),
        ("save_grace_ms",),
    )
    SUCCEED = Row(
        "nothing runs any more, and the last checkpoint is dealt with",
        ("7.8",),
        _lead((SwitchState.SUCCEEDED,), SwitchState.FINISHING),
        ("phase", "reason", "restart_serial", "uncommitted"),
    )
    END = Row(
        "the same, of a job that an operator stopped",
        ("7.8",),
        _lead((SwitchState.STOPPED,), SwitchState.STOPPING),
        ("phase", "reason", "uncommitted"),
    )
    FAIL = Row(
        "the budget is spent, no base is left, or the job's rules say so; tasks may be kept for inspection",
        ("8.3", "8.4", "8.5", "13.3"),
        _lead((SwitchState.FAILED, SwitchState.FAILED_HOLDING), *_WAITING, *_RUNNING),
        ("phase", "base", "closing", "reason", "restart_serial", "ledger", "held"),
    )
    END_HOLD = Row(
        "what was kept for inspection has ended, or an operator ends it",
        ("6.5",),
        _lead((SwitchState.FAILED,), SwitchState.FAILED_HOLDING),
        ("held",),
    )
    START = Row(
        "an operator starts a job that has ended",
        ("6.6", "8.4"),
        _lead((SwitchState.WAITING,), *_ENDS, SwitchState.FAILED_HOLDING),
        ("phase", "reason", "ledger", "held", "uncommitted"),
    )
    IMPORT = Row(
        "a checkpoint that was made elsewhere is the next base",
        ("7.11",),
        _stay(*_ENDS, SwitchState.PARKED),
        ("generation", "base"),
    )
    REBUILD = Row(
        "the records of the job's checkpoints are made again from its store",
        ("8.4", "12.8"),
        _stay(*_ENDS, SwitchState.PARKED),
        ("generation", "base", "reason"),
    )
    PARK = Row(
        "an unexpected error was met that is about this job alone",
        ("13.6",),
        _lead(
            (SwitchState.PARKED,),
            *(each for each in SwitchState if each not in (SwitchState.NONE, SwitchState.PARKED)),
        ),
        ("parked", "held", "restart_serial", *_ENDING),
    )
    RELEASE = Row(
        "an operator releases the job: what was to run is stopped, and started again if that is wanted",
        ("13.6",),
        _lead((SwitchState.STOPPING, *_ENDS), SwitchState.PARKED),
        ("phase", "reason", "parked"),
    )
    DELETE = Row(
        "an operator deletes the job: nothing of it can run any more",
        ("12.8",),
        _lead((SwitchState.NONE,), *_ENDS, SwitchState.PARKED),
    )


class Changes(TypedDict, total=False):
    """The fields that transitions change: all but those that say whose switch it is."""

    phase: JobPhase
    generation: int
    plan_id: str
    base: CheckpointRef | None
    closing: Closing | None
    incident: str
    ledger: Ledger
    restart_serial: int
    reason: str
    save_grace_ms: int
    held: tuple[str, ...]
    blameless: bool
    cold: bool
    saver: str
    parked: Parked | None
    edition: int
    look: int
    uncommitted: str


def turn(present: Versioned[JobSwitch], transition: Transition, **changes: Unpack[Changes]) -> Put:
    """The write of the switch as a transition leaves it; raises InvalidTransition for an illegal one."""
    __tracebackhide__ = True  # the place of an illegal transition is the decision that asks for it
    before, row = present.value, transition.value
    after = replace(before, **changes)
    if why := _no_move(before, row, after) or _no_change(before, row, after):
        raise _illegal(present, transition, after, why)
    return put(present.key, after)


def first_switch(
    before: Versioned[JobSwitch] | None,
    job: str,
    job_uuid: str,
    *,
    generation: int,
    base: CheckpointRef | None,
    restart_serial: int,
    on_hold: str,
) -> Put:
    """The first switch of a job, in place of the one that an earlier job of its name has left.

    `on_hold`: why it waits for a start; empty if it does not.
    """
    phase = JobPhase.STOPPED if on_hold else JobPhase.WAITING
    after = JobSwitch(
        job, job_uuid, phase, generation, base=base, restart_serial=restart_serial, reason=on_hold
    )
    if why := _no_move(before.value if before is not None else None, Transition.SUBMIT.value, after):
        raise _illegal(before, Transition.SUBMIT, after, why)
    return put(keys.switch(job), after)


def check_removal(present: Versioned[JobSwitch]) -> None:
    """Raise InvalidTransition unless the switch may go, with all other records of its job."""
    if why := _no_move(present.value, Transition.DELETE.value, None):
        raise _illegal(present, Transition.DELETE, None, why)


def _no_move(before: JobSwitch | None, row: Row, after: JobSwitch | None) -> str:
    """Why the table has no such move; empty if it has."""
    targets = row.moves.get(state_of(before))
    if targets is None:
        return f"it begins in {_named(row.moves)}"
    return "" if state_of(after) in targets else f"from there it leads to {_named(targets)}"


def _no_change(before: JobSwitch, row: Row, after: JobSwitch) -> str:
    """Why the move may not change what it does; empty if it may."""
    foreign = [name for name in _changed(before, after) if name not in row.changes]
    if foreign:
        return f"it may not change {', '.join(foreign)}"
    if "generation" in row.changes and after.generation <= before.generation:
        return f"generation {after.generation} is not above {before.generation}"
    return ""


def _changed(before: JobSwitch, after: JobSwitch) -> list[str]:
    names = (field.name for field in fields(JobSwitch))
    return [name for name in names if getattr(before, name) != getattr(after, name)]


def _named(states: Iterable[SwitchState]) -> str:
    return " or ".join(f"`{state.value}`" for state in states)


def _illegal(
    present: Versioned[JobSwitch] | None, transition: Transition, after: JobSwitch | None, why: str
) -> InvalidTransition:
    before, row = present.value if present is not None else None, transition.value
    known = before or after
    assert known is not None
    story = [f"It serves {' and '.join(row.rules)} of docs/design.md: {row.when}."]
    if present is not None:
        plan, incident = (name or "none" for name in (present.value.plan_id, present.value.incident))
        story.append(
            f"The switch is at revision {present.mod_revision}, with plan {plan}, incident {incident}."
        )
    if before is not None and after is not None:
        for name in _changed(before, after):
            was, now = (short(str(getattr(each, name)), MAX_VALUE) for each in (before, after))
            story.append(f"{name}: {was} -> {now}.")
    name = transition.name.lower()
    return InvalidTransition(
        f"illegal transition `{name}` of job {known.job}, generation {known.generation}, from "
        f"`{state_of(before).value}` to `{state_of(after).value}`: {why}.",
        tuple(story),
    )
