"""The specification of a job: its training program, its roles, and the treatment of its failures."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from supervisor.contract.checkpoint import CheckpointRef, Verify
from supervisor.contract.codec import NEEDED
from supervisor.contract.ids import TaskId
from supervisor.contract.job.pause import Pause

HOST_NETWORK = "host"
_HDFS = "hdfs://"

PLAIN_PROTOCOL = "grpc"
"""The server protocol that every build of TensorFlow has."""

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
    """The scope of a restart when a task is lost."""

    TASK = "task"
    ALL = "all"


class PsRecovery(Enum):
    """The variables that are restored after the loss of a parameter server: all, or its own."""

    FULL = "full"
    PARTIAL = "partial"


class Rule(Enum):
    """The action for a cause of failure."""

    RESTART = "restart"
    ELSEWHERE = "elsewhere"
    FAIL = "fail"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one task on its node. Zero means: no request, no limit.

    Attributes:
        gpus: the number of its GPUs, each with at least `gpu_memory_bytes` and a name that contains
            `gpu_model`.
        gpu_share: the number of tasks, with this one, that may use each of its GPUs; 1: this task alone.
        gpu_indices: the indexes of exactly the GPUs that it gets on its node; empty: any.
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
    """The times at which a node fetches an image."""

    NEVER = "never"
    MISSING = "missing"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the node in the container. The node's agent has a list of allowed ones."""

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
    """The container of each task. Options that a job may not ask for have no field.

    Attributes:
        image: empty: the node's default.
        python: the interpreter for Python programs in the image; empty: the one that the command names.
        network: `host`, the node's own, or the name of a docker network that the node's agent lets jobs join.
        cpuset: processors by number, as docker writes them; empty: any.
        swap_bytes: beside the memory limit; has no effect without one.
        pids: most processes and threads; 0: the node's default. TensorFlow has about 100.
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
        """Whether the container has an address of its own, which ends with it."""
        return self.network != HOST_NETWORK


class SuccessPolicy(Enum):
    """The workers that end a job without a chief by their exit with 0. With a chief it is the chief."""

    ALL_WORKERS = "all_workers"
    WORKER_0 = "worker_0"


class Packing(Enum):
    """A task's preference among nodes with room."""

    SPREAD = "spread"
    PACK = "pack"


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """One role: `count` tasks that run the same command.

    `command` is the role's own or the job's, with its placeholders still in it. `follow` roles (evaluator,
    tensorboard) are outside the ClusterSpec and get each new commit staged in.

    Attributes:
        in_cluster: whether `TF_CONFIG` names its tasks; False for a role that TensorFlow does not know.
        serves: its tasks run until they are stopped; None: derived from the role's name.
        after: roles whose tasks all listen before a task of this one starts its program.
        secrets: variables whose values are secrets: by variable, the secret's name (`contract.secret`).
        least, most: its count follows the room in the cluster, between these two; 0: it does not.
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
    least: int = field(default=0, metadata=NEEDED)
    most: int = field(default=0, metadata=NEEDED)

    @property
    def outside(self) -> bool:
        """Whether the role is outside the ClusterSpec: placeholders name it, but not `TF_CONFIG`."""
        return self.follow or not self.in_cluster


@dataclass(frozen=True, slots=True)
class CheckpointSpec:
    """The store of a job's commits (`uri`), the way to it (`mode`), and the number that is kept.

    Attributes:
        keep: the number of newest commits on the lineage that are kept.
        keep_every: also kept: the first commit of each interval of this many steps; 0: none.
        keep_for_ms: also kept: commits younger than this; 0: none.
        fallback_after_ms: the wait before an older checkpoint is taken (rule 8.3).
        patterns: name the files of a save where they are not TensorFlow's own, in the order in which they are
            written (`contract.job.file_pattern`).
        verify: the check of an upload before its commit.
        lag_bound_ms: time of training without a commit after which an event reports it, if there was a save
            to commit; None: never.
        adopt: a path of the program's own that leads to `$CHECKPOINT_DIR`; empty: none.
        cadence: savers that can be asked save as often as pays (`auto`), or by themselves alone (`off`).
        max_overhead: share of the time that such saves may take, in per cent.
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
    cadence: str = "auto"
    max_overhead: float = 1.0


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The budget of the program's own faults, and the back-off between them.

    `max_restarts` counts restarts in a row without progress (a new commit); the next one fails the job.
    `max_in_window` counts all of the last `window_ms`, with progress or without. `rules` overrides the table
    for a cause (the value of an `incident.Cause`). `retry_from`: exit codes from this one on are restarted
    although the rule of `program_exit` is FAIL; 0: none.
    """

    max_restarts: int = 3
    backoff_ms: int = 500
    backoff_max_ms: int = 30_000
    degraded_limit_ms: int = 0
    scope: dict[str, Scope] = field(default_factory=dict)
    max_in_window: int = 20
    window_ms: int = 3_600_000
    rules: dict[str, Rule] = field(default_factory=dict)
    ps_recovery: PsRecovery = PsRecovery.FULL
    retry_from: int = field(default=0, metadata=NEEDED)


DEFAULT_STEP_PATTERNS = (
    r"(?i)\b(?:global[_ ]?step|step)\b[ =:/#]*(\d+)",
    r"(?i)\biteration[ =:#]*(\d+)",
)


@dataclass(frozen=True, slots=True)
class ProgressSpec:
    """The reading of steps from a task's output: the first group of the first pattern that matches a line.

    Attributes:
        patterns: the default ones stand for all formats that an agent knows (docs/progress.md).
        watch_nan: a loss that is printed as NaN is a failure.
        watch_hangs: a task without any sign of life is a failure.
        suspect_after_ms, act_after_ms: times without a sign of training after which a task's stack is kept,
            and after which it is restarted; None: derived from the longest pauses seen (docs/progress.md).
    """

    patterns: tuple[str, ...] = DEFAULT_STEP_PATTERNS
    watch_nan: bool = False
    watch_hangs: bool = True
    suspect_after_ms: int | None = None
    act_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The time limits of a job, and the bounds of the files that it leaves.

    Attributes:
        wall_time_ms: limit for its running time, all generations together; None: for ever.
        startup_ms: limit from a generation's flip to its first step, if steps are read at all; None: for
            ever.
        save_grace_ms: the time that `stop --save` gives a program to save after SIGTERM.
        hold_on_failure_ms: the time for which a failed attempt's directory is kept for inspection, at any
            size. If the job fails, a process that would be killed is kept too, stopped.
        output_budget_bytes: limit for one task's outputs in the store.
        keep_work_ms: the time for which a node keeps files that a task wrote elsewhere and no store has.
        delete_after_ms: the time after which a job that has succeeded or failed is deleted; None: never.
    """

    wall_time_ms: int | None = None
    startup_ms: int | None = 600_000
    save_grace_ms: int = 30_000
    hold_on_failure_ms: int = 0
    output_budget_bytes: int = 10 << 30
    keep_work_ms: int = 86_400_000
    delete_after_ms: int | None = None


class ModelCheck(Enum):
    """How much of an exported model is tried before it is published: its files, loading it, a call."""

    CHECKSUMS = "checksums"
    LOAD = "load"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class ServingSpec:
    """The SavedModels that a job exports, and the model that they are published as (docs/serving.md).

    Attributes:
        model: the name of the model.
        export: a pattern of directories below the output directory of `role`'s task 0.
        check: what each is tried by before it is published.
        keep: the number of newest versions that are kept.
        servers: `host:port` of model servers that are told of new labels.
    """

    model: str
    export: str
    role: str
    check: ModelCheck = ModelCheck.LOAD
    keep: int = 3
    servers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CodeRef:
    """The program's directory as shipped: the sha256 of its archive (64 hex digits) and the size in bytes."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class EnvironmentRef:
    """A locked environment. It has `requirements` or an `archive`.

    Attributes:
        digest: the sha256 of the lock file, or of the archive.
        requirements: the path of the lock file below the working directory.
        archive: the URI of a packed environment.
        wheelhouse: the URI of a directory of wheels; empty: as the node's pip is configured.
        python: the name of the interpreter that it is made with; empty: the agent's own.
    """

    digest: str
    requirements: str = ""
    archive: str = ""
    wheelhouse: str = ""
    python: str = ""

    @property
    def key(self) -> str:
        """64 hex digits. Environments of equal keys are interchangeable, whatever carried them."""
        return hashlib.sha256(f"{self.digest} {self.python}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A validated job file. `preload` names modules for the warm start.

    `workdir` is absolute. With `code` it is the origin of the shipped directory, and each node runs its own
    copy. `protocol` is TensorFlow's server protocol, handed to the program. With a `container` the job runs
    only on nodes of the docker runtime. Without one it runs on any node; a node of the docker runtime then
    takes its default image. `templated`: commands and environments have placeholders and doubled braces
    (`job.placeholders`); False in records of earlier releases, whose environments were taken as they were.
    `secrets` is as in a role. `notify`: targets of the supervisors' configuration that are told of it.
    `serving`: the models that it exports are published; None: it exports none.
    With an `environment` its programs run under the Python in that, on nodes without containers.
    `data`: directories that its tasks only read: by name, the URI (`job.data`).
    `priority`: of jobs that wait for room, the one with the highest comes first.
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
    protocol: str = PLAIN_PROTOCOL
    container: ContainerSpec | None = None
    packing: Packing = Packing.SPREAD
    priority: int = 0
    success_policy: SuccessPolicy = field(default=SuccessPolicy.ALL_WORKERS, metadata=NEEDED)
    templated: bool = False
    secrets: dict[str, str] = field(default_factory=dict, metadata=NEEDED)
    notify: tuple[str, ...] = ()
    serving: ServingSpec | None = None
    environment: EnvironmentRef | None = field(default=None, metadata=NEEDED)
    data: dict[str, str] = field(default_factory=dict, metadata=NEEDED)

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
        return saver_of(self.name, self.roles)


def saver_of(job: str, roles: tuple[RoleSpec, ...]) -> TaskId:
    """As `JobSpec.saver`, of a job with these roles."""
    names = {role.name for role in roles}
    for name in (*CHIEF_ROLES, "worker"):
        if name in names:
            return TaskId(job, name, 0)
    return TaskId(job, roles[0].name, 0)


def resized(spec: JobSpec, sizes: Mapping[str, int]) -> JobSpec:
    """The job with another count of tasks in each role that `sizes` names."""
    roles = tuple(
        role if sizes.get(role.name, role.count) == role.count else replace(role, count=sizes[role.name])
        for role in spec.roles
    )
    return spec if roles == spec.roles else replace(spec, roles=roles)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A submitted job. `uuid` is in every manifest; generations start above `generation_floor` (rule 12).

    The roles of `spec` have the size of the generation in force; the flip writes it.
    `ran_ms`: for a job with a wall-time limit, its running time when this version was written. `counting`: it
    runs, so the time since then is added. `former`: its UUIDs in lives that `submit --fresh` has ended, the
    newest last. `submitted_ms`: the time of its submission, on the time that leaders count. `owner`: its
    submitter (`access.Caller`), empty in records of earlier releases. `group`: the group that the owner
    shares it with. `hdfs_user`: as whom the daemons reach its places in HDFS; empty: as themselves. `given`:
    the fields that its job file gives, as `roles.worker.count`; empty: it is not known which.
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
    hdfs_user: str = field(default="", metadata=NEEDED)
    given: tuple[str, ...] = ()

    @property
    def store_uri(self) -> str:
        """Its store, for a daemon to open."""
        return as_hdfs_user(self.spec.checkpoint.uri, self.hdfs_user)

    @property
    def hdfs_uri(self) -> str:
        """Its store, or else data of it, in HDFS, for a daemon to open; empty: nothing of it is there."""
        places = (self.spec.checkpoint.uri, *self.spec.data.values())
        found = next((each for each in places if each.startswith(_HDFS)), "")
        return as_hdfs_user(found, self.hdfs_user)


def as_hdfs_user(uri: str, user: str) -> str:
    """The URI of a place that is to be reached as a user, if it is in HDFS; empty: as the daemon itself."""
    return uri.replace(_HDFS, f"{_HDFS}{user}@", 1) if user and uri.startswith(_HDFS) else uri


class Wanted(Enum):
    """The state that an operator wants for a job."""

    RUN = "run"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class JobIntent:
    """The operator's wish. A restart is asked for by raising `restart_serial`; `restart_member` narrows it
    to one task (`ROLE.INDEX`), empty means the whole job. `restart_from` names the checkpoint that it starts
    from, None the newest. `save`: before a stop, the program gets SIGTERM and time to save. `delete`: once it
    has stopped, the job is removed from etcd. `sizes`: the counts that roles are to have, instead of those in
    the job file. `paused`: while it is there, nothing of the job is restarted or moved. A leader of a release
    that knows no pauses sets the job aside.
    """

    wanted: Wanted = Wanted.RUN
    restart_serial: int = 0
    restart_member: str = ""
    restart_from: CheckpointRef | None = None
    save: bool = False
    delete: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    paused: Pause | None = field(default=None, metadata=NEEDED)
