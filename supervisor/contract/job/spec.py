"""What a user asks for: a training program, its roles and how to treat its failures."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from supervisor.contract.checkpoint import CheckpointRef, Verify
from supervisor.contract.codec import NEEDED
from supervisor.contract.ids import TaskId

HOST_NETWORK = "host"

CHIEF_ROLES = ("chief", "master")
"""Names of the role whose one task leads the training. TF1's Estimator calls it master in `TF_CONFIG`."""


class Strategy(Enum):
    """How the program distributes its work; decides how much a failure restarts (docs/strategies.md)."""

    ASYNC = "async"
    SYNC = "sync"
    COORDINATOR = "coordinator"
    MULTIWORKER = "multiworker"
    IN_GRAPH = "in_graph"
    PLAIN = "plain"


class Scope(Enum):
    """How much is restarted when a task is lost."""

    TASK = "task"
    ALL = "all"


class Rule(Enum):
    """What a cause of failure leads to."""

    RESTART = "restart"
    ELSEWHERE = "elsewhere"
    FAIL = "fail"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Resources:
    """What one task needs on its node. Zero means: no request, no limit.

    Attributes:
        gpus: so many of its node's GPUs, each with at least `gpu_memory_bytes` and a name that holds
            `gpu_model`.
        gpu_share: so many tasks, this one included, may use each of its GPUs; 1: nobody else.
        gpu_indices: exactly these GPUs of whatever node it is placed on; empty: any.
    """

    cpus: float = 0.0
    memory_bytes: int = 0
    gpus: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    gpu_memory_bytes: int = 0
    gpu_model: str = ""
    gpu_share: int = 1
    gpu_indices: tuple[int, ...] = ()


class Pull(Enum):
    """When a node fetches an image."""

    NEVER = "never"
    MISSING = "missing"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the node in the container. The node's agent has a list of what it allows."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Ulimit:
    """A limit of the container's processes, as `setrlimit` has it."""

    name: str
    soft: int
    hard: int


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The container of each task. What it may not ask for has no field.

    Attributes:
        image: empty: the node's default.
        python: the interpreter for Python programs in the image; empty: the one that the command names.
        network: `host`, the node's own, or the name of a docker network that the node's agent lets jobs join.
        cpuset: processors by number, as docker writes them; empty: any.
        swap_bytes: beside the memory limit; has no effect without one.
        pids: so many processes and threads at most; 0: the node's default. TensorFlow has about 100.
    """

    image: str = ""
    pull: Pull = Pull.MISSING
    python: str = ""
    network: str = HOST_NETWORK
    cpuset: str = ""
    swap_bytes: int = 0
    shm_bytes: int = 0
    pids: int = 0
    ulimits: tuple[Ulimit, ...] = ()
    mounts: tuple[Mount, ...] = ()

    @property
    def networked(self) -> bool:
        """Whether it has an address of its own, which ends with it."""
        return self.network != HOST_NETWORK


class Packing(Enum):
    """Which of the nodes with room a task prefers."""

    SPREAD = "spread"
    PACK = "pack"


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """One role: `count` tasks that run the same command.

    `command` is the role's own or the job's, with its placeholders still in it. `follow` roles (evaluator,
    tensorboard) are outside the ClusterSpec and get each new commit staged in.

    Attributes:
        in_cluster: whether `TF_CONFIG` names its tasks; False for one that TensorFlow does not know.
        serves: its tasks run until they are stopped; None: as the role's name says.
        after: roles whose tasks all listen before a task of this one starts its program.
        secrets: variables whose values are secrets: by variable, the secret's name (`contract.secret`).
    """

    name: str
    count: int
    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    resources: Resources = Resources()
    follow: bool = False
    in_cluster: bool = True
    serves: bool | None = None
    after: tuple[str, ...] = ()
    secrets: dict[str, str] = field(default_factory=dict, metadata=NEEDED)

    @property
    def outside(self) -> bool:
        """Not in the ClusterSpec: `TF_CONFIG` does not name it, placeholders do."""
        return self.follow or not self.in_cluster


@dataclass(frozen=True, slots=True)
class CheckpointSpec:
    """Where commits go (`uri`), how they get there (`mode`), and how many are kept.

    Attributes:
        keep: so many on the lineage, the newest first.
        keep_every: besides, the first one of each so many steps; 0: none.
        keep_for_ms: besides, those that are younger; 0: none.
        fallback_after_ms: rule 8.3.
        patterns: name the files of a save where they are not TensorFlow's own, in the order in which they are
            written (`contract.job.file_pattern`).
        verify: how an upload is checked before it counts.
        lag_bound_ms: an event says when training goes on for longer than this without a commit, once there
            was a save that should have become one; None: never.
        adopt: a path of the program's own that shows `$CHECKPOINT_DIR`; empty: none.
    """

    uri: str
    mode: str = "staged"
    keep: int = 5
    fallback_after_ms: int | None = None
    patterns: tuple[str, ...] = ()
    verify: Verify = Verify.READBACK
    keep_every: int = 0
    keep_for_ms: int = 0
    lag_bound_ms: int | None = 300_000
    adopt: str = ""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The budget of the program's own faults, and the back-off between them.

    `max_restarts` counts restarts in a row without progress (a new commit); the next one fails the job.
    `max_in_window` counts all of the last `window_ms`, with progress or without.
    `rules` holds what the job says of a cause (the value of an `incident.Cause`) against the table.
    """

    max_restarts: int = 3
    backoff_ms: int = 500
    backoff_max_ms: int = 30_000
    degraded_limit_ms: int = 0
    scope: dict[str, Scope] = field(default_factory=dict)
    max_in_window: int = 20
    window_ms: int = 3_600_000
    rules: dict[str, Rule] = field(default_factory=dict)


DEFAULT_STEP_PATTERNS = (
    r"(?i)\b(?:global[_ ]?step|step)\b[ =:/#]*(\d+)",
    r"(?i)\biteration[ =:#]*(\d+)",
)


@dataclass(frozen=True, slots=True)
class ProgressSpec:
    """How steps are read from a task's output: the first group of the first pattern that matches a line.

    Attributes:
        patterns: the default ones stand for all formats that an agent knows (docs/progress.md).
        watch_nan: a loss that is printed as NaN is a failure.
        watch_hangs: a task that shows no sign of life any more is a failure.
        suspect_after_ms, act_after_ms: without a sign of training for so long, its stack is kept, and it is
            restarted; None: derived from the longest pauses seen (docs/progress.md).
    """

    patterns: tuple[str, ...] = DEFAULT_STEP_PATTERNS
    watch_nan: bool = False
    watch_hangs: bool = True
    suspect_after_ms: int | None = None
    act_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a job is waited for.

    Attributes:
        wall_time_ms: that it may run, all generations together; None: for ever.
        startup_ms: from a generation's flip to its first step, where steps are read at all; None: for ever.
        save_grace_ms: what `stop --save` gives a program to save after SIGTERM.
        hold_on_failure_ms: how long a failed attempt's directory is kept for inspection, whatever its size;
            and its process, stopped, where the job fails and we would have killed it.
        output_budget_bytes: what the output directory of one task may take in the store.
        keep_work_ms: how long a node keeps what a task wrote elsewhere and no store has.
    """

    wall_time_ms: int | None = None
    startup_ms: int | None = 600_000
    save_grace_ms: int = 30_000
    hold_on_failure_ms: int = 0
    output_budget_bytes: int = 10 << 30
    keep_work_ms: int = 86_400_000


@dataclass(frozen=True, slots=True)
class CodeRef:
    """The program's directory as shipped: the sha256 of its archive (64 hex digits) and the size in bytes."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A validated job file. `preload` names modules for the warm start.

    `workdir` is absolute; with `code`, it is where the directory was shipped from, and each node runs its
    own copy. `protocol` is TensorFlow's server protocol, handed to the program. With a `container` it runs on
    nodes of the docker runtime alone; without one on any, there in the node's default image. `templated`:
    commands and environments have placeholders and doubled braces (`job.placeholders`); False in records
    of earlier releases, whose environments were taken as they were. `secrets` is as in a role.
    """

    name: str
    strategy: Strategy
    roles: tuple[RoleSpec, ...]
    checkpoint: CheckpointSpec
    workdir: str
    env: dict[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    restart: RestartPolicy = RestartPolicy()
    progress: ProgressSpec = ProgressSpec()
    limits: Limits = Limits()
    code: CodeRef | None = None
    protocol: str = "grpc"
    container: ContainerSpec | None = None
    packing: Packing = Packing.SPREAD
    templated: bool = False
    secrets: dict[str, str] = field(default_factory=dict, metadata=NEEDED)

    def role(self, name: str) -> RoleSpec:
        """The role of this name; raises KeyError."""
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(name)

    def tasks(self) -> tuple[TaskId, ...]:
        """Every task, in the order of the roles."""
        return tuple(
            TaskId(self.name, role.name, index) for role in self.roles for index in range(role.count)
        )

    @property
    def saver(self) -> TaskId:
        """The task whose node commits checkpoints: the chief, else worker 0, else the first task."""
        names = {role.name for role in self.roles}
        for name in (*CHIEF_ROLES, "worker"):
            if name in names:
                return TaskId(self.name, name, 0)
        return TaskId(self.name, self.roles[0].name, 0)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A submitted job. `uuid` is in every manifest; generations start above `generation_floor` (rule 12).

    `ran_ms` is how long it had run when this version was written, of a job with a wall-time limit;
    `counting`: it runs, so that the time since then adds to it. `former`: its UUIDs in the lives that
    `submit --fresh` has ended, the newest last. `submitted_ms`: when, on the time that leaders count.
    `owner`: who submitted it (`access.Caller`), empty in records of earlier releases. `group`: with whom the
    owner shares it. `hdfs_user`: as whom the daemons reach its store in HDFS; empty: as themselves.
    """

    spec: JobSpec
    uuid: str
    submitted_wall_ms: int
    generation_floor: int = 0
    ran_ms: int = 0
    counting: bool = False
    former: tuple[str, ...] = ()
    submitted_ms: int = 0
    owner: str = ""
    group: str = ""
    hdfs_user: str = ""

    @property
    def store_uri(self) -> str:
        """Its store, for a daemon to open."""
        return as_hdfs_user(self.spec.checkpoint.uri, self.hdfs_user)


def as_hdfs_user(uri: str, user: str) -> str:
    """The URI of a store that is to be reached as a user of HDFS; empty: as the daemon itself."""
    return uri.replace("://", f"://{user}@", 1) if user else uri


class Wanted(Enum):
    """What the operator wants of a job."""

    RUN = "run"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class JobIntent:
    """The operator's wish. A restart is asked for by raising `restart_serial`; `restart_member` narrows it
    to one task (`ROLE.INDEX`), empty means the whole job. `restart_from` names the checkpoint that it starts
    from, None the newest. `save`: before a stop, the program gets SIGTERM and time to save. `delete`: once it
    has stopped, the job is removed from etcd.
    """

    wanted: Wanted = Wanted.RUN
    restart_serial: int = 0
    restart_member: str = ""
    restart_from: CheckpointRef | None = None
    save: bool = False
    delete: bool = False
