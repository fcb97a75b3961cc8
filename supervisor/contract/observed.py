"""What agents report: records that they write under their incarnation, and beats that never reach etcd."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.ids import AttemptId, attempt_id

LINK_PROTOCOL = 1


@dataclass(frozen=True, slots=True)
class NodeResources:
    """What a node offers to tasks.

    `runtime` is `process` or `docker`. So many tasks as `gpu_share` may share a GPU where all of them agree.
    `networks`: of docker's, those that jobs may join there. `secrets`: its agent gives tasks their secrets;
    agents of earlier releases know of none.
    """

    cpus: float
    memory_bytes: int
    gpus: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    runtime: str = "process"
    gpu_share: int = 1
    networks: tuple[str, ...] = ()
    secrets: bool = False


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of an agent, in etcd under its lease.

    Attributes:
        succeeds: the incarnations of this node that it adopted from, newest first (rule 12).
        d_ms: the D that it runs under (rule 11).
        host: the address that other tasks reach its tasks at.
        address: where its own API (logs) listens.
        port_low, port_high: the range, inclusive, for its tasks' ports.
        directory: device and inode of where its jobs' files are. Nodes of one machine may share it.
    """

    node: str
    incarnation: str
    boot_id: str
    d_ms: int
    host: str
    address: str
    port_low: int
    port_high: int
    pid: int
    resources: NodeResources
    succeeds: tuple[str, ...] = ()
    release: str = ""
    directory: str = ""

    def acts_for(self, incarnation: str) -> bool:
        """Whether a record addressed to `incarnation` is addressed to this agent."""
        return incarnation == self.incarnation or incarnation in self.succeeds

    def shares_files(self, other: Incarnation) -> bool:
        """Whether tasks of both find the same files in `$CHECKPOINT_DIR`."""
        return (self.boot_id, self.directory) == (other.boot_id, other.directory)


@dataclass(frozen=True, slots=True)
class Appeal:
    """`incarnation` is marked lost; it, or `successor` (empty: itself), is alive and asks for withdrawal."""

    node: str
    incarnation: str
    successor: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A task of a plan has a launcher and holds a port; or cannot, and `failure` says why.

    `no_code`: it is the shipped code that cannot be had here, which is no fault of the program. `delay`: what
    keeps a launcher from being made for now, if it has none yet, or has one no more. `segment`: the address
    is of a docker network that ends at its machine, of this id; empty: it can be reached from all nodes.
    `hopeless`: it would fail so on every node and each time.
    """

    job: str
    plan_id: str
    role: str
    index: int
    node: str
    incarnation: str
    address: str = ""
    warm: bool = False
    failure: str = ""
    no_code: bool = False
    delay: str = ""
    segment: str = ""
    hopeless: bool = False


class GpuHealth(Enum):
    """UNKNOWN is not gone: what runs there goes on, nothing new is placed there (rule 10)."""

    OK = "ok"
    UNKNOWN = "unknown"
    FAULTY = "faulty"


class GpuAction(Enum):
    """What a fault asks for, in the order of its reach."""

    NONE = "none"
    RESTART_TASK = "restart_task"
    RESET_GPU = "reset_gpu"
    DRAIN_NODE = "drain_node"
    CONTACT = "contact"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node.

    Attributes:
        uuid: NVML's, `GPU-...`.
        numa: NUMA node, -1 if unknown.
        peers: UUIDs of the GPUs that it reaches over NVLink.
        mig: it is split by MIG.
        fault: raised by every new fault that its node's agent sees, so that each is acted on once.
        action: what the newest fault asks for.
        blames_program: that fault is mostly of the making of the program that ran on the GPU.
    """

    uuid: str
    index: int
    name: str
    memory_bytes: int
    numa: int = -1
    peers: tuple[str, ...] = ()
    mig: bool = False
    health: GpuHealth = GpuHealth.OK
    reason: str = ""
    action: GpuAction = GpuAction.NONE
    fault: int = 0
    blames_program: bool = False


@dataclass(frozen=True, slots=True)
class GpuReport:
    """The GPUs of a node as its agent knows them. `problem`: why NVML tells nothing; empty if it does.

    `boot_id`: of the machine; a boot resets its GPUs.
    """

    node: str
    incarnation: str
    boot_id: str
    driver: str = ""
    problem: str = ""
    gpus: tuple[Gpu, ...] = ()


class StageFailure(Enum):
    """Why a base could not be staged: BAD is the checkpoint's fault, UNKNOWN is not (rule 8)."""

    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Staged:
    """A node holds and has verified the base of a plan; or not, and why.

    `boot_id`: of the machine, whose disk need not have it after another boot.
    """

    job: str
    plan_id: str
    node: str
    incarnation: str
    base: CheckpointRef | None
    failure: StageFailure | None = None
    detail: str = ""
    boot_id: str = ""


class AttemptState(Enum):
    """An attempt's life as its agent reports it."""

    RUNNING = "running"
    EXITED = "exited"


CANNOT_GO_ON = "cannot go on"
"""How the detail of START_FAILED begins where the attempt has run, and its agent has ended it."""


class ExitReason(Enum):
    """Who ended an attempt. DEVICES_LOST: we, as GPUs that it was given cannot be used inside any more."""

    EXIT = "exit"
    KILLED = "killed"
    DEADLINE = "deadline"
    START_FAILED = "start_failed"
    LAUNCHER_LOST = "launcher_lost"
    DEVICES_LOST = "devices_lost"


@dataclass(frozen=True, slots=True)
class Exit:
    """How an attempt ended.

    Attributes:
        code: exit status, None when a signal ended it.
        signal: signal number, None when it exited.
        age_ms: how long before this report was written it was seen to end.
        confirmed_dead: nothing that the attempt started is alive any more.
        tail: the last lines of its output, at most 4 KiB.
        oom: the kernel's OOM killer ended it.
        stack: where its threads were when it was last suspected to hang; at most 6 KiB.
        store_lost: its checkpoint directory is a mount, and its store had failed it shortly before.
        address_lost: the address is gone with its container, or taken: no attempt can be given it again.
        rebooted: it ended with its machine, and nobody there can tell when.
    """

    reason: ExitReason
    code: int | None
    signal: int | None
    age_ms: int
    confirmed_dead: bool
    detail: str = ""
    tail: str = ""
    oom: bool = False
    stack: str = ""
    store_lost: bool = False
    address_lost: bool = False
    rebooted: bool = False


@dataclass(frozen=True, slots=True)
class Saves:
    """Where an attempt saves, as its own process says: a hint, which a program can forge.

    Attributes:
        inside: saves below `$CHECKPOINT_DIR` that it has finished.
        outside: saves outside of what is taken to the store.
        elsewhere: the directories (or URIs) of those, the first few.
        watched: its process notes its saves; False: nothing is known of them.
    """

    inside: int = 0
    outside: int = 0
    elsewhere: tuple[str, ...] = ()
    watched: bool = False


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """One attempt, as last reported. `drained`: the saver's last finished checkpoint has been dealt with.

    `last_step` is -1 also where its steps have no number that behaves like a global step; `stepped` says then
    that it has made one.

    `gpus`: those that it may hold as long as it is not confirmed dead, by UUID. `saves`: up to this
    report. `saver`: its node commits what it saves. `warm`: it was forked from an interpreter that has
    imported already, or it is not known.
    """

    job: str
    role: str
    index: int
    generation: int
    number: int
    plan_id: str
    node: str
    incarnation: str
    state: AttemptState
    pid: int
    start_ticks: int
    address: str
    exit: Exit | None = None
    drained: bool = False
    last_step: int = -1
    gpus: tuple[str, ...] = ()
    saves: Saves = Saves()
    stepped: bool = False
    saver: bool = False
    warm: bool = True

    @property
    def has_stepped(self) -> bool:
        """Whether it has made a step, of whatever number."""
        return self.stepped or self.last_step >= 0

    @property
    def attempt(self) -> AttemptId:
        """Whose report this is."""
        return attempt_id(self.job, self.role, self.index, self.generation, self.number)

    @property
    def confirmed_dead(self) -> bool:
        """Whether it has ended, and nothing that it started is alive any more."""
        return self.exit is not None and self.exit.confirmed_dead


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign of life of an attempt.

    Attributes:
        name: `output`, `step`, `save`, `cpu`, `gpu` or `files`; a reader ignores names that it does not know.
        age_ms: how long ago it was shown last.
        pause_ms: the longest pause that is usual for it; -1 until it is learnt.
    """

    name: str
    age_ms: int
    pause_ms: int = -1


@dataclass(frozen=True, slots=True)
class TaskBeat:
    """Progress of one running attempt. Ages, not times, cross hosts; -1 stands for never, or unknown.

    Attributes:
        step: the newest number that behaves like a global step; -1 also where training counts otherwise.
        step_age_ms: since it last showed a step of whatever kind; -1 also when steps cannot be seen any more
            (a full disk).
        first_step: the first such number of this attempt.
        first_step_age_ms: since its first step of whatever kind.
        rate: steps per second over the last few seconds.
        slowest_ms: the longest pause between two steps of this attempt, -1 before the second.
        nan: its loss has been printed as NaN.
        pace: lines that showed a new step per second over the last half minute; where all tasks report one
            global step, it alone tells them apart.
        stopped: its main process is stopped by a signal.
        ended: it has ended, and its report is not written yet.
        saves: where it has saved so far.
        signs: its signs of life; none from an agent that does not tell them.
        silent_ms: since it last wrote anything at all.
        is_local: the program does not call `step` global: it may be a count of its own.
        said: where the program says that it is, as `epoch 2, step 10`; at most 64 characters.
    """

    attempt: str
    step: int = -1
    step_age_ms: int = -1
    first_step: int = -1
    first_step_age_ms: int = -1
    rate: float = 0.0
    slowest_ms: int = -1
    nan: bool = False
    pace: float = -1.0
    stopped: bool = False
    ended: bool = False
    saves: Saves = Saves()
    signs: tuple[Sign, ...] = ()
    silent_ms: int = -1
    is_local: bool = False
    said: str = ""

    @property
    def has_stepped(self) -> bool:
        """Whether it has made a step, of whatever number."""
        return self.first_step_age_ms >= 0 or self.step >= 0


@dataclass(frozen=True, slots=True)
class UnusableSave:
    """Something below `$CHECKPOINT_DIR` that looks like a save and cannot be committed, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class SaverBeat:
    """How the commits of one generation get on, from the node that makes them.

    Attributes:
        pending: the newest finished save that is not committed; None when all are.
        waiting_ms: for how long some finished save has waited to become a commit; -1 when none does.
        still_ms: for how long nothing of the commit in hand has moved; -1 when none is in hand.
        skipped: saves of this generation that were given up for a newer one, counted by this agent.
        last_skipped: the newest of them.
        trouble: why saves cannot be taken or committed now; empty when they can.
        trouble_ms: for how long; -1 without any.
        unusable: the last few of what cannot be committed, however long one waits.
    """

    job: str
    generation: int
    pending: CheckpointRef | None = None
    waiting_ms: int = -1
    still_ms: int = -1
    skipped: int = 0
    last_skipped: CheckpointRef | None = None
    trouble: str = ""
    trouble_ms: int = -1
    unusable: tuple[UnusableSave, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuBeat:
    """How hard a GPU works, as its node saw it last; -1 where that is not told.

    Attributes:
        temperature: degrees Celsius.
        utilisation: per cent.
        memory_used: bytes.
        throttle: bits of NVML's reasons why its clocks are held back; that it has nothing to do is none.
        ours, others: processes on it that are main processes of this agent's attempts, and all others.
    """

    uuid: str
    temperature: int = -1
    power_mw: int = -1
    utilisation: int = -1
    memory_used: int = -1
    throttle: int = 0
    ours: int = 0
    others: int = 0


WORK_KEPT, OUTPUTS_LEFT_OUT, OUTPUTS_LATE = "work_kept", "outputs_left_out", "outputs_late"
NOTICES = frozenset({WORK_KEPT, OUTPUTS_LEFT_OUT, OUTPUTS_LATE})
MOST_NOTICES = 32


@dataclass(frozen=True, slots=True)
class Notice:
    """What an agent tells of a job's files on its node: `kind` of `NOTICES`, and `text` for people.

    `about` tells it from others of its kind: for each there is one event.
    """

    job: str
    job_uuid: str
    kind: str
    about: str
    text: str


@dataclass(frozen=True, slots=True)
class Beat:
    """An agent's sign of life to the leader, sent by the loop that does its work (rule 4).

    `spares`: the job of each launcher in reserve that has imported what it preloads. `gpus`: of this node.
    `asked`: the serial of its last request for promises (rule 11), 0 before any; `released`: that up to which
    it has given them up. `unread_ms`: how long ago its last good read of etcd was sent (rule 3).
    `blocked`: why nothing new can start there for now. `notices`: of jobs' files there.
    `certificate`: when its agent's certificate ends, where that is soon.
    """

    protocol: int
    node: str
    incarnation: str
    seq: int
    tasks: tuple[TaskBeat, ...] = ()
    savers: tuple[SaverBeat, ...] = ()
    spares: tuple[str, ...] = ()
    gpus: tuple[GpuBeat, ...] = ()
    asked: int = 0
    released: int = 0
    unread_ms: int = 0
    blocked: str = ""
    notices: tuple[Notice, ...] = ()
    certificate: str = ""


@dataclass(frozen=True, slots=True)
class BeatAck:
    """The leader's answer; `leader` is empty when this supervisor does not lead.

    `dump` names the attempts that may hang: their agent keeps a dump of their stacks, once for
    each time that they begin to be named.
    """

    protocol: int
    seq: int
    leader: str
    dump: tuple[str, ...] = ()
