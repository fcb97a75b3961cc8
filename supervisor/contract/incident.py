"""Incidents: failures with their recovery (rule 13). Events: lines of history for an operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.job.spec import Scope


class Cause(Enum):
    """Known causes of failures."""

    SUBMITTED = "submitted"
    OPERATOR = "operator"
    PROGRAM_EXIT = "program_exit"
    PROGRAM_SIGNAL = "program_signal"
    EXITED_EARLY = "exited_early"
    KILLED = "killed"
    LAUNCHER_LOST = "launcher_lost"
    START_FAILED = "start_failed"
    DEADLINE = "deadline"
    NODE_LOST = "node_lost"
    BAD_CHECKPOINT = "bad_checkpoint"
    OOM = "oom"
    HANG = "hang"
    NAN_LOSS = "nan_loss"
    USER_ERROR = "user_error"
    MISSING_PROGRAM = "missing_program"
    PORT_CLASH = "port_clash"
    PEER_LOST = "peer_lost"
    DATA_LOSS = "data_loss"
    OUT_OF_RANGE = "out_of_range"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    NEVER_READY = "never_ready"
    WALL_TIME = "wall_time"
    GPU = "gpu"
    DRAINED = "drained"
    STORE_LOST = "store_lost"
    BASE_MISSED = "base_missed"
    RESIZED = "resized"
    LEFT_LOCK = "left_lock"

    @property
    def program_fault(self) -> bool:
        """Whether it burns the job's restart budget."""
        return self in _PROGRAM_FAULTS


_PROGRAM_FAULTS = frozenset(
    {
        Cause.PROGRAM_EXIT,
        Cause.PROGRAM_SIGNAL,
        Cause.EXITED_EARLY,
        Cause.START_FAILED,
        Cause.OOM,
        Cause.HANG,
        Cause.NAN_LOSS,
        Cause.USER_ERROR,
        Cause.MISSING_PROGRAM,
        Cause.DATA_LOSS,
        Cause.OUT_OF_RANGE,
        Cause.RESOURCE_EXHAUSTED,
        Cause.NEVER_READY,
        Cause.WALL_TIME,
    }
)

STANDING_STILL = frozenset({Cause.HANG, Cause.NEVER_READY})
"""Causes for which an incident records stacks. After other causes a stack from an earlier suspicion would
mislead."""


OMITTED = "[...]"
"""A line of `tail`: the exception that ended the program is before it, and output after that is left out."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception: its class as a traceback names it, its message (shortened), and where it was raised.

    `frames`: the last few, `FILE:LINE in FUNCTION`, the innermost last.
    """

    name: str
    text: str = ""
    frames: tuple[str, ...] = ()


class Outcome(Enum):
    """How an incident ended."""

    OPEN = "open"
    RECOVERED = "recovered"
    FAILED = "failed"
    ENDED = "ended"
    SUPERSEDED = "superseded"


PHASES = ("detected", "decided", "ready", "switched", "restored", "first_step", "all_running")
"""The phases in order. The last one is present if a step was made before every restarted task ran."""


class NotJoined(Enum):
    """Whose fault it is that a worker left before it had done any work."""

    PROGRAM = "program"
    MACHINE = "machine"


@dataclass(frozen=True, slots=True)
class Incident:
    """One failure and its recovery.

    Attributes:
        rule: the rule that chose the scope, in words of `recovery.policy`.
        from_step: the job's step at the failure; -1 if it has made none, or none is known.
        to_step: the step that training went on from; -1 until known.
        phases_ms: duration of each phase of PHASES that is over; they add up to `total_ms`.
        stack: the stacks of the failed task's threads, taken for this incident; at most 6 KiB.
        from_generation: the generation that failed.
        base: the checkpoint that the failed generation started from; None: from scratch.
        to_base: the checkpoint that the generation after it began from. None: from scratch, or there is none.
        last_step: the newest step of the failed attempt itself; -1: it made none, or is not known.
        lost_steps: steps that the restart gave up, made since the checkpoint that it began from; -1: unknown.
        stepped: the failed task had made a step, of any number; for a failure of the whole job, its
            generation had.
        flat: for a hang, the signs of life that were missing.
        not_joined: of a join that came to nothing (rule 6.11); None: of all else.
        error: the error of its own code that ended the program, without its message; None: another end.
        sizes: the counts with which the job had trained, of the roles that got another with this restart.
        began: etcd's revision at the start of the failed attempt; 0: no attempt has failed, the one that lost
            its launcher had not run yet, or unknown.
    """

    id: str
    job: str
    cause: Cause
    task: str
    node: str
    rule: str
    scope: Scope
    detail: str
    wall_ms: int
    generation: int
    plan_id: str = ""
    member: str = ""
    attempt: int = 0
    from_step: int = -1
    to_step: int = -1
    phases_ms: dict[str, int] = field(default_factory=dict)
    outcome: Outcome = Outcome.OPEN
    tail: str = ""
    stack: str = ""
    from_generation: int = 0
    base: CheckpointRef | None = None
    last_step: int = -1
    lost_steps: int = -1
    began: int = 0
    to_base: CheckpointRef | None = None
    stepped: bool = False
    flat: tuple[str, ...] = ()
    not_joined: NotJoined | None = None
    error: Raised | None = None
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def total_ms(self) -> int:
        """Sum of the phases so far."""
        return sum(self.phases_ms.values())

    @property
    def reached(self) -> int:
        """The newest step before the restart: others may train on after a failure. -1: none is known."""
        base = self.to_base.step if self.to_base is not None else 0
        anew = 0 <= self.to_step < base  # then the steps are counted from there
        return self.from_step if anew or self.lost_steps <= 0 else max(self.from_step, base + self.lost_steps)

    @property
    def to_first_step_ms(self) -> int:
        """Sum of the phases up to the first new step."""
        return self.total_ms - self.phases_ms.get("all_running", 0)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the operator's history. `fields` hold its subject and its reason."""

    wall_ms: int
    kind: str
    job: str
    text: str
    fields: dict[str, str] = field(default_factory=dict)


class Topic(Enum):
    """Occasions that operators may want to be told of."""

    FAILED = "failed"
    SUCCEEDED = "succeeded"
    INCIDENT = "incident"
    BUDGET = "budget"
    NODE_LOST = "node_lost"
    GPU_QUARANTINED = "gpu_quarantined"
    AUTOMATION = "automation"


@dataclass(frozen=True, slots=True)
class Notified:
    """How far a target has been told: all events up to this revision of etcd that it wants to know."""

    target: str
    revision: int
