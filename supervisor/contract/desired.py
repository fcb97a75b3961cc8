"""The decisions of the leader: records that it alone writes, each under its token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from supervisor.contract import addresses
from supervisor.contract.boundaries import CreatedAt
from supervisor.contract.checkpoint import CheckpointRef, Verify
from supervisor.contract.codec import NEEDED
from supervisor.contract.ids import AttemptId, TaskId, attempt_id, task_id
from supervisor.contract.job.spec import CodeRef, ContainerSpec, EnvironmentRef, Resources, ServingSpec
from supervisor.contract.observed import GpuAction


@dataclass(frozen=True, slots=True)
class LeaderToken:
    """The election key and the revision that created it; in the compares of every leader's write (rule 2)."""

    key: str
    create_revision: int

    def compare(self) -> CreatedAt:
        """The compare that fences a deposed leader."""
        return CreatedAt(self.key, self.create_revision)


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """The value of the election key: the leader's name, and the addresses of its API and its heartbeat
    link.

    `http`: the URL of its HTTP door; empty without one, and in records of earlier releases.
    """

    supervisor: str
    address: str
    pid: int
    http: str = ""


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The settings that leader and agents must agree on. D is one value for the whole cluster (rule 11).

    `promise_ms`: the time for which supervisors promise to leave a node alone when etcd is gone; 0: no
    promises. `supervisors`: sorted names of those whose promises an agent needs. `uuid`: made with the
    record, so that a cluster with a new etcd differs from the one before; empty in records of earlier
    releases.
    """

    cluster: str
    profile: str
    d_ms: int
    promise_ms: int = 0
    supervisors: tuple[str, ...] = ()
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class LostMark:
    """The leader's record that an incarnation is lost (rule 3). A `final` one allows no appeal (rule 10).

    `boot_id`: the machine's boot id when that incarnation was last seen registered; empty if it was not
    registered. `off`: since then a fence device has confirmed that the machine is off. `fenced`: the node
    itself had said that all that it had started was ended. `dismissed`: its agent is to end, and not to
    join again.
    """

    node: str
    incarnation: str
    reason: str
    final: bool = False
    boot_id: str = ""
    off: bool = False
    fenced: bool = False
    dismissed: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """The node for one task of a plan, and the UUIDs of its GPUs there."""

    role: str
    index: int
    node: str
    incarnation: str
    gpus: tuple[str, ...] = ()

    @property
    def member(self) -> str:
        """`ROLE.INDEX`, as in keys."""
        return f"{self.role}.{self.index}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A generation in preparation: inert until the switch names this plan id (rule 6).

    `code` is the digest of the shipped directory that it runs; empty if none is shipped. `moved`: the workers
    that have moved or joined since it is in force. A leader of a release that moves none leaves the job
    alone. `departed`: the number of the last attempt of each worker that has left, so that none that comes
    again gets it.
    """

    job: str
    plan_id: str
    generation: int
    incident: str
    placements: tuple[Placement, ...]
    code: str = ""
    moved: tuple[str, ...] = field(default=(), metadata=NEEDED)
    departed: dict[str, int] = field(default_factory=dict, metadata=NEEDED)


@dataclass(frozen=True, slots=True)
class Cadence:
    """Numbers that tell a program how often a save pays.

    Attributes:
        failures: that cost the job steps, in `over_ms`. The time that the program runs adds to that.
        max_overhead: the share of the time that saves may take.
        steers: its savers may be asked to save.
        cost_ms: for how long a save held the program up before it failed; -1: not known.
    """

    failures: float
    over_ms: int
    max_overhead: float
    steers: bool
    cost_ms: int = -1


@dataclass(frozen=True, slots=True)
class Assignment:
    """One task of one plan on one node, with everything that the agent needs to prepare it.

    The agent prepares it (a warm launcher, a reserved port) as long as the switch has a lower generation;
    runs attempt number `attempt` once the switch has this plan id; drops it when the switch has moved on.
    `argv` and `env` still have their placeholders (`job.placeholders`), filled in from the ClusterSpec;
    not `templated`: recorded by a release that filled `argv` alone. `avoid_ports`: known to attempts that are
    not confirmed dead. `binds_alone`: its program need not know SO_REUSEPORT, so nothing else may hold its
    port while it runs. `after`: roles that must listen before the program starts. `serves`: it has nothing to
    save, and others may need it while they do. `checkpoint_patterns` name what a saver saves, where it is
    not TensorFlow's own, `checkpoint_mode` and `checkpoint_verify` how it gets to the store;
    `checkpoint_adopt` is a path of the program's own that is to show `$CHECKPOINT_DIR`. `yields`: at the
    start of a generation it cannot do anything before others have, which therefore get the processors first.
    `resources` are its limits in a container; `gpus` its devices by UUID, which others may use too if
    `gpus_shared`. Without any it must see none. `gpu_faults` are those of `Gpu.fault` that were known of them
    when this attempt was decided on. `output_budget_bytes` bounds what of its output directory goes to the
    store, `keep_work_ms` how long its node keeps what it wrote elsewhere; 0 in records of earlier releases.
    `secrets`: variables whose values the agent asks for at each start: by variable, the secret's name.
    `cadence`: of the saver, unless its job wants none. `joins`: the task has moved inside its generation, or
    is new in it, so that no other task was told of its address when it started. `hears_moves`: its program is
    told of each address that changes so (`JobSwitch.edition`). `ends`: the attempt is to end, as its task
    moves or leaves. `partial_ps`: after the loss of a parameter server a chief restores the variables of that
    one alone. `serving`: of the task whose exported models are published, to `model_base`. `data`: what it
    reads: by name, the URI, which may name a user of HDFS.
    """

    job: str
    job_uuid: str
    role: str
    index: int
    generation: int
    plan_id: str
    node: str
    incarnation: str
    attempt: int
    argv: tuple[str, ...]
    workdir: str
    env: dict[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    step_patterns: tuple[str, ...] = ()
    checkpoint_uri: str = ""
    checkpoint_patterns: tuple[str, ...] = ()
    checkpoint_mode: str = "staged"
    checkpoint_verify: Verify = Verify.READBACK
    checkpoint_adopt: str = ""
    follow: bool = False
    restart_count: int = 0
    avoid_ports: tuple[int, ...] = ()
    binds_alone: bool = False
    after: tuple[str, ...] = ()
    startup_ms: int | None = None
    protocol: str = "grpc"
    code: CodeRef | None = None
    watch_nan: bool = False
    hold_on_failure_ms: int = 0
    serves: bool = False
    yields: bool = False
    container: ContainerSpec | None = None
    resources: Resources = field(default_factory=Resources)
    gpus: tuple[str, ...] = ()
    gpus_shared: bool = False
    gpu_faults: tuple[int, ...] = ()
    templated: bool = False
    output_budget_bytes: int = 0
    keep_work_ms: int = 0
    secrets: dict[str, str] = field(default_factory=dict, metadata=NEEDED)
    cadence: Cadence | None = None
    joins: bool = False
    hears_moves: bool = False
    ends: bool = False
    partial_ps: bool = False
    serving: ServingSpec | None = None
    model_base: str = ""
    environment: EnvironmentRef | None = field(default=None, metadata=NEEDED)
    data: dict[str, str] = field(default_factory=dict, metadata=NEEDED)

    @property
    def moves(self) -> bool:
        """Whether its task may be started at an address that its ClusterSpec does not have."""
        return self.follow or self.joins

    @property
    def task(self) -> TaskId:
        """The task of this assignment."""
        return task_id(self.job, self.role, self.index)

    @property
    def attempt_id(self) -> AttemptId:
        """The attempt that the leader wants to run now."""
        return attempt_id(self.job, self.role, self.index, self.generation, self.attempt)


@dataclass(frozen=True, slots=True)
class Spare:
    """A launcher in reserve: a node keeps it preloaded for a job, so that a task that moves there starts
    warm.

    The record names no task and no generation, and starts no program.

    `wanted`: False if the node should keep none, not even one that a task has left, as no task can come
    there. `templated`: `env` may have placeholders, as in an Assignment.
    """

    job: str
    job_uuid: str
    node: str
    workdir: str
    program: str
    preload: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    code: CodeRef | None = None
    container: ContainerSpec | None = None
    resources: Resources = field(default_factory=Resources)
    wanted: bool = True
    templated: bool = False
    environment: EnvironmentRef | None = field(default=None, metadata=NEEDED)
    data: dict[str, str] = field(default_factory=dict, metadata=NEEDED)


@dataclass(frozen=True, slots=True)
class RoleAddresses:
    """`host:port` of each task of a role, by index."""

    role: str
    addresses: tuple[str, ...]

    def of(self, role: str, change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> RoleAddresses:
        """The same, with other addresses if it is of this role."""
        return RoleAddresses(role, change(self.addresses)) if role == self.role else self

    def having(self, role: str, index: int, address: str) -> RoleAddresses:
        """The same, with another address of a task, if it is of this role."""
        return self.of(
            role, lambda known: tuple(address if i == index else each for i, each in enumerate(known))
        )


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """TensorFlow's ClusterSpec of one plan, the roles outside it (`follow`) beside it.

    `edition`: how often a task in it has moved, joined or left since the generation began. `former`: the
    addresses that such tasks had before; other tasks of the generation may still know them. A task that has
    joined and does not listen yet has port 0.
    """

    job: str
    generation: int
    plan_id: str
    roles: tuple[RoleAddresses, ...]
    outside: tuple[RoleAddresses, ...] = ()
    edition: int = 0
    former: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        """All addresses that tasks of its generation may know."""
        listed = (each for entry in (*self.roles, *self.outside) for each in entry.addresses)
        return (*listed, *self.former)

    def with_address(self, role: str, index: int, address: str) -> ClusterSpec:
        """The same, with another address of one task."""
        return replace(
            self,
            roles=tuple(each.having(role, index, address) for each in self.roles),
            outside=tuple(each.having(role, index, address) for each in self.outside),
        )

    def with_new(self, role: str, host: str) -> ClusterSpec:
        """The next edition: one more task of a role, on a host where it does not listen yet."""
        roles = tuple(each.of(role, lambda known: (*known, addresses.join(host, 0))) for each in self.roles)
        return replace(self, roles=roles, edition=self.edition + 1)

    def without_last(self, role: str) -> ClusterSpec:
        """The next edition: without the last task of a role, whose address nobody else gets."""
        left = next(each.addresses[-1:] for each in self.roles if each.role == role)
        roles = tuple(each.of(role, lambda known: known[:-1]) for each in self.roles)
        former = (*self.former, *filter(listens, left))
        return replace(self, roles=roles, edition=self.edition + 1, former=former)

    def moved(self, role: str, index: int, address: str) -> ClusterSpec:
        """The next edition: a task listens elsewhere. What it is still known by is nobody else's."""
        former = (*self.former, *filter(listens, (self.address(role, index),)))
        return replace(self.with_address(role, index, address), edition=self.edition + 1, former=former)

    def address(self, role: str, index: int) -> str:
        """`host:port` of a task; raises KeyError."""
        for entry in (*self.roles, *self.outside):
            if entry.role == role:
                return entry.addresses[index]
        raise KeyError(role)


def listens(address: str) -> bool:
    """Whether a task has an address; one that has joined and does not listen yet has port 0."""
    return addresses.port_of(address) != 0


class JobPhase(Enum):
    """Phases of a job. The last four are ends. PARKED is shown and never stored (`JobSwitch.shown_phase`)."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHING = "finishing"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    PARKED = "parked"

    @property
    def ended(self) -> bool:
        """Whether the job has ended: no task of it runs, and none starts until an operator asks."""
        return self in (JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.STOPPED, JobPhase.PARKED)


@dataclass(frozen=True, slots=True)
class Parked:
    """A job is parked: an unexpected error was raised while it was processed, and no rule looks at it any
    more.

    `phase`: the job's phase before. `error`: the error's text. `place`: its file, line and function.
    """

    phase: JobPhase
    error: str
    place: str


@dataclass(frozen=True, slots=True)
class Closing:
    """The switch is closed for commits while the base of `plan_id` is staged (rule 7).

    `asked`: an operator named the base; else it is the newest, or what the job's `fallback_after` allows.
    """

    plan_id: str
    base: CheckpointRef | None
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Ledger:
    """Restarts of a job, conserved over a change of leader (rule 13).

    Attributes:
        program: restarts that the program's own faults caused.
        infrastructure: all others, counted apart.
        streak: program faults in a row without a newer commit.
        progress: the furthest commit, by step, that was known at a program fault of this job.
    """

    program: int = 0
    infrastructure: int = 0
    streak: int = 0
    progress: CheckpointRef | None = None

    @property
    def restarts(self) -> int:
        """All of them."""
        return self.program + self.infrastructure


@dataclass(frozen=True, slots=True)
class DeletedJob:
    """A deleted job. A later job of its name begins above `generation`, its last one.

    `owner`, `group`: its owner and group. While this record is kept, its name and checkpoints belong to them.
    `store_uri`: its store, from which its logs go; empty: an earlier release has deleted it.
    """

    job: str
    job_uuid: str
    generation: int
    owner: str = ""
    group: str = ""
    store_uri: str = ""


LOOK_FOR_JUDGES, LAST_LOOK, LOOK_ASIDE = 1, 2, 3
"""Values of `JobSwitch.look`."""


@dataclass(frozen=True, slots=True)
class JobSwitch:
    """The one small record that says which generation of a job is in force.

    `base` is what this generation started from. `save_grace_ms` is what a stop gives its tasks between
    SIGTERM and SIGKILL, and the end of training to an evaluator; 0: nothing is waited for. `reason` says
    why the job is in its phase. After an end, `plan_id` still names the plan last in force, whose tasks a
    later start may have to wait for (rule 3). `held`: members of a failed job that are kept, stopped, for
    `hold_on_failure`. `blameless`: this generation began because of the machines, a lost peer or an operator,
    not of a program's own fault. `cold`: the first attempts of this generation import afresh, as an error of
    the program's code may have come of the warm start. `saver`: the member of the plan in force whose node
    commits: the member that was seen to save, else the one that the job's roles let expect; empty before the
    first generation. `look`: the last look at the saver's directory that its node is to take (rule 7.8): 0
    for none, `LOOK_FOR_JUDGES` while an evaluator may run on, or what cannot be killed, `LAST_LOOK` when
    nothing of the job can write any more; then, by `LOOK_ASIDE`, the nodes of other tasks look at their own.
    `uncommitted`: finished saves without which the job has ended, for people. `parked`: why no rule looks at
    the job; its stored phase is FAILED then, which every release reads as: end its tasks, start nothing
    (decision 0045).
    `edition`: that of the ClusterSpec in force; an agent that has an older one reads it again.
    """

    job: str
    job_uuid: str
    phase: JobPhase
    generation: int
    plan_id: str = ""
    base: CheckpointRef | None = None
    closing: Closing | None = None
    incident: str = ""
    ledger: Ledger = Ledger()
    restart_serial: int = 0
    reason: str = ""
    save_grace_ms: int = 0
    held: tuple[str, ...] = ()
    blameless: bool = False
    cold: bool = False
    saver: str = ""
    parked: Parked | None = None
    edition: int = 0
    look: int = 0
    uncommitted: str = ""

    @property
    def shown_phase(self) -> JobPhase:
        """The phase as people are told it."""
        return self.phase if self.parked is None else JobPhase.PARKED


@dataclass(frozen=True, slots=True)
class Cordon:
    """No new task is placed on this node, as long as it is `in_force`.

    The leader lifts it after `cooldown_ms`; 0: an operator does.

    A cordon by the leader (rule 10) names the disobedient `incarnation`. It is lifted when an agent registers
    there that adopted no task from it: such an agent has killed all that were left (rule 12). `drain`: tasks
    there move away, too, as soon as there is room elsewhere. `place`: the line of code that raised an error
    about the node, if the node is parked for that.

    The record stays when the cordon is lifted. `lifted`: the revision of etcd that was known then. Failures
    of attempts that began by that revision do not count against the node again; otherwise they would cordon
    it at once. The next cordon keeps this.
    """

    node: str
    reason: str
    incarnation: str = ""
    cooldown_ms: int = 0
    drain: bool = False
    place: str = ""
    lifted: int = 0
    in_force: bool = True

    @property
    def by_operator(self) -> bool:
        """Whether nobody but an operator lifts it."""
        return not self.incarnation and not self.cooldown_ms


@dataclass(frozen=True, slots=True)
class Pardon:
    """A leader of an earlier release has lifted a cordon.

    What began on the node before this was written is not held against it. A leader of this release turns it
    into the `lifted` of a cordon.
    """

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class GpuQuarantine:
    """No new task gets this GPU until an operator lifts it, or the node has booted anew.

    Attributes:
        fault: the fault of `Gpu.fault` that it is about.
        boot_id: of the machine when the fault was seen.
        lifted: an operator has lifted it; the record stays, so that this fault is not acted on again.
    """

    node: str
    uuid: str
    index: int
    reason: str
    action: GpuAction
    fault: int = 0
    boot_id: str = ""
    lifted: bool = False


@dataclass(frozen=True, slots=True)
class Claims:
    """The last plan that was given CPUs, memory or GPUs.

    Each one that is compares and rewrites this record, so that none is made without knowledge of those before
    it: together they never take more than a node offers, and no two name the same GPU.
    """

    plan_id: str


@dataclass(frozen=True, slots=True)
class Tick:
    """At `at_ms` of the time that leaders have counted in all, etcd had reached this revision."""

    revision: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class ClusterTime:
    """When etcd had reached which revision, oldest first, never empty: what tells the age of records."""

    ticks: tuple[Tick, ...]
