"""The documents of the API: what `supervisorctl` asks and what it shows, also its `--output json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from supervisor.contract.checkpoint import CheckpointRef, CommitState
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Event, Outcome
from supervisor.contract.job import JobSpec

API_PROTOCOL = 1


class SubmitMode(Enum):
    """What to do when the name or the checkpoint URI was used before (rule 12)."""

    NEW = "new"
    RESUME = "resume"
    FRESH = "fresh"


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """Start a job."""

    spec: JobSpec
    mode: SubmitMode = SubmitMode.NEW


@dataclass(frozen=True, slots=True)
class JobRequest:
    """About one job; an empty name means all, where that makes sense."""

    job: str = ""


@dataclass(frozen=True, slots=True)
class RestartRequest:
    """Restart a job, or one task of it (`member` is `ROLE.INDEX`)."""

    job: str
    member: str = ""


@dataclass(frozen=True, slots=True)
class EventsRequest:
    """Events, oldest first; with `follow` the stream goes on."""

    job: str = ""
    follow: bool = False
    last: int = 100


@dataclass(frozen=True, slots=True)
class TailRequest:
    """Output of a task, `last_bytes` back from its end; with `follow` it goes on across attempts."""

    task: str
    follow: bool = False
    last_bytes: int = 8192


@dataclass(frozen=True, slots=True)
class TailChunk:
    """A piece of output, base64; `attempt` changes when a new attempt begins."""

    attempt: str
    data: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is recorded and will be acted on."""

    job: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error across the API: the class of our error tree, and its message."""

    error: str
    message: str
    leader: str = ""


@dataclass(frozen=True, slots=True)
class TaskView:
    """One task as an operator sees it. `state` is waiting, preparing, running, exited or lost."""

    task: str
    role: str
    index: int
    node: str
    state: str
    attempt: int
    pid: int
    address: str
    step: int
    rate: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class JobView:
    """One job. `step` is the newest global step of any task, -1 before the first.

    Attributes:
        code: digest of the shipped directory that the generation in force runs; empty when none is shipped.
    """

    name: str
    uuid: str
    strategy: str
    phase: JobPhase
    generation: int
    step: int
    rate: float
    base: CheckpointRef | None
    newest_commit: CheckpointRef | None
    commit_lag_steps: int
    restarts_program: int
    restarts_infrastructure: int
    restarts_left: int
    reason: str
    waiting_for: str
    submitted_wall_ms: int
    tasks: tuple[TaskView, ...] = ()
    code: str = ""


@dataclass(frozen=True, slots=True)
class SupervisorView:
    """One supervisor, and whether it leads."""

    supervisor: str
    address: str
    leading: bool
    pid: int


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """`supervisorctl status`."""

    cluster: str
    profile: str
    d_ms: int
    supervisors: tuple[SupervisorView, ...]
    jobs: tuple[JobView, ...]


@dataclass(frozen=True, slots=True)
class IncidentView:
    """One failure and its recovery, as `explain` tells it."""

    id: str
    job: str
    cause: str
    task: str
    node: str
    rule: str
    scope: str
    detail: str
    from_step: int
    to_step: int
    phases_ms: dict[str, int]
    total_ms: int
    outcome: Outcome
    generation: int
    wall_ms: int
    tail: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """`supervisorctl explain`: the job's story."""

    job: JobView
    incidents: tuple[IncidentView, ...]


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """One committed checkpoint. `use` is base, newest, or empty."""

    ref: CheckpointRef
    parent: CheckpointRef | None
    size: int
    state: CommitState
    reason: str
    path: str
    node: str
    wall_ms: int
    on_lineage: bool
    use: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointList:
    """`supervisorctl checkpoints JOB`."""

    job: str
    uri: str
    checkpoints: tuple[CheckpointView, ...]


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. `state` is ready, suspected, lost, cordoned or gone."""

    node: str
    state: str
    incarnation: str
    host: str
    beat_age_ms: int
    cpus: float
    memory_bytes: int
    gpus: int
    labels: dict[str, str] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    pid: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeList:
    """`supervisorctl nodes`."""

    nodes: tuple[NodeView, ...]


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events, oldest first; empty batches are signs of life."""

    events: tuple[Event, ...] = ()
