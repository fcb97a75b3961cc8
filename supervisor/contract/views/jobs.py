"""The documents of the API: requests of `supervisorctl` and its answers, also as `--output json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from supervisor.contract.checkpoint import CheckpointRef, CommitState
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Outcome
from supervisor.contract.job.spec import JobSpec

API_PROTOCOL = 1


class SubmitMode(Enum):
    """Treatment of a name or a checkpoint URI that was used before (rule 12)."""

    NEW = "new"
    RESUME = "resume"
    FRESH = "fresh"


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """Submit a job; with `hold` it is recorded, and waits for `start`. `given`: as in `JobRecord`."""

    spec: JobSpec
    mode: SubmitMode = SubmitMode.NEW
    hold: bool = False
    given: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A request about one job; for some methods an empty name means all jobs."""

    job: str = ""


@dataclass(frozen=True, slots=True)
class RestartRequest:
    """Restart a job, or one task of it (`member` is `ROLE.INDEX`), or the job from an older checkpoint.

    A `from_ref` of generation 0 names its step alone.
    """

    job: str
    member: str = ""
    from_ref: CheckpointRef | None = None


@dataclass(frozen=True, slots=True)
class ScaleRequest:
    """Change the counts of a job's roles: by name, how many tasks each is to have."""

    job: str
    sizes: dict[str, int]


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Stop a job; with `save` its program gets SIGTERM and time to save first."""

    job: str
    save: bool = False


@dataclass(frozen=True, slots=True)
class PauseRequest:
    """Let nothing of a job be restarted or moved by itself; an empty name means all jobs."""

    job: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PinRequest:
    """Keep a checkpoint from being collected, or let it go. A `ref` of generation 0 names its step alone."""

    job: str
    ref: CheckpointRef
    pinned: bool = True


@dataclass(frozen=True, slots=True)
class EventsRequest:
    """Events, oldest first; with `follow` the stream goes on.

    It returns the events after `after`, the `last` of an earlier batch; if that is below 0, the newest `last`
    events.
    """

    job: str = ""
    follow: bool = False
    last: int = 100
    after: int = -1


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """A place in an attempt's output: `offset` bytes into the file of inode number `file`.

    Files keep their inode when they are rotated away. By `mark` the node checks that it is still the same
    file, as inode numbers are reused. Without an `attempt` the place is before all output.
    """

    attempt: str = ""
    file: int = 0
    offset: int = 0
    mark: int | None = None


LINES_WITHIN = 16 << 20
"""How far before the end of an output, in bytes, its last lines are looked for."""


@dataclass(frozen=True, slots=True)
class TailRequest:
    """Read the output of all attempts of a task that are on disk, the oldest first, the last `last_bytes` of
    each, and of those the last `last_lines` unless it is 0; or what came after the place of an earlier chunk.

    With `follow` the stream goes on with new output. `merged`: it is one of many that a client merges, so the
    times of the output come with it, and only nodes that told of an attempt of the task are asked; others'
    output comes from the store. `since_ms`: only output that came at this time or later, by the clocks of
    nodes. `stacks`: instead of output, the newest stored dump of each attempt's stacks.
    """

    task: str
    follow: bool = False
    last_bytes: int = 8192
    after: OutputPlace = OutputPlace()
    merged: bool = False
    since_ms: int = 0
    stacks: bool = False
    last_lines: int = 0


@dataclass(frozen=True, slots=True)
class TailChunk:
    """A piece of an attempt's output, base64, and the place after it; empty ones are signs of life.

    `cut`: earlier output of the attempt is left out. `note`: the reason for waiting, or for missing output.
    `times`: position in the data and milliseconds, in turns: bytes from a position on came at its time.
    """

    place: OutputPlace
    data: str
    node: str = ""
    cut: bool = False
    note: str = ""
    times: tuple[int, ...] = ()

    @property
    def attempt(self) -> str:
        """The attempt of this output, `JOB/ROLE:INDEX@GENERATION.NUMBER`; empty for a sign of life before any
        output.
        """
        return self.place.attempt


@dataclass(frozen=True, slots=True)
class OutputsRequest:
    """To an agent: list the attempts of a task with output on its disk."""

    job_uuid: str
    task: str


@dataclass(frozen=True, slots=True)
class OutputList:
    """The attempts, as `JOB/ROLE:INDEX@GENERATION.NUMBER`, unordered."""

    attempts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """To an agent: read output of `after.attempt` from that place (file 0: its last `last_bytes`), at most a
    chunk.

    At the end of the output it waits up to `wait_ms` for more, while the attempt lives. `timed`: with the
    times of the output. `since_ms`, `last_lines`: as in TailRequest.
    """

    job_uuid: str
    after: OutputPlace
    last_bytes: int = 0
    wait_ms: int = 0
    timed: bool = False
    since_ms: int = 0
    last_lines: int = 0


SAVE_S = 15.0
"""How long a save that is asked for, and its commit, may take."""


@dataclass(frozen=True, slots=True)
class SignalRequest:
    """Send signal `number` to the main process of a task's running attempt.

    `by`: the caller of the supervisor that passes the request to an agent; a supervisor overwrites it.
    """

    task: str
    number: int
    by: str = ""


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """Have a task save now, if it has a saver that may be asked; answered after its commit, or `SAVE_S`."""

    task: str


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """Run a command beside a task's running attempt: its directory, its environment, its user.

    The command is killed when the caller disconnects, and after `timeout_ms`. `by`: as in SignalRequest.
    """

    task: str
    argv: tuple[str, ...]
    timeout_ms: int
    by: str = ""


@dataclass(frozen=True, slots=True)
class ExecChunk:
    """A piece of a command's output, base64; the last chunk has its exit code.

    `stream` is out, err, or empty for a sign of life. `code` is the exit code, 128 + N after signal N, -1
    while it runs.
    """

    stream: str = ""
    data: str = ""
    code: int = -1
    attempt: str = ""
    node: str = ""
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is recorded and will be acted on.

    `cautions`: warnings about values that may be a mistake.
    """

    job: str
    detail: str = ""
    cautions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """An error across the API: its class in our error tree, its message, and the job's field that it is
    about.
    """

    error: str
    message: str
    leader: str = ""
    field: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskView:
    """One task as an operator sees it. `state` is waiting, preparing, running, stopped (and kept), exited or
    lost.

    `straggler`: it is much slower than its peers.
    """

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
    straggler: bool = False


@dataclass(frozen=True, slots=True)
class BudgetView:
    """The number of the program's faults, and the number that is allowed before the job fails.

    They are counted in a row without progress, and within the last `window_ms`.
    """

    in_a_row: int = 0
    in_a_row_allowed: int = 0
    in_window: int = 0
    in_window_allowed: int = 0
    window_ms: int = 0


@dataclass(frozen=True, slots=True)
class GoodputView:
    """What a job's time was spent on, since its submission or since a release that counts (docs/goodput.md).

    Attributes:
        elapsed_ms: the time that is counted: the sum of `spent_ms`.
        spent_ms: by category; without those on which nothing was spent.
        now: the category that runs; empty for a job that has ended.
        share: the productive part of the time, without that in which the job was stopped; 0 to 1.
        wall_ms: the moment that this tells of, up to a look of the leader ago.
    """

    since_wall_ms: int
    elapsed_ms: int
    spent_ms: dict[str, int]
    now: str
    share: float
    wall_ms: int = 0


@dataclass(frozen=True, slots=True)
class JobView:
    """One job. `step` is the newest global step of any task, -1 before the first.

    Attributes:
        newest_commit: the checkpoint that a restart would begin from now; None: from scratch, or none is
            good.
        tensorboard: URL of the first task of a role of this name; empty without one.
        code: digest of the shipped directory that the generation in force runs; empty if none is shipped.
        commit_lag_ms: running time since its newest commit, or its start; -1 if it does not run.
        commit_trouble: the reason why finished saves are not committed now, or a note that there were none
            for long; empty otherwise.
        saves_skipped: finished saves of this generation that were given up for newer ones.
        cadence: how often it saves, and what a failure now would cost; empty if unknown.
        advice: the changes that a user must make so that the program's saves are kept.
        notices: notices of nodes about its files: work that is kept for a while, outputs that are not sent.
        owner: its submitter; empty if unknown. `group`: the group that the owner shares it with.
        paused: why nothing of it is restarted or moved by itself now; empty where it may be.
        paused_wall_ms: since when; 0 if it is not paused, or the pause is only beginning.
        goodput: what its time was spent on; None if nothing is counted yet.
        uncommitted: finished saves without which it has ended, also named in `reason`; empty for none.
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
    budget: BudgetView = BudgetView()
    tensorboard: str = ""
    code: str = ""
    commit_lag_ms: int = -1
    commit_trouble: str = ""
    saves_skipped: int = 0
    advice: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    owner: str = ""
    group: str = ""
    cadence: str = ""
    paused: str = ""
    paused_wall_ms: int = 0
    goodput: GoodputView | None = None
    uncommitted: str = ""


@dataclass(frozen=True, slots=True)
class SupervisorView:
    """One supervisor, and whether it leads."""

    supervisor: str
    address: str
    leading: bool
    pid: int


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """`supervisorctl status`. `etcd`: what operators must know of etcd now, each with what to do.

    `paused`: why nothing is restarted or moved by itself, of any job; empty where it may be.
    `paused_wall_ms`: since when.
    """

    cluster: str
    profile: str
    d_ms: int
    supervisors: tuple[SupervisorView, ...]
    jobs: tuple[JobView, ...]
    etcd: tuple[str, ...] = ()
    paused: str = ""
    paused_wall_ms: int = 0


@dataclass(frozen=True, slots=True)
class IncidentView:
    """One failure and its recovery, for `explain`. `stack`: the stacks of a task that hung.

    `from_step`: the newest step before the restart; -1: none is known.
    `base`: the checkpoint that the restart went back to; `from_scratch`: there was none. `lost_steps`: number
    of steps that are made again; -1: unknown.
    """

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
    stack: str = ""
    lost_steps: int = -1
    base: CheckpointRef | None = None
    from_scratch: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """`supervisorctl explain`: the job's story."""

    job: JobView
    incidents: tuple[IncidentView, ...]


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """One committed checkpoint. `use` is base, newest, or empty; a pinned one is never collected.

    `verified` is the check of its files (size, crc or readback). `tensors` is 0 if they are no bundle.
    """

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
    pinned: bool = False
    verified: str = ""
    tensors: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointList:
    """`supervisorctl checkpoints JOB`."""

    job: str
    uri: str
    checkpoints: tuple[CheckpointView, ...]


@dataclass(frozen=True, slots=True)
class EventView:
    """One line of the operator's history. Serials are each used once; they do not always grow."""

    serial: int
    wall_ms: int
    kind: str
    job: str
    text: str
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events, oldest first; empty batches are signs of life.

    `last`: the value for `after` in the next request.
    """

    events: tuple[EventView, ...] = ()
    last: int = 0
