"""Everything that can happen to an agent. The inbox holds these and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from agent.core.gpus.health import Sight
from agent.core.instructions import Opening, Reach
from agent.inside import protocol
from supervisor.contract.boundaries import Seen
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import Assignment, ClusterSpec, JobSwitch, Spare
from supervisor.contract.ids import AttemptId
from supervisor.contract.observed import GpuReport, Incarnation


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The node's key holds `me`, by a transaction sent at `sent_ms`.

    `adopt`: it succeeded the incarnation of the state file, whose attempts may go on (rule 12).
    `d_ms` is the cluster's D.
    """

    me: Incarnation
    sent_ms: int
    adopt: bool
    d_ms: int


@dataclass(frozen=True, slots=True)
class BeatSeen:
    """A linearizable read sent at `sent_ms` found our key and no lost mark (rule 3)."""

    sent_ms: int


@dataclass(frozen=True, slots=True)
class TermsSeen:
    """The cluster's record names who promises, and for how long (rule 11); 0 ms: nobody does.

    `cluster`: the UUID of the cluster that this node is part of; empty where its record has none.
    """

    supervisors: tuple[str, ...]
    for_ms: int
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class Promised:
    """A supervisor's answer to the request for promises sent at `sent_ms`.

    `for_ms`: from its receipt, 0 with why it is `refused`.
    """

    supervisor: str
    serial: int
    sent_ms: int
    for_ms: int
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Evicted:
    """Our incarnation is lost for good: everything must die before the node may join again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Observed:
    """All decisions of the leader, as the mirrors show them.

    `assignments` and `spares` are those of this node; `switches` of each job that it has something of.
    `heard_ms`: the oldest of the last signs of life of the mirrors that show assignments and switches; no
    safety rule depends on that of spares. `seen`: the newest write of assignments and switches.
    """

    assignments: tuple[Assignment, ...]
    switches: tuple[JobSwitch, ...]
    heard_ms: int
    spares: tuple[Spare, ...] = ()
    seen: Seen | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """The mirrors are in step with etcd as of `heard_ms`; nothing changed."""

    heard_ms: int


@dataclass(frozen=True, slots=True)
class MemoryFree:
    """How much memory this machine could give to a new process without taking it from others."""

    free_bytes: int


@dataclass(frozen=True, slots=True)
class Spawned:
    """The launcher's process exists. `reach`: where its tasks are, if not at the node's own address."""

    launcher_id: str
    pid: int
    start_ticks: int
    reach: Reach | None = None


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """There will be no such launcher. `unknown`: what it lacks (code, docker, a disk) may be had later.

    `full`: this node has nothing for one more job.
    """

    launcher_id: str
    reason: str
    unknown: bool = False
    full: bool = False


@dataclass(frozen=True, slots=True)
class LauncherGone:
    """The launcher's process has ended.

    `why`: how, as far as its runtime knows. `code`: as `subprocess` gives it, below 0 a signal; None where it
    is not known. `said`: the end of what it wrote, in words; empty where that is not to be told. `exits`: the
    ends of its attempts that it wrote down, and may not have told.
    """

    launcher_id: str
    why: str = ""
    code: int | None = None
    said: str = ""
    exits: tuple[protocol.Exited, ...] = ()

    @property
    def reason(self) -> str:
        """How it ended, for the agent's log, for `explain` and for events."""
        return "; ".join(filter(None, (self.why, self.said)))


@dataclass(frozen=True, slots=True)
class LauncherSaid:
    """A message of `agent.inside.protocol`; its first one on a connection is a Hello."""

    launcher_id: str
    message: object


@dataclass(frozen=True, slots=True)
class LauncherLeft:
    """Its connection has ended; the process may live on."""

    launcher_id: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """A round of `Fence` is over; `survivors` processes were still seen."""

    launcher_id: str
    survivors: int


@dataclass(frozen=True, slots=True)
class SpecRead:
    """The ClusterSpec of a plan; None when it is not there or could not be read."""

    plan_id: str
    spec: ClusterSpec | None


@dataclass(frozen=True, slots=True)
class BroughtIn:
    """A plan's code and image are on this node; or not, and why.

    `unknown`: it may be had later (rule 10). `hopeless`: never, and on no node.
    """

    plan_id: str
    failure: str = ""
    unknown: bool = False
    hopeless: bool = False


class Unstaged(Enum):
    """Why a base is not in the generation's directory.

    Of the first two the leader is told. The others say nothing of the base or its store, which it would pass
    over or wait for: UNASKED is etcd's silence, NO_ROOM a disk of this node's own that is full.
    """

    BAD = "bad"
    UNREADABLE = "unreadable"
    UNASKED = "unasked"
    NO_ROOM = "no_room"


@dataclass(frozen=True, slots=True)
class StageDone:
    """The base of a plan is in the generation's directory; or not, and why."""

    job: str
    plan_id: str
    base: CheckpointRef | None
    failure: Unstaged | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Drained:
    """The last look number `look` for an attempt is over. `uncommitted`: as in its report."""

    attempt: AttemptId
    look: int
    uncommitted: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """A write of the core's is over.

    `tag` is the instruction's. `ok`: etcd holds it. Otherwise it may be tried again, unless `moot`: what it
    answers is gone.
    """

    tag: str
    ok: bool
    moot: bool = False


@dataclass(frozen=True, slots=True)
class DumpAsked:
    """The leader suspects that these attempts hang, and wants to know where their threads are."""

    attempts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KillRehearsed:
    """The duration of the longest of a few kills on this node just now, in milliseconds."""

    kill_ms: int


@dataclass(frozen=True, slots=True)
class GpusSeen:
    """The watch over the GPUs has something to tell."""

    sight: Sight


@dataclass(frozen=True, slots=True)
class GpusTold:
    """Etcd has this report of the GPUs; or not (`ok` False), and it is to be written again."""

    report: GpuReport
    ok: bool


@dataclass(frozen=True, slots=True)
class Reported:
    """A report was written; or not (`ok` False) and is to be written again. `stepped`: it has made a step.

    `peer_lost`: by its last words the attempt ended as it lost a peer.
    """

    attempt: AttemptId
    serial: int
    ok: bool
    stepped: bool = False
    peer_lost: bool = False


@dataclass(frozen=True, slots=True)
class Broken:
    """The daemon met an unexpected error while it dealt with a launcher, an attempt, or a job of a UUID."""

    reason: str
    launcher_id: str = ""
    attempt: AttemptId | None = None
    job_uuid: str = ""


@dataclass(frozen=True, slots=True)
class OverDisk:
    """The files of a job take more of this node's disks than its agent allows."""

    job_uuid: str
    reason: str


@dataclass(frozen=True, slots=True)
class OutputsReady:
    """The output directory of an attempt is there, whatever could be brought into it."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class FirewallSet:
    """These are in force; or not, for this reason. `left_out`: plans that are not, each with the reason."""

    openings: tuple[Opening, ...]
    failure: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SecretsFetched:
    """The agent has the secrets of an attempt; or they cannot be had now, because of `delay`."""

    attempt: AttemptId
    delay: str = ""


Event = (
    Tick
    | Joined
    | BeatSeen
    | TermsSeen
    | Promised
    | Evicted
    | Observed
    | Heard
    | MemoryFree
    | Spawned
    | SpawnFailed
    | LauncherGone
    | LauncherSaid
    | LauncherLeft
    | Fenced
    | SpecRead
    | BroughtIn
    | StageDone
    | OutputsReady
    | SecretsFetched
    | Drained
    | Written
    | Reported
    | DumpAsked
    | GpusSeen
    | GpusTold
    | KillRehearsed
    | FirewallSet
    | Broken
    | OverDisk
)
