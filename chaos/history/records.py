"""The product's records in etcd as the checkers read them: only the fields that a promise is about.

Written down a second time on purpose. `tests/chaos/test_history_records.py` holds them against the product's.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """A checkpoint: the generation that saved it, and its step."""

    generation: int
    step: int

    def __str__(self) -> str:
        return f"g{self.generation}-s{self.step}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """`cluster`."""

    d_ms: int
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """`nodes/NODE`."""

    node: str
    incarnation: str
    d_ms: int
    succeeds: tuple[str, ...] = ()
    fenced: bool = False

    @property
    def lives(self) -> tuple[str, ...]:
        """The incarnations that it speaks for."""
        return (self.incarnation, *self.succeeds)


@dataclass(frozen=True, slots=True)
class Mark:
    """`lost/NODE/INCARNATION`."""

    node: str
    incarnation: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class Closing:
    """Part of a switch: it takes no commit while this plan's base is staged."""

    plan_id: str
    base: Ref | None


@dataclass(frozen=True, slots=True)
class Ledger:
    """Part of a switch: restarts so far."""

    program: int = 0
    infrastructure: int = 0
    streak: int = 0


ENDED = frozenset({"succeeded", "failed", "stopped"})


@dataclass(frozen=True, slots=True)
class Switch:
    """`switches/JOB`."""

    job: str
    job_uuid: str
    phase: str
    generation: int
    plan_id: str = ""
    base: Ref | None = None
    closing: Closing | None = None
    incident: str = ""
    ledger: Ledger = Ledger()
    restart_serial: int = 0
    reason: str = ""
    held: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether the job has ended, so that no task of it should run."""
        return self.phase in ENDED


@dataclass(frozen=True, slots=True)
class Pause:
    """`pause`, and part of a job's intent."""

    in_force: bool = True
    reason: str = ""
    passed: int = 0


@dataclass(frozen=True, slots=True)
class Intent:
    """`intents/JOB`."""

    wanted: str
    restart_serial: int = 0
    restart_from: Ref | None = None
    paused: Pause | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Part of a plan."""

    role: str
    index: int
    node: str
    incarnation: str
    gpus: tuple[str, ...] = ()

    @property
    def member(self) -> str:
        """`ROLE.INDEX`."""
        return f"{self.role}.{self.index}"


@dataclass(frozen=True, slots=True)
class Plan:
    """`plans/JOB/PLAN`."""

    job: str
    plan_id: str
    generation: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """`assignments/NODE/JOB/PLAN/MEMBER`."""

    job: str
    role: str
    index: int
    generation: int
    plan_id: str
    node: str
    attempt: int
    gpus: tuple[str, ...] = ()
    gpus_shared: bool = False
    follow: bool = False

    @property
    def attempt_id(self) -> str:
        """`JOB/ROLE:INDEX@GENERATION.NUMBER`."""
        return f"{self.job}/{self.role}:{self.index}@{self.generation}.{self.attempt}"


@dataclass(frozen=True, slots=True)
class Exit:
    """Part of a report: how an attempt ended."""

    reason: str
    code: int | None = None
    signal: int | None = None
    confirmed_dead: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """`attempts/JOB/MEMBER/GENERATION.NUMBER`."""

    job: str
    role: str
    index: int
    generation: int
    number: int
    node: str
    incarnation: str
    state: str
    pid: int
    start_ticks: int = 0
    exit: Exit | None = None
    gpus: tuple[str, ...] = ()

    @property
    def attempt_id(self) -> str:
        """`JOB/ROLE:INDEX@GENERATION.NUMBER`."""
        return f"{self.job}/{self.role}:{self.index}@{self.generation}.{self.number}"


@dataclass(frozen=True, slots=True)
class Prepared:
    """`prepared/JOB/PLAN/MEMBER`, and what `staged/JOB/PLAN/NODE` has in common with it."""

    node: str
    incarnation: str


COMMITTED, QUARANTINED, COLLECTING = "committed", "quarantined", "collecting"


@dataclass(frozen=True, slots=True)
class Commit:
    """`commits/JOB/GENERATION.STEP`."""

    job_uuid: str
    ref: Ref
    parent: Ref | None
    path: str
    size: int
    manifest_crc32c: str
    node: str
    incarnation: str
    state: str
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Incident:
    """`incidents/JOB/ID`."""

    id: str
    job: str
    cause: str
    task: str
    node: str
    rule: str
    scope: str
    detail: str
    generation: int
    member: str = ""
    attempt: int = 0
    to_step: int = -1
    phases_ms: dict[str, int] = field(default_factory=dict)
    outcome: str = "open"
    from_generation: int = 0

    @property
    def total_ms(self) -> int:
        """All phases so far."""
        return sum(self.phases_ms.values())

    @property
    def to_first_step_ms(self) -> int:
        """The sum of the phases up to the first new step."""
        return self.total_ms - self.phases_ms.get("all_running", 0)


@dataclass(frozen=True, slots=True)
class Event:
    """`events/SERIAL`."""

    kind: str
    job: str
    text: str


ASKED_FOR = frozenset({"submitted", "operator", "drained"})
"""Causes of incidents that are no failure."""

PROGRAM_FAULTS = frozenset(
    {
        *("program_exit", "program_signal", "exited_early", "start_failed", "oom", "hang", "nan_loss"),
        *("user_error", "missing_program", "data_loss", "out_of_range", "resource_exhausted", "never_ready"),
        "wall_time",
    }
)
"""Causes that burn a job's budget."""

LEADER, CLUSTER, PAUSE = "leader", "cluster", "pause"
BY_LEADER = (
    *(
        "cluster",
        "lost/",
        "cordons/",
        "pardons/",
        "quarantines/",
        "gpu_claims",
        "time",
        PAUSE,
        "jobs/",
        "deleted/",
        "intents/",
        "switches/",
        "plans/",
    ),
    *("specs/", "assignments/", "spares/", "incidents/", "goodput/", "events/", "notified/", "code/"),
    "pools/",
    "bulk/code/",
)
BY_AGENT = ("nodes/", "gpus/", "prepared/", "staged/", "attempts/")
BY_BOTH = ("commits/", "heads/")
"""The keys by the fence that they need (rule 2). `leader` and `appeals/` have rules of their own."""
