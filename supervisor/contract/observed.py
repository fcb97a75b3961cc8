"""The reports of agents: records that they write under their incarnation, and beats, which never reach
etcd.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.ids import AttemptId, attempt_id
from supervisor.contract.incident import Raised

LINK_PROTOCOL = 1


@dataclass(frozen=True, slots=True)
class NodeResources:
    """The resources of a node for tasks.

    `runtime` is `process` or `docker`. Up to `gpu_share` tasks may share a GPU if all of them agree.
    `networks`: docker networks that jobs may join there. `secrets`: its agent gives tasks their secrets;
    False for agents of earlier releases. `spares`: it keeps launchers in reserve where it is told to; True
    for agents of earlier releases. `environments`: it makes the environments of jobs; False for agents of
    earlier releases, and where tasks run in containers. `zstd`: it unpacks those
    that zstd has packed; False for agents of earlier releases, and where there is no `zstd`. `data`: the
    kinds of places whose directories it shows to tasks (`job.data`); none for agents of earlier releases.
    """

    cpus: float
    memory_bytes: int
    gpus: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    runtime: str = "process"
    gpu_share: int = 1
    networks: tuple[str, ...] = ()
    secrets: bool = False
    spares: bool = True
    environments: bool = False
    zstd: bool = False
    data: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of an agent, in etcd under its lease.

    Attributes:
        succeeds: the incarnations of this node that it adopted from, newest first (rule 12).
        d_ms: the D that it runs under (rule 11).
        host: the address at which other tasks reach its tasks.
        address: the address of its own API (logs).
        port_low, port_high: the range, inclusive, for its tasks' ports.
        directory: device and inode of the directory of its jobs' files. Nodes of one machine may share it.
        fenced: its agent is dead, and its node has ended all that this life and those before it had started.
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
    fenced: bool = False

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
    """A prepared task of a plan: it has a launcher and holds a port, or `failure` is the reason why it
    cannot.

    `no_code`: the shipped code cannot be fetched here, which is no fault of the program. `delay`: the reason
    why no launcher can be made for now, if the task has none. `segment`: the id of a docker network that ends
    at its machine, if the address belongs to one; empty: the address can be reached from all nodes.
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
    """The health of a GPU. While it is UNKNOWN, tasks on it go on and no new task is placed there (rule
    10).
    """

    OK = "ok"
    UNKNOWN = "unknown"
    FAULTY = "faulty"


class GpuAction(Enum):
    """The remedies of a fault, ordered by their reach."""

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
        fault: a counter that every new fault increases, so that each is acted on once.
        action: the remedy of the newest fault.
        blames_program: the program on the GPU is the usual cause of that fault.
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
    """The GPUs of a node as its agent sees them.

    `problem`: the reason why NVML does not answer; empty if it does.

    `boot_id`: of the machine; a boot resets its GPUs.
    """

    node: str
    incarnation: str
    boot_id: str
    driver: str = ""
    problem: str = ""
    gpus: tuple[Gpu, ...] = ()


class StageFailure(Enum):
    """Reasons of a failed staging. BAD is a fault of the checkpoint, UNKNOWN is not (rule 8)."""

    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Staged:
    """The result of staging the base of a plan on a node: staged and verified, or the failure with its
    reason.

    `boot_id`: the machine's boot id; after another boot its disk may lack the files.
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
    """The states of an attempt, as its agent reports them."""

    RUNNING = "running"
    EXITED = "exited"


CANNOT_GO_ON = "cannot go on"
"""The beginning of the detail of START_FAILED if the attempt has run, and its agent has ended it."""


class ExitReason(Enum):
    """The ways in which an attempt ended.

    DEVICES_LOST: its launcher ended it, as its GPUs can no longer be used inside it.
    """

    EXIT = "exit"
    KILLED = "killed"
    DEADLINE = "deadline"
    START_FAILED = "start_failed"
    LAUNCHER_LOST = "launcher_lost"
    DEVICES_LOST = "devices_lost"


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of an attempt.

    Attributes:
        code: exit status; None if a signal ended it.
        signal: signal number; None if it exited.
        age_ms: the time between its end, as seen, and the writing of this report.
        confirmed_dead: no process that the attempt started is alive.
        tail: the last lines of its output, at most 4 KiB.
        raised: the exception that ended its main thread, then those that it came from, the nearest first;
            none if something else ended it, or that is unknown.
        oom: the kernel's OOM killer ended it.
        stack: the stacks of its threads when it was last suspected to hang; at most 6 KiB.
        store_lost: its checkpoint directory is a mount, and the store had failed shortly before.
        address_lost: the address is gone with its container, or taken by another, so no further attempt can
            use it.
        rebooted: it ended with its machine, at an unknown time.
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
    raised: tuple[Raised, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often an attempt saves, in milliseconds, as its own process measures; -1: not known.

    Attributes:
        every_ms: from one save to the next: as it is steered, else as it was seen.
        cost_ms: for how long a save holds training up.
        pays_ms: the interval that would pay.
        own_ms: how often it would save by itself, where its launcher asks it to save; 0: not known; -1: it is
            not asked.
        why: why it is not asked, if there is a reason.
    """

    every_ms: int = -1
    cost_ms: int = -1
    pays_ms: int = -1
    own_ms: int = -1
    why: str = ""


@dataclass(frozen=True, slots=True)
class Saves:
    """The places of an attempt's saves, as its own process notes them: a hint that a program can forge.

    Attributes:
        inside: number of finished saves below `$CHECKPOINT_DIR`.
        outside: number of saves in places that are not sent to the store.
        elsewhere: the first few directories (or URIs) of those.
        watched: its process notes its saves; False: they are unknown.
        pace: how often it saves there.
        recovers: its sessions are replaced where a parameter server is lost. A chief's then restores all
            variables from `$CHECKPOINT_DIR`.
        restored: it has read a checkpoint below `$CHECKPOINT_DIR`.
    """

    inside: int = 0
    outside: int = 0
    elsewhere: tuple[str, ...] = ()
    watched: bool = False
    pace: Pace = Pace()
    recovers: bool = False
    restored: bool = False


STAYS = "its agent is of an earlier release"
"""Why a task stays, by a report of an agent that does not say why."""


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """One attempt, as last reported.

    `drained`: its node has no more to commit of it. `look`: the last look, of those that `JobSwitch` asks
    for, that its node has taken. `uncommitted`: the finished save that this look found and the node did not
    commit, for people; empty for none.

    `last_step` is -1 too if no number of its steps behaves like a global step. Then `stepped` shows that it
    has made a step.

    `gpus`: UUIDs of the GPUs that it may hold until it is confirmed dead. `saves`: its saves up to this
    report. `warm`: it was forked from an interpreter with the imports
    done, or that is unknown. `stays`: why its program cannot take part in a move inside its generation, as a
    worker that moves or as a chief that is told of it; empty if it can. `adds_workers`, `drops_workers`: as a
    coordinator that takes part, it takes more workers, or fewer, too.
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
    warm: bool = True
    stays: str = STAYS
    adds_workers: bool = False
    drops_workers: bool = False
    look: int = 0
    uncommitted: str = ""

    @property
    def has_stepped(self) -> bool:
        """Whether it has made a step of any number."""
        return self.stepped or self.last_step >= 0

    @property
    def attempt(self) -> AttemptId:
        """The attempt of this report."""
        return attempt_id(self.job, self.role, self.index, self.generation, self.number)

    @property
    def confirmed_dead(self) -> bool:
        """Whether it has ended, and no process that it started is alive."""
        return self.exit is not None and self.exit.confirmed_dead


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign of life of an attempt.

    Attributes:
        name: `output`, `step`, `save`, `cpu`, `gpu`, `files` or `data`; a reader ignores names that it does
            not know.
        age_ms: time since it was last shown.
        pause_ms: its longest usual pause; -1 until that is learnt.
    """

    name: str
    age_ms: int
    pause_ms: int = -1


@dataclass(frozen=True, slots=True)
class TaskBeat:
    """Progress of one running attempt. Ages, not times, cross hosts; -1 stands for never, or unknown.

    Attributes:
        step: the newest number that behaves like a global step; -1 too if the program counts in another way.
        step_age_ms: time since its last step of any kind; -1 too if steps can no longer be read (a full
            disk).
        first_step: the first number of this attempt that behaves like a global step.
        first_step_age_ms: time since its first step of any kind.
        rate: steps per second over the last few seconds.
        slowest_ms: the longest pause between two steps of this attempt; -1 before the second.
        nan: its loss has been printed as NaN.
        pace: lines with a new step per second, over the last half minute. It shows the speed of a task even
            where all tasks report one global step.
        stopped: its main process is stopped by a signal.
        ended: it has ended, but its report is not written yet.
        saves: its saves so far.
        signs: its signs of life; empty from agents of releases without them.
        silent_ms: time since its last output of any kind.
        is_local: the program does not call `step` global, so it may be a count of its own.
        said: the position in the program's own words, such as `epoch 2, step 10`; at most 64 characters.
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
        """Whether it has made a step of any number."""
        return self.first_step_age_ms >= 0 or self.step >= 0


@dataclass(frozen=True, slots=True)
class UnusableSave:
    """An entry below `$CHECKPOINT_DIR` that looks like a save and cannot be committed, with the reason."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class SaverBeat:
    """The state of one generation's commits, from the node that makes them.

    Attributes:
        pending: the newest finished save that is not committed; None if all are.
        waiting_ms: time for which a finished save has waited for its commit; -1 if none waits.
        still_ms: time since the running commit last made progress; -1 if none runs.
        skipped: saves of this generation that were given up for a newer one, counted by this agent.
        last_skipped: the newest of them.
        trouble: the reason why saves cannot be taken or committed now; empty if they can.
        trouble_ms: the duration of the trouble; -1 without any.
        unusable: the last few saves that can never be committed.
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
    """The load of a GPU, as its node saw it last; -1 for unknown values.

    Attributes:
        temperature: degrees Celsius.
        utilisation: per cent.
        memory_used: bytes.
        throttle: bits of NVML's reasons for slower clocks, without that for an idle GPU.
        ours, others: number of processes on it that are of this agent's attempts, and of all others.
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
LOGS_LATE, MODEL_PUBLISHED = "logs_late", "model_published"
NOTICES = frozenset({WORK_KEPT, OUTPUTS_LEFT_OUT, OUTPUTS_LATE, LOGS_LATE, MODEL_PUBLISHED})
MOST_NOTICES = 32


@dataclass(frozen=True, slots=True)
class Notice:
    """An agent's notice about a job's files on its node: `kind` is one of `NOTICES`, `text` is for people.

    `about` is its subject. Each subject of a kind gives one event.
    """

    job: str
    job_uuid: str
    kind: str
    about: str
    text: str


@dataclass(frozen=True, slots=True)
class Beat:
    """An agent's sign of life to the leader, sent by the loop that does its work (rule 4).

    `spares`: the job of each launcher in reserve that has finished its imports. `gpus`: the load of the
    node's GPUs. `asked`: the serial of its last request for promises (rule 11), 0 before any. `released`: the
    serial up to which it has given promises up. `unread_ms`: time since its last good read of etcd was sent
    (rule 3). `blocked`: the reason why no new task can start there for now. `notices`: notices about files of
    jobs. `certificate`: the end of its agent's certificate, if that is soon.
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

    `dump` names the attempts that may hang. Their agent keeps a dump of their stacks, one for each time that
    an attempt appears here.
    """

    protocol: int
    seq: int
    leader: str
    dump: tuple[str, ...] = ()
