"""The instructions of the core to the daemon. The state file is saved before any of them is carried out."""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.contract.checkpoint import CheckpointRef, Verify
from supervisor.contract.desired import Assignment, ClusterSpec
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.job.serving import Exports
from supervisor.contract.job.spec import CodeRef, ContainerSpec, EnvironmentRef, Resources
from supervisor.contract.observed import AttemptReport, GpuReport, Prepared, Staged


@dataclass(frozen=True, slots=True)
class First:
    """The attempt that a launcher was made for. It may serve others later."""

    role: str
    index: int
    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """The environment in which a launcher has imported: launchers with equal recipes are interchangeable.

    With `code`, the directory is this node's copy of it, and `workdir` says where it came from. `container`,
    `resources`, `gpus` and `data` are fixed when a container is made; a plain process has none of them.
    `first` is the task that a container is made for, None for a spare, and makes no difference. It imports
    with the Python of the `environment`, if there is one, for at most `import_ms`.
    """

    job: str
    job_uuid: str
    workdir: str
    program: str
    preload: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    code: CodeRef | None = None
    container: ContainerSpec | None = None
    resources: Resources = field(default_factory=Resources)
    gpus: tuple[str, ...] = ()
    first: First | None = field(default=None, compare=False)
    environment: EnvironmentRef | None = None
    data: dict[str, str] = field(default_factory=dict)
    import_ms: int | None = field(default=None, compare=False)

    @property
    def networked(self) -> bool:
        """Whether it has an address of its own, which ends with it."""
        return self.container is not None and self.container.networked


@dataclass(frozen=True, slots=True)
class Reach:
    """The host of the tasks of a launcher on a docker network; `segment` as in `Prepared`."""

    host: str
    segment: str = ""


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message of `agent.inside.protocol` to a launcher; lost when it is not connected."""

    launcher_id: str
    message: object


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a launcher; answered by Spawned or SpawnFailed."""

    launcher_id: str
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Launch:
    """Send the launcher its Start for `assignment.attempt_id`; lost when it is not connected.

    `base`: what this generation started from. `warm`: fork from the preloaded interpreter if it can be.
    `address`: where it is to listen, which for a task that has moved alone is not what `spec` says.
    """

    launcher_id: str
    assignment: Assignment
    spec: ClusterSpec
    base: CheckpointRef | None
    reservation: str
    warm: bool
    address: str


@dataclass(frozen=True, slots=True)
class OutputDirs:
    """Directories of a task on this node: its own outputs, copies of those of all tasks, and data by name."""

    own: str = ""
    all: str = ""
    data: dict[str, str] = field(default_factory=dict)


NOWHERE = OutputDirs()


@dataclass(frozen=True, slots=True)
class PrepareOutputs:
    """Make a task's output directory, with what its earlier attempts wrote; answered by OutputsReady.

    No attempt of the task before this one is alive on this node. `budget_bytes` bounds what goes to the store
    at `uri`. `keep_ms`: how long what it writes elsewhere is kept. `follow`: it reads the outputs of others.
    `exports`: the models in it that are published.
    """

    attempt: AttemptId
    job_uuid: str
    uri: str
    budget_bytes: int
    keep_ms: int = 0
    follow: bool = False
    exports: Exports | None = None


@dataclass(frozen=True, slots=True)
class FetchSecrets:
    """Ask the supervisors for the secrets of an attempt; answered by SecretsFetched.

    `secrets`: the variables and the names of their secrets.
    """

    attempt: AttemptId
    plan_id: str
    secrets: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Fence:
    """SIGKILL the launcher and everything that it started; answered by Fenced.

    `processes`: (pid, start ticks) known to belong to it.
    """

    launcher_id: str
    processes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """Read a plan's ClusterSpec; answered by SpecRead."""

    job: str
    plan_id: str


@dataclass(frozen=True, slots=True)
class BringIn:
    """Have what a plan's launchers need on this node; answered by BroughtIn.

    `code`: on its disk, whole. `container`: its image, where launchers are containers. `environment`: made,
    from a lock file below the code, or below `workdir` without code. `data`: shown; of the job.
    """

    plan_id: str
    code: CodeRef | None
    container: ContainerSpec | None = None
    environment: EnvironmentRef | None = None
    workdir: str = ""
    data: dict[str, str] = field(default_factory=dict)
    job: str = ""
    job_uuid: str = ""


@dataclass(frozen=True, slots=True)
class KeepCode:
    """Code of other digests, and environments of other keys, may be removed from this node's disk."""

    digests: frozenset[str]


@dataclass(frozen=True, slots=True)
class KeepData:
    """Tasks of this node use this data: the job's UUID and a URI each. Other mounts may end."""

    used: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Write:
    """Write an answer to a plan, if the assignment at `requires` still exists; answered by Written."""

    tag: str
    key: str
    record: Prepared | Staged
    requires: str


@dataclass(frozen=True, slots=True)
class Report:
    """Write an attempt's report. Answered by Reported.

    The daemon fills in `tail`, `age_ms`, `last_step` and `stepped`.
    `ended_ms` is when it was seen to end, -1 while it runs. `hold_ms`: its directory is kept for so long if
    it failed.
    """

    serial: int
    record: AttemptReport
    ended_ms: int = -1
    hold_ms: int = 0
    job_uuid: str = ""


@dataclass(frozen=True, slots=True)
class Follow:
    """Read steps, and NaN losses if asked, from this attempt's output from now on.

    `started_ms` is when its main process, `pid` of `start_ticks`, started; with which TensorFlow, if it is
    known, says `tensorflow`.
    """

    attempt: AttemptId
    job_uuid: str
    patterns: tuple[str, ...]
    started_ms: int
    pid: int = 0
    start_ticks: int = 0
    watch_nan: bool = False
    tensorflow: str = ""


@dataclass(frozen=True, slots=True)
class Dump:
    """Keep where the threads of this attempt are, for its report when it has ended."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Unfollow:
    """The attempt is over and reported: its directory counts as old."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Stage:
    """Bring the base of a plan into its generation's directory; answered by StageDone.

    `mode`: as `CheckpointSpec` has it. `boot_id`: this machine's.
    """

    job: str
    job_uuid: str
    plan_id: str
    generation: int
    base: CheckpointRef | None
    uri: str
    mode: str = "staged"
    boot_id: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit finished checkpoints of this generation in the background from now on.

    `saver` saves them; `patterns` name its files where they are not TensorFlow's own; `verify` says how an
    upload is checked; `adopt` is the program's own path of `$CHECKPOINT_DIR`, if it has one.
    """

    job: str
    job_uuid: str
    generation: int
    base: CheckpointRef | None
    uri: str
    saver: TaskId
    patterns: tuple[str, ...] = ()
    verify: Verify = Verify.READBACK
    mode: str = "staged"
    plan_id: str = ""
    adopt: str = ""


@dataclass(frozen=True, slots=True)
class StopCommit:
    """Commits of this generation cannot take effect any more."""

    job: str
    job_uuid: str
    generation: int


@dataclass(frozen=True, slots=True)
class FollowCommits:
    """Bring each new commit of this generation in, for a program that only reads them.

    `base`: what the generation started from. `brings`: False where only the directory is needed, and what is
    mounted there.
    """

    job: str
    job_uuid: str
    generation: int
    base: CheckpointRef | None
    uri: str
    mode: str = "staged"
    plan_id: str = ""
    brings: bool = True


@dataclass(frozen=True, slots=True)
class StopFollowing:
    """Stop fetching the commits of this generation: no task here reads them any more."""

    job_uuid: str
    generation: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Take the last look number `look` at a generation's directory, within `timeout_ms`; answered by Drained.

    What is finished there is committed. `aside`: another task is the saver, so nothing is committed; how this
    task's node would commit. `life`: the incarnation of this agent. `clean`: the attempt ended by itself,
    without an error.
    """

    attempt: AttemptId
    job_uuid: str
    look: int
    timeout_ms: int
    life: str
    clean: bool
    aside: Commit | None = None


@dataclass(frozen=True, slots=True)
class Clean:
    """Remove a job's old generation directories on this node; `ended`: the job is over."""

    job: str
    job_uuid: str
    generation: int
    ended: bool


@dataclass(frozen=True, slots=True)
class TellGpus:
    """Write the report of this node's GPUs; answered by GpusTold."""

    report: GpuReport


@dataclass(frozen=True, slots=True)
class LookAtGpus:
    """Look at the GPUs now, without waiting for the time to."""


@dataclass(frozen=True, slots=True)
class AskPromises:
    """Ask every supervisor to leave this node alone for a while; answers are Promised with this stamp."""

    serial: int
    sent_ms: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """An outcast has nothing alive any more: the node may join anew."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The TCP ports that a plan's tasks on this node need.

    `addresses`: `host:port` of all tasks of the plan. `ports`: of this node's.
    """

    plan_id: str
    job_uuid: str
    addresses: tuple[str, ...]
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SetFirewall:
    """Let tasks reach exactly these; answered by FirewallSet."""

    openings: tuple[Opening, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Something that an operator may want to read. `level` is info or warning."""

    level: str
    event: str
    fields: dict[str, str] = field(default_factory=dict)


Instruction = (
    Say
    | Spawn
    | Launch
    | PrepareOutputs
    | FetchSecrets
    | Fence
    | ReadSpec
    | BringIn
    | KeepCode
    | KeepData
    | Write
    | Report
    | Follow
    | Dump
    | Unfollow
    | Stage
    | Commit
    | StopCommit
    | FollowCommits
    | StopFollowing
    | Drain
    | Clean
    | TellGpus
    | LookAtGpus
    | AskPromises
    | Cleared
    | SetFirewall
    | Note
)
