"""The interfaces behind which the agent's I/O lives. `AgentDaemon` is built from these alone.

Each is implemented for the real machine in this package and in memory by the simulator. `post` puts an event
into the daemon's inbox: it never blocks and may be called from the daemon's event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from agent.core.events import Event, FirewallSet
from agent.core.instructions import (
    Commit,
    Follow,
    FollowCommits,
    Opening,
    OutputDirs,
    PrepareOutputs,
    Reach,
    Recipe,
    Stage,
)
from agent.core.saved.record import AgentRecord, Saved
from agent.inside import protocol
from agent.retry_log import Tell, raise_it
from agent.secrets import TaskSecrets
from supervisor.contract.boundaries import CheckpointStore, Clock, Coordination, Logger, ModifiedAt
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.job.spec import CodeRef, ContainerSpec
from supervisor.contract.observed import Beat, Notice, SaverBeat, Saves, TaskBeat
from supervisor.contract.promise import PromiseRequest
from supervisor.contract.secret import SecretsAnswer, SecretsRequest

Post = Callable[[Event], None]
Tenants = Callable[[], Mapping[str, AbstractSet[str]]]
"""The UUIDs of the jobs that have tasks here, with the ids of their launchers."""
Fence = Callable[[], ModifiedAt]
"""The compare of an agent's every write (rule 2), as it is now."""
StoreOpener = Callable[[str], CheckpointStore]
"""Opens the checkpoint store of a URI; raises UserError for a scheme that it does not know."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process, unambiguous within a boot. `start_ticks` is field 22 of /proc/PID/stat."""

    pid: int
    start_ticks: int


class Beside(Enum):
    """Whom the OOM killer struck beside a main process.

    NOBODY: nobody, or it is not known. OURS: one of the same attempt, which has its cgroup to itself.
    SOMEBODY: one of a cgroup that others share.
    """

    NOBODY = "nobody"
    OURS = "ours"
    SOMEBODY = "somebody"


class Runtime(Protocol):
    """Makes launchers, and kills what they started when they cannot be asked to."""

    def boot_id(self) -> str:
        """Changes whenever the machine boots."""

    async def bring_in(self, container: ContainerSpec, plan_id: str) -> None:
        """Have the image of such a container here for a plan, so that no start waits for it.

        Raises Unreachable, UserError (no such image), Refused.
        """

    async def spawn(self, launcher_id: str, recipe: Recipe) -> Process:
        """Start a launcher that will say hello with `launcher_id`.

        Raises UserError (no such interpreter or directory), Refused (the machine will not), Unreachable.
        """

    def reach(self, launcher_id: str) -> Reach | None:
        """Where the tasks of a launcher that was spawned are reached; None: at its node's own address."""

    def watch(self, launcher_id: str, process: Process, post: Post) -> None:
        """Post LauncherGone, once, when the launcher's process has ended, also if it has already."""

    def is_alive(self, process: Process) -> bool:
        """Whether this very process lives (a zombie does not)."""

    async def living(self) -> Mapping[str, tuple[Process, ...]]:
        """Launchers that any life of this agent started and of which something lives: by id, its processes.

        Seen on this machine, not remembered. Not all processes of a launcher need be among them.
        """

    def free_bytes(self) -> int:
        """Memory that a new process could have without taking it from others; -1 if unknown."""

    def launching(self, launcher_id: str, *, yields: bool) -> None:
        """An attempt is about to start there: it comes first, and one that `yields` after those."""

    def began(self, process: Process) -> None:
        """An attempt's main process lives: remember what happens to its memory from now on."""

    def oom_killed(self, process: Process) -> bool:
        """Whether the kernel's OOM killer ended a process that has just died; False if unknown."""

    async def last_words(self, launcher_id: str, attempts: tuple[str, ...]) -> tuple[protocol.Exited, ...]:
        """What a launcher that has ended wrote of how these attempts ended."""

    def oom_beside(self, process: Process) -> Beside:
        """Whether it struck another process of the cgroup of one that has died, since `began`."""

    async def fence(self, launcher_id: str, processes: tuple[Process, ...]) -> int:
        """SIGKILL the launcher, all that it started, and `processes`; returns how many are still seen."""

    async def tidy(self, known: Callable[[], AbstractSet[str]]) -> None:
        """Remove what launchers have left on this machine that are not `known` any more; never fails.

        `known` holds each launcher from before it is spawned until it is fenced.
        """

    async def close(self) -> None:
        """Stop watching. Launchers live on."""


class Launchers(Protocol):
    """The node's socket, where launchers come to ask whether they may go on (rule 4).

    Posts LauncherSaid for every message, in order and beginning with a Hello on each connection, and
    LauncherLeft when a connection ends. A new connection of a launcher replaces its old one (LauncherLeft,
    then LauncherSaid with the Hello). A Hello of another protocol version is refused and never posted.
    """

    async def open(self, post: Post) -> None:
        """Listen. Raises Conflict when another agent answers there.

        The receiver says by `taken` that it has a message; without that a launcher is soon read no more.
        """

    def taken(self, launcher_id: str) -> None:
        """One of the launcher's messages has been taken out of the inbox: it may say the next."""

    def send(self, launcher_id: str, message: object) -> None:
        """Queue a message; lost when the launcher is not connected. Never blocks."""

    async def close(self) -> None:
        """End all connections and stop listening."""


class Links(Protocol):
    """The heartbeat streams to every supervisor that the agent knows. Reconnects by itself."""

    async def open(self, post: Post) -> None:
        """Begin to connect. Posts DumpAsked while a leader's answers ask for dumps, and once they do not."""

    def send(self, beat: Beat) -> None:
        """Send to every supervisor now reachable; the others miss this beat. Never blocks."""

    def ask(self, request: PromiseRequest, sent_ms: int) -> None:
        """Ask every supervisor; posts a Promised for each that answers. Never blocks."""

    async def secrets(self, request: SecretsRequest) -> SecretsAnswer:
        """Ask the supervisor that leads. Raises an error of our tree if they cannot be had now."""

    async def close(self) -> None:
        """End all streams."""


class TaskFiles(Protocol):
    """The directories that attempts write their output to."""

    def directory(self, job_uuid: str, attempt: AttemptId) -> str:
        """Absolute path of an attempt's directory; its launcher makes it."""

    def follow(self, follow: Follow) -> None:
        """Read steps from this attempt's output from now on; again for the same attempt does nothing."""

    def progress(
        self, now_ms: int, gpus: Mapping[AttemptId, float] | None = None, tell: Tell = ...
    ) -> tuple[TaskBeat, ...]:
        """Read what is new, a bounded amount, and say where every followed attempt stands.

        `gpus`: the utilisation of all GPUs of an attempt together, in per cent, where it is known.
        """

    def wrote(self, attempt: AttemptId, now_ms: int) -> bool:
        """This attempt has new output: True when it brought the attempt's first step."""

    def last_step(self, attempt: AttemptId) -> int:
        """The newest step, after reading to the end of the output; -1 when none is known."""

    def has_stepped(self, attempt: AttemptId) -> bool:
        """Whether it has made a step, of whatever number, as far as its output was read."""

    def saves(self, attempt: AttemptId) -> Saves:
        """Where it has saved, as it says itself; nothing where it says nothing."""

    def newest_step(self, task: TaskId, generation: int) -> int:
        """A task's newest step in a generation, as far as its output was read; -1 when there is none."""

    def tail(self, attempt: AttemptId) -> str:
        """The last lines of its output, at most 4 KiB, safe to print."""

    def signalled(self, attempt: AttemptId) -> tuple[int, int] | None:
        """The last signal that an operator sent to it, and when (`Clock.now_ms`); None without one."""

    async def dump(self, attempt: AttemptId) -> bool:
        """Keep where the threads of a followed attempt are; whether there was anything to see."""

    def stack(self, attempt: AttemptId) -> str:
        """The beginning of what `dump` kept, at most 6 KiB; empty if there is nothing."""

    def hold(self, attempt: AttemptId, hold_ms: int) -> str:
        """Keep its directory for so long, whatever the need for space; returns the directory."""

    def unfollow(self, attempt: AttemptId) -> None:
        """The attempt is over: forget its progress; its directory may go when space is needed."""

    async def tidy(self) -> None:
        """Remove the oldest directories that nobody follows, if together they take too much."""


class Checkpoints(Protocol):
    """A node's part of rules 7 and 8. Calls may be repeated: after a restart the agent asks again."""

    def directory(self, job_uuid: str, generation: int) -> str:
        """CHECKPOINT_DIR of a generation: the same path on every node."""

    async def found(self) -> frozenset[str]:
        """UUIDs of the jobs that have directories here."""

    async def stage(self, stage: Stage) -> None:
        """Bring the base in and verify it; a fresh empty directory without one.

        Raises BadCheckpoint (the checkpoint's fault), any other TfSupervisorError (unknown).
        """

    def commit(
        self,
        commit: Commit,
        fence: Fence,
        incarnation: str,
        newest_step: Callable[[], int],
        tensorflow: Callable[[], str] = ...,
    ) -> None:
        """Commit finished checkpoints in the background; again for the same generation does nothing.

        What `fence` gives holds while the node's key is our `incarnation` (rule 2). `newest_step` is what the
        saver has reported so far, `tensorflow` the version that it runs, if that is known.
        """

    def follow(self, following: FollowCommits) -> None:
        """Bring new commits in, in the background; again for the same generation does nothing."""

    def stop_following(self, job_uuid: str, generation: int) -> None:
        """Bring no more of this generation in."""

    async def drain(self, job_uuid: str, generation: int, timeout_ms: int, *, clean: bool) -> None:
        """An attempt of the saver is dead: commit the newest that it finished; give up when time runs out
        (with a warning). Then go on, as the next attempt may save in the same generation.

        `clean`: it ended by itself, without an error.
        """

    def beats(self, tell: Tell = ...) -> tuple[SaverBeat, ...]:
        """How the commits that are made here get on. `tell`: of jobs whose background work has failed."""

    def store_failed_ms(self, job_uuid: str, generation: int) -> int:
        """When a program that saves into a mount was last failed by its store, on the clock; -1: never.

        A job whose directory is no mount does not feel its store, and none feels the trouble of its commits.
        """

    async def settle(self) -> None:
        """The agent is about to end: give what waits to be committed a few seconds. A successor goes on."""

    def stop_commit(self, job_uuid: str, generation: int) -> None:
        """Commit no more of this generation."""

    async def clean(self, job: str, job_uuid: str, generation: int, *, ended: bool) -> None:
        """Remove generation directories that no restart of the job will need."""

    async def close(self) -> None:
        """Stop all background work."""


class Outputs(Protocol):
    """The output directories of this node's tasks, and their way to the jobs' stores."""

    def directories(self, job_uuid: str, task: TaskId) -> OutputDirs:
        """The task's directories: the same paths on every node, but for the copies of others' outputs."""

    async def prepare(self, prepare: PrepareOutputs) -> None:
        """Make them, with what earlier attempts wrote, and begin to send what comes. Never fails: what could
        not be brought in is told.
        """

    def over(self, attempt: AttemptId) -> None:
        """An attempt has ended: send all that it wrote, whole."""

    def job_ended(self, job_uuid: str) -> None:
        """No task of the job runs any more. This node's copies of what is in the store can go."""

    def check(self, tell: Tell = ...) -> None:
        """Tell of jobs whose background work has ended by an unexpected error."""

    def notices(self) -> tuple[Notice, ...]:
        """The notices about jobs' files on this node."""

    async def run(self, living: Callable[[], Collection[AttemptId]]) -> None:
        """Go on with what earlier lives of this agent had not sent yet; never fails."""

    async def close(self) -> None:
        """Stop. What is not sent is sent by a successor."""


class NoOutputs:
    """`Outputs` of a node whose tasks write none."""

    def directories(self, job_uuid: str, task: TaskId) -> OutputDirs:
        """No directory."""
        del job_uuid, task
        return OutputDirs()

    async def prepare(self, prepare: PrepareOutputs) -> None:
        """Do nothing: there is no directory to make."""

    def over(self, attempt: AttemptId) -> None:
        """Do nothing: there is no output to send."""

    def job_ended(self, job_uuid: str) -> None:
        """Do nothing: there is no copy to remove."""

    def check(self, tell: Tell = raise_it) -> None:
        """Do nothing: no work runs in the background."""

    def notices(self) -> tuple[Notice, ...]:
        """No notices."""
        return ()

    async def run(self, living: Callable[[], Collection[AttemptId]]) -> None:
        """Do nothing: no output waits to be sent."""

    async def close(self) -> None:
        """Do nothing: no work runs."""


class Code(Protocol):
    """Shipped programs on this node: a directory for each digest, unpacked once, read-only."""

    def directory(self, ref: CodeRef) -> str:
        """Absolute path of an unpacked archive, whether it is there or not. Raises UserError."""

    async def ensure(self, ref: CodeRef) -> str:
        """Have it there, whole, and return its directory; cheap when it is. May be asked for at once.

        Raises NotFound (etcd has it no more), Unreachable, Refused (damaged; the disk will not), UserError.
        """

    async def keep(self, in_use: frozenset[str]) -> None:
        """Remove archives of other digests, but for the few used last. Raises Refused, Unreachable."""


class Gpus(Protocol):
    """The watch over the node's GPUs."""

    async def run(self, post: Post) -> None:
        """Post GpusSeen for all that is seen, until cancelled. Never fails: what cannot be seen is told."""

    def look(self) -> None:
        """Post what there is to see soon. Never blocks."""


class NoGpus:
    """`Gpus` where nobody watches."""

    async def run(self, post: Post) -> None:
        """Tell nothing."""

    def look(self) -> None:
        """Nothing to see."""


class Firewall(Protocol):
    """Rules that keep tasks from the ports of other jobs' tasks."""

    async def set(self, openings: tuple[Opening, ...]) -> FirewallSet:
        """Put exactly these in force, at once, except plans with a name that never had an address.

        Raises any TfSupervisorError; what was in force then stays.
        """


class NoFirewall:
    """`Firewall` of a node that keeps none."""

    async def set(self, openings: tuple[Opening, ...]) -> FirewallSet:
        """Accept every opening: without a firewall nothing is closed."""
        return FirewallSet(openings)


class Disk(Protocol):
    """The space that jobs take on this node's disks."""

    async def run(self, tenants: Tenants, post: Post) -> None:
        """Post OverDisk for a job that takes too much, until cancelled."""


class UnlimitedDisk:
    """`Disk` where a job may take all there is."""

    async def run(self, tenants: Tenants, post: Post) -> None:
        """Tell nothing."""


class KillTimes(Protocol):
    """How long kills take on this node."""

    async def run(self, post: Post) -> None:
        """Post KillRehearsed now and then, until cancelled."""


class NoKillTimes:
    """`KillTimes` where nobody measures: the profile's `kill_time` holds."""

    async def run(self, post: Post) -> None:
        """Tell nothing."""


class StateFile(Protocol):
    """What the agent must find again after its own death, locked against a second agent."""

    def read(self) -> AgentRecord | None:
        """Take the lock and read; None at the first start. Raises Conflict when another agent holds it."""

    def saved(self) -> Saved | None:
        """What was saved last, as told apart from the record; None where nothing tells, as after a boot."""

    async def save(self, record: AgentRecord) -> None:
        """Replace the record, atomically and durably, and then tell `saved`. Raises Refused.

        The old one may then stand; it may be tried again at any time, with a higher serial.
        """


@dataclass(frozen=True, slots=True)
class Outside:
    """Everything that a daemon reaches out to, in one value."""

    coordination: Coordination
    runtime: Runtime
    launchers: Launchers
    links: Links
    files: TaskFiles
    checkpoints: Checkpoints
    state_file: StateFile
    clock: Clock
    sink: Logger
    new_id: Callable[[], str]
    code: Code
    gpus: Gpus = field(default_factory=NoGpus)
    outputs: Outputs = field(default_factory=NoOutputs)
    kill_times: KillTimes = field(default_factory=NoKillTimes)
    firewall: Firewall = field(default_factory=NoFirewall)
    secrets: TaskSecrets = field(default_factory=TaskSecrets)
    disk: Disk = field(default_factory=UnlimitedDisk)
