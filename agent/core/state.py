"""The state of an agent: launchers, ports that they hold, attempts, and what the leader wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from operator import attrgetter

from agent.core.events import Observed
from agent.core.gpus.health import GpuBook
from agent.core.instructions import Follow, Opening, Reach, Recipe
from agent.core.promise_book import PromiseBook
from agent.core.saved.record import End, PlanAddresses
from agent.settings import AgentSettings
from supervisor.contract.boundaries import Seen
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import ClusterSpec
from supervisor.contract.ids import AttemptId
from supervisor.contract.observed import GpuReport, Incarnation


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher process, from the intent to spawn it until nothing of it is left.

    Attributes:
        member: the task that it is kept for; empty for a spare.
        heard_ms: its last sign of life; while it is away, when it went.
        settled: preloading is over, well (`warm`) or not.
        adopts, keeps_secrets, joins, adds_workers, drops_workers: what it knows, as its hello says.
        doomed: to be killed from outside, with all that it started.
        fencing: such a round is under way.
        leaving_ms: when it was told to leave, or said that it does; -1 before.
        had_secrets: an attempt with secrets may have been started there.
        reach: where its tasks are reached, once it is known; None for those on their node's own network.
    """

    launcher_id: str
    recipe: Recipe
    heard_ms: int
    member: str = ""
    pid: int = 0
    start_ticks: int = 0
    connected: bool = False
    welcomed: bool = False
    warm: bool = False
    settled: bool = False
    adopts: bool = False
    keeps_secrets: bool = False
    joins: bool = False
    adds_workers: bool = False
    drops_workers: bool = False
    doomed: bool = False
    fencing: bool = False
    fence_ms: int = -1
    leaving_ms: int = -1
    had_secrets: bool = False
    reach: Reach | None = None

    @property
    def usable(self) -> bool:
        """Whether a task may be given to it."""
        return not self.doomed and self.leaving_ms < 0


class HoldState(Enum):
    """A port's reservation. ASKED is repeated when the launcher comes back without it."""

    WAITING = "waiting"
    ASKED = "asked"
    HELD = "held"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PortReservation:
    """A port of a plan's task at a launcher.

    `answered`: the Prepared record is written by this life, or moot; `told`: the address in it, empty for a
    refusal. `tries`: launchers that ended before they held it, the last one as `ended` says. `delay`: why
    none can be made for now, since `delayed_ms`; the next is made at `again_ms`.
    """

    job: str
    plan_id: str
    member: str
    launcher_id: str
    state: HoldState
    reuse: int | None = None
    port: int = 0
    warm: bool = False
    failure: str = ""
    answered: bool = False
    answering: bool = False
    told: str = ""
    tries: int = 0
    ended: str = ""
    delay: str = ""
    delayed_ms: int = -1
    again_ms: int = -1

    @property
    def name(self) -> str:
        """The reservation's name."""
        return hold_name(self.plan_id, self.member)


def hold_name(plan_id: str, member: str) -> str:
    """One reservation for each task of a plan."""
    return f"{plan_id}.{member}"


class ReportLevel(IntEnum):
    """How much of an attempt's story etcd has; it only grows."""

    NOTHING = 0
    RUNNING = 1
    EXITED = 2
    DEAD = 3
    LOOKED = 4
    DRAINED = 5


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a task, from the intent until it is told and forgotten.

    Attributes:
        hold_ms: how long its directory is kept if it fails.
        pid: 0 until it is known to run.
        asked: the launcher may know of it.
        killed_ms, kills: when it was last told to die, -1 before; how often it was.
        ending_ms, terminated_ms: since when it is let end by itself; when it was last asked to.
        drained: this node has no more to commit of it.
        look, uncommitted: as in its report.
        told, telling: the report that etcd has, and the one that is being written.
        acked: the launcher may forget its exit.
        dumped: the stacks of its threads have been asked for, and still are.
        suspended: its launcher has been told to stop it where it is.
        tensorflow: the version that its launcher has imported for it; it is told anew at each hello.
        gpus, gpus_shared: those that it may hold until it is confirmed dead; whether others may, too.
        stays: as in its report, once it is known to run.
        heard: the edition of the ClusterSpec that its launcher has been told of.
    """

    id: AttemptId
    job_uuid: str
    plan_id: str
    launcher_id: str
    port: int
    address: str
    warm: bool
    patterns: tuple[str, ...] = ()
    watch_nan: bool = False
    hold_ms: int = 0
    asked: bool = False
    pid: int = 0
    start_ticks: int = 0
    started_ms: int = -1
    killed_ms: int = -1
    kills: int = 0
    ending_ms: int = -1
    terminated_ms: int = -1_000_000
    end: End | None = None
    drained: bool = False
    draining: bool = False
    look: int = 0
    uncommitted: str = ""
    told: ReportLevel = ReportLevel.NOTHING
    telling: ReportLevel = ReportLevel.NOTHING
    acked: bool = False
    dumped: bool = False
    suspended: bool = False
    tensorflow: str = ""
    gpus: tuple[str, ...] = ()
    gpus_shared: bool = False
    stays: str = "it has not run"
    heard: int = 0

    def follow(self) -> Follow:
        """How its output is read while it runs."""
        return Follow(
            self.id,
            self.job_uuid,
            self.patterns,
            self.started_ms,
            self.pid,
            self.start_ticks,
            self.watch_nan,
            self.tensorflow,
        )

    @property
    def alive(self) -> bool:
        """Not confirmed dead; also when it may not have been started yet."""
        return self.end is None or not self.end.confirmed_dead

    @property
    def owed(self) -> ReportLevel:
        """The report that etcd should have."""
        if self.end is None:
            return ReportLevel.RUNNING if self.pid else ReportLevel.NOTHING
        if not self.end.confirmed_dead:
            return ReportLevel.EXITED
        if self.drained:
            return ReportLevel.DRAINED
        return ReportLevel.LOOKED if self.look else ReportLevel.DEAD

    @property
    def settled(self) -> bool:
        """Whether no work is left to do about it."""
        return not self.alive and self.drained and self.told >= ReportLevel.DRAINED


@dataclass(frozen=True, slots=True)
class Condemned:
    """Part of a job that is killed whole, after an error: a launcher with its attempts, or what had none.

    `why`: the error. `processes`: PIDs and starts. `fencing`: a round of killing goes on; the next one begins
    at `again_ms`.
    """

    job: str
    why: str
    processes: tuple[tuple[int, int], ...]
    attempts: tuple[Attempt, ...]
    again_ms: int
    fencing: bool = False


@dataclass(frozen=True, slots=True)
class Staging:
    """One answer to a closing switch: once per job, plan and base; again at `again_ms` (-1: never) when the
    outcome was unknown (rule 8).
    """

    job: str
    plan_id: str
    base: CheckpointRef | None
    done: bool = False
    answered: bool = False
    again_ms: int = -1


ROOM_AGAIN_MS = 20_000
"""The time for which no task starts on a node that had no room."""


@dataclass(frozen=True, slots=True)
class Full:
    """The node had no room for a base or no user for a job, as `detail` says; none until `until_ms`."""

    detail: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class FirewallState:
    """The openings that this life has put in force; None before it has.

    `left_out`: plans of it that are not in force, each with the reason. `setting`: the next is under way.
    `failure`: why the last try failed. `again_ms`: when to try anew, or -1.
    """

    in_force: tuple[Opening, ...] | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    setting: bool = False
    failure: str = ""
    again_ms: int = -1


@dataclass(frozen=True, slots=True)
class CodeStanding:
    """Whether the code of a plan in preparation is on this node.

    `again_ms`: when to try again, as it could not be had for now because of `delay`; -1 while it is tried.
    `hopeless`: the failure is the same on all nodes, and for ever.
    """

    done: bool = False
    failure: str = ""
    again_ms: int = -1
    delay: str = ""
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class SecretStanding:
    """Whether the secrets of an attempt are here.

    `again_ms`: when to ask again, as they could not be had for now because of `delay`; -1 while it is asked.
    `tries`: questions without an answer, as far as they count.
    """

    done: bool = False
    again_ms: int = -1
    delay: str = ""
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Delay:
    """The last report to the leader of why a task waits, by a Prepared record; empty: it waits no more.

    None: unknown, as the write has failed. `telling`: the report is being written, and no other report on the
    task may be written meanwhile.
    """

    reason: str | None
    telling: bool = True


@dataclass(frozen=True, slots=True)
class AgentState:
    """Everything that the core knows. A value: `step` returns a new one.

    Attributes:
        life: the incarnation id of this life, also before it has joined.
        cluster: the UUID of the cluster that this node is part of; empty before its record was read.
        stepped_ms: when the rules were applied last.
        seen: the newest write by which its etcd wanted anything here.
        me: our incarnation once etcd has it; None before, and while outcast.
        deadline_ms: rule 3; None before the first good read.
        read_ms: when the last good read was sent, -1 before the first.
        promises: by which tasks may run beyond it, where etcd is gone (rule 11).
        view: what the leader wants; None until the mirrors are whole.
        full: the node had no room for a base, or no user for a job, lately.
        commits: by job, of what is committed here: UUID, generation, and the member that saves.
        following: generations whose directories tasks here read, by job, and whether commits are brought in.
        cold: the warm attempt that fell over before its first step, by task that starts cold because of it.
        retried: tasks that have run well since, and have had another warm start (`agent.core.warmth`).
        cleaned: (UUID, generation, ended) of the last cleaning, by job.
        found: UUIDs of jobs that have had directories here since before this life.
        spawn_failed_ms: when a launcher could not be started last, -1 for never.
        free_bytes: memory that is free on this machine, -1 until it is known.
        code: of plans in preparation, by plan id; code_kept, data_kept: what was last said to be in use.
        delays: of tasks that are prepared or wanted here, by reservation.
        gpus: this node's, as far as they are known; gpus_told: the report that etcd has; gpus_telling: one is
            being written; gpus_awaited: since when an attempt waits for the memory of its GPUs.
        aside: why plans ask for nothing here any more, by plan id (`agent.core.set_aside`).
        condemned: what no rule looks at before it is dead, by launcher, or by job where there was none.
        outputs: attempts that are about to start, and since when their output directories are asked for; -1:
            they are there.
        secrets: attempts that are about to start, and whether their secrets are there.
        addresses: of the plans whose attempts are here, where there is a firewall.
    """

    settings: AgentSettings
    life: str
    boot_id: str
    d_ms: int
    predecessors: tuple[str, ...] = ()
    cluster: str = ""
    seen: Seen | None = None
    me: Incarnation | None = None
    outcast: bool = False
    deadline_ms: int | None = None
    read_ms: int = -1
    heard_ms: int = -1
    stepped_ms: int = -1
    view: Observed | None = None
    born: int = 0
    spawn_failed_ms: int = -1
    free_bytes: int = -1
    launchers: dict[str, Launcher] = field(default_factory=dict)
    holds: dict[str, PortReservation] = field(default_factory=dict)
    attempts: dict[AttemptId, Attempt] = field(default_factory=dict)
    specs: dict[str, ClusterSpec] = field(default_factory=dict)
    reading: dict[str, int] = field(default_factory=dict)
    staging: dict[str, Staging] = field(default_factory=dict)
    full: Full | None = None
    commits: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    following: dict[str, tuple[str, int, bool]] = field(default_factory=dict)
    cold: dict[str, AttemptId] = field(default_factory=dict)
    retried: frozenset[str] = frozenset()
    cleaned: dict[str, tuple[str, int, bool]] = field(default_factory=dict)
    found: frozenset[str] = frozenset()
    code: dict[str, CodeStanding] = field(default_factory=dict)
    code_kept: frozenset[str] = frozenset()
    data_kept: frozenset[tuple[str, str]] = frozenset()
    delays: dict[str, Delay] = field(default_factory=dict)
    gpus: GpuBook = field(default_factory=GpuBook)
    gpus_told: GpuReport | None = None
    gpus_telling: bool = False
    gpus_awaited: dict[AttemptId, int] = field(default_factory=dict)
    outputs: dict[AttemptId, int] = field(default_factory=dict)
    secrets: dict[AttemptId, SecretStanding] = field(default_factory=dict)
    aside: dict[str, str] = field(default_factory=dict)
    condemned: dict[str, Condemned] = field(default_factory=dict)
    promises: PromiseBook = field(default_factory=PromiseBook)
    kill_ms: int = 0
    addresses: dict[str, PlanAddresses] = field(default_factory=dict)
    firewall: FirewallState = field(default_factory=FirewallState)

    def copy(self) -> AgentState:
        """The same, with containers of its own."""
        return _made(*(each.copy() if type(each) is dict else each for each in _all_of(self)))

    def but(self, **changes: object) -> AgentState:
        """As `dataclasses.replace`, but faster, for the changes that nearly every event needs."""
        values = list(_all_of(self))
        for name, value in changes.items():
            values[_PLACES[name]] = value
        return _made(*values)

    def reach_of(self, launcher_id: str) -> Reach | None:
        """The host at which tasks of a launcher are reached; None until it is known."""
        launcher = self.launchers.get(launcher_id)
        if launcher is None or not launcher.recipe.networked:
            return Reach(self.settings.host)
        return launcher.reach

    def blocked(self, now_ms: int) -> str:
        """Why nothing new can start here for now; empty where it can."""
        full = self.full is not None and now_ms < self.full.until_ms
        if self.full is not None and full:
            return self.full.detail
        if self.firewall.failure:
            return f"its firewall cannot be set: {self.firewall.failure}"
        return self.too_slow

    def may_run(self, now_ms: int) -> bool:
        """Whether rule 3 lets a task run at all, with the time that killing it would take kept back."""
        until_ms = self.runs_until_ms
        return until_ms is not None and now_ms < until_ms - self.reserve_ms

    @property
    def reserve_ms(self) -> int:
        """The time that is kept back from D for drift and for this node's kills (decision 0046)."""
        timing = self.settings.timing
        kill_ms = min(timing.kill_time_for(self.kill_ms), timing.most_kill_time_ms(self.d_ms))
        return kill_ms + timing.drift_ms

    @property
    def too_slow(self) -> str:
        """Why kills take too long here for this D; empty if they do not."""
        timing = self.settings.timing
        if timing.kill_time_for(self.kill_ms) <= timing.most_kill_time_ms(self.d_ms):
            return ""
        return (
            f"a kill takes {self.kill_ms} ms here, so that D = {self.d_ms} ms leaves no time to train: "
            "give all daemons `profile: default` or a longer `control_plane_grace`"
        )

    @property
    def runs_until_ms(self) -> int | None:
        """The time until which tasks may run, by reads of etcd or by all supervisors' promises; None before
        the first read.
        """
        return None if self.deadline_ms is None else max(self.deadline_ms, self.promises.until_ms)


_NAMES = tuple(each.name for each in fields(AgentState))
_PLACES = {name: place for place, name in enumerate(_NAMES)}
_made: Callable[..., AgentState] = AgentState
_all_of = attrgetter(*_NAMES)
