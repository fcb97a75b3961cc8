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
from agent.secret_masks import TaskSecrets
from supervisor.contract.boundaries import CheckpointStore, Clock, Coordination, Logger, ModifiedAt
from supervisor.contract.errors import Refused
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.incident import Raised
from supervisor.contract.job.spec import CodeRef, ContainerSpec, EnvironmentRef
from supervisor.contract.observed import Beat, Notice, SaverBeat, Saves, TaskBeat
from supervisor.contract.promise import PromiseRequest
from supervisor.contract.secret import SecretsAnswer, SecretsRequest

Post = Callable[[Event], None]
Tenants = Callable[[], Mapping[str, AbstractSet[str]]]
"""The UUIDs of the jobs that have tasks here, with the ids of their launchers."""
Fence = Callable[[], ModifiedAt]
"""Returns the present compare for all writes of an agent (rule 2)."""
StoreOpener = Callable[[str], CheckpointStore]
"""Opens the checkpoint store of a URI; raises UserError for a scheme that it does not know."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process, unambiguous within a boot. `start_ticks` is field 22 of /proc/PID/stat."""

    pid: int
    start_ticks: int


class Beside(Enum):
    """The processes that the OOM killer has killed beside a main process.

    NOBODY: none, or unknown. OURS: a process of the same attempt, which has a cgroup of its own. SOMEBODY: a
    process of a cgroup that others share.
    """

    NOBODY = "nobody"
    OURS = "ours"
    SOMEBODY = "somebody"


@dataclass(frozen=True, slots=True)
class LastWords:
    """The exit records of attempts that an ended launcher left, and in words the end of its log."""

    exits: tuple[protocol.Exited, ...] = ()
    said: str = ""


class Runtime(Protocol):
    """Makes launchers, and kills their processes if they cannot do it themselves."""

    def boot_id(self) -> str:
        """The machine's boot id."""

    async def bring_in(self, container: ContainerSpec, plan_id: str) -> None:
        """Fetch the image of such a container for a plan, so that no start waits for it.

        Raises Unreachable, UserError (no such image), Refused.
        """

    async def spawn(self, launcher_id: str, recipe: Recipe) -> Process:
        """Start a launcher, which will send a Hello with `launcher_id`.

        Raises UserError (no such interpreter or directory), Refused (the machine cannot start it),
        Unreachable.
        """

    def reach(self, launcher_id: str) -> Reach | None:
        """The address of the tasks of a spawned launcher; None: its node's own address."""

    def watch(self, launcher_id: str, process: Process, post: Post) -> None:
        """Post LauncherGone, once, when the launcher's process has ended, even if it has ended already.

        Its `code` is None for a process that is no child of this agent, unless docker knows it.
        """

    def is_alive(self, process: Process) -> bool:
        """Whether this process is alive; a zombie is not."""

    async def living(self) -> Mapping[str, tuple[Process, ...]]:
        """Launcher id -> living processes, for launchers that any life of this agent started.

        They are found on the machine, not in a record. Some processes of a launcher may be missing.
        """

    def free_bytes(self) -> int:
        """Free memory for a new process, in bytes; -1 if unknown."""

    def launching(self, launcher_id: str, *, yields: bool) -> None:
        """An attempt is about to start there: it gets processors first.

        One that `yields` comes after the others.
        """

    def began(self, process: Process) -> None:
        """An attempt's main process runs: watch its cgroup for kills of the OOM killer from now on."""

    def oom_killed(self, process: Process) -> bool:
        """Whether the kernel's OOM killer ended a process that has just died; False if unknown."""

    async def last_words(self, launcher_id: str, attempts: tuple[str, ...]) -> LastWords:
        """The files that an ended launcher left, read; never fails, and blocks no loop."""

    def oom_beside(self, process: Process) -> Beside:
        """Whether the OOM killer has killed another process in a dead process's cgroup since `began`."""

    def limit_met(self, process: Process) -> str:
        """The limit of its container that a dead process has met since `began`, for people; empty if none."""

    async def fence(self, launcher_id: str, processes: tuple[Process, ...]) -> int:
        """SIGKILL the launcher, all its processes, and `processes`; returns the number that is still seen."""

    async def tidy(self, known: Callable[[], AbstractSet[str]]) -> None:
        """Remove the remains of launchers that are no longer `known`; never fails.

        `known` holds each launcher from before it is spawned until it is fenced.
        """

    async def close(self) -> None:
        """Stop watching. Launchers live on."""


class Launchers(Protocol):
    """The node's socket, at which launchers ask whether they may go on (rule 4).

    Posts LauncherSaid for every message, in order and beginning with a Hello on each connection, and
    LauncherLeft when a connection ends. A new connection of a launcher replaces its old one (LauncherLeft,
    then LauncherSaid with the Hello). A Hello of another protocol version is refused and never posted.
    """

    async def open(self, post: Post) -> None:
        """Listen. Raises Conflict if another agent answers there.

        The receiver calls `taken` for each message. Otherwise the launcher's messages are soon no longer
        read.
        """

    def taken(self, launcher_id: str) -> None:
        """One of the launcher's messages was taken out of the inbox: the next one may be read."""

    def send(self, launcher_id: str, message: object) -> None:
        """Queue a message; lost when the launcher is not connected. Never blocks."""

    async def close(self) -> None:
        """End all connections and stop listening."""


class Links(Protocol):
    """The heartbeat streams to all supervisors that the agent knows. It reconnects by itself."""

    async def open(self, post: Post) -> None:
        """Begin to connect. Posts DumpAsked while a leader's answers ask for dumps, and once more when they
        stop.
        """

    def send(self, beat: Beat) -> None:
        """Send to every supervisor now reachable; the others miss this beat. Never blocks."""

    def ask(self, request: PromiseRequest, sent_ms: int) -> None:
        """Ask every supervisor; posts a Promised for each that answers. Never blocks."""

    async def secrets(self, request: SecretsRequest) -> SecretsAnswer:
        """Ask the leader for secrets. Raises an error of our tree if there is no answer now."""

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
        """Read a bounded amount of new output; returns the progress of all followed attempts.

        `gpus`: the utilisation of all GPUs of an attempt together, in per cent, where it is known.
        """

    def wrote(self, attempt: AttemptId, now_ms: int) -> bool:
        """Read the attempt's new output; True if it holds the attempt's first step."""

    def last_step(self, attempt: AttemptId) -> int:
        """The newest step, after reading to the end of the output; -1 if none is known."""

    def has_stepped(self, attempt: AttemptId) -> bool:
        """Whether it has made a step of any number, as far as its output was read."""

    def saves(self, attempt: AttemptId) -> Saves:
        """The places of its saves, as its process notes them; empty without notes."""

    def note_commit(self, task: TaskId, generation: int, took_ms: int, seen_ms: int) -> None:
        """Tell the task's attempts how long the last commit of what they save took.

        `seen_ms`: when its save was seen.
        """

    def newest_step(self, task: TaskId, generation: int) -> int:
        """A task's newest step in a generation, as far as its output was read; -1 if there is none."""

    def tail(self, attempt: AttemptId) -> str:
        """The last lines of its output, at most 4 KiB, safe to print."""

    def raised(self, attempt: AttemptId, *, aborted: bool) -> tuple[Raised, ...]:
        """The exception that ended its main thread, then those that it came from; none without one.

        `aborted`: a signal ended a program that was started warm, and so notes that exception.
        """

    def signalled(self, attempt: AttemptId) -> tuple[int, int] | None:
        """The last signal that an operator sent to it, and when (`Clock.now_ms`); None without one."""

    async def dump(self, attempt: AttemptId) -> bool:
        """Write a dump of the stacks of a followed attempt; returns whether there were any."""

    def stack(self, attempt: AttemptId) -> str:
        """The beginning of the attempt's dump, at most 6 KiB; empty if there is none."""

    def hold(self, attempt: AttemptId, hold_ms: int) -> str:
        """Keep its directory for `hold_ms`, even if space is needed; returns the directory."""

    def unfollow(self, attempt: AttemptId) -> None:
        """Forget the progress of an attempt that is over.

        Its directory may be removed when space is needed.
        """

    async def tidy(self) -> None:
        """Remove the oldest directories that are not followed, if together they take too much."""


class Checkpoints(Protocol):
    """A node's part of rules 7 and 8. Calls may be repeated: after a restart the agent asks again."""

    def directory(self, job_uuid: str, generation: int) -> str:
        """CHECKPOINT_DIR of a generation: the same path on every node."""

    async def found(self) -> frozenset[str]:
        """UUIDs of the jobs that have directories here."""

    async def stage(self, stage: Stage) -> None:
        """Stage the base and verify it; without one, make an empty directory.

        Raises BadCheckpoint (the checkpoint's fault), any other TfSupervisorError (unknown).
        """

    def commit(
        self,
        commit: Commit,
        fence: Fence,
        incarnation: str,
        newest_step: Callable[[], int],
        tensorflow: Callable[[], str] = ...,
        took: Callable[[int, int], None] = ...,
    ) -> None:
        """Commit finished checkpoints in the background; again for the same generation does nothing.

        The compare of `fence` holds while the node's key is our `incarnation` (rule 2). `newest_step` returns
        the newest step that the saver has reported, `tensorflow` its version of TensorFlow, if known. `took`
        gets the milliseconds that each commit has taken, and when its save was seen.
        """

    def follow(self, following: FollowCommits) -> None:
        """Fetch new commits in the background; again for the same generation does nothing."""

    def stop_following(self, job_uuid: str, generation: int) -> None:
        """Stop fetching commits of this generation."""

    async def drain(self, job_uuid: str, generation: int, timeout_ms: int, *, clean: bool) -> str:
        """Look at the saver's directory, and commit the newest finished save, or give up after `timeout_ms`.

        Returns the finished save that it could not commit, for people; empty for none. Then it goes on, as an
        evaluator may still run.

        `clean`: the saver's attempt ended by itself, without an error.
        """

    async def look_aside(
        self, commit: Commit, incarnation: str, step: int, timeout_ms: int, *, clean: bool
    ) -> str:
        """Keep the newest finished save of a task that is not the saver; gives up if nothing moves for
        `timeout_ms`.

        Returns it, for people, if it is newer than all commits; empty for none, or if the saver's node sees
        the same directory. `step`: the newest that the task has reported.
        """

    def beats(self, tell: Tell = ...) -> tuple[SaverBeat, ...]:
        """The state of this node's commits. `tell` gets jobs whose background work has failed."""

    def store_failed_ms(self, job_uuid: str, generation: int) -> int:
        """The time at which the store last failed a program that saves into a mount, on the clock; -1: never.

        Only mounts count: other jobs do not use the store directly, and a failed commit does not stop a
        program.
        """

    async def settle(self) -> None:
        """Before the agent ends: allow a few seconds for waiting commits. A successor goes on."""

    def stop_commit(self, job_uuid: str, generation: int) -> None:
        """Stop committing saves of this generation."""

    async def clean(self, job: str, job_uuid: str, generation: int, *, ended: bool) -> None:
        """Remove the directories of generations that no restart of the job will need."""

    async def close(self) -> None:
        """Stop all background work."""


class Outputs(Protocol):
    """The output directories of this node's tasks, and their way to the jobs' stores."""

    def directories(self, job_uuid: str, task: TaskId) -> OutputDirs:
        """The task's directories.

        Their paths are the same on every node, except for the copies of others' outputs.
        """

    async def prepare(self, prepare: PrepareOutputs) -> None:
        """Make them with the outputs of earlier attempts, and begin to send new ones.

        Never fails: files that could not be fetched are reported.
        """

    def over(self, attempt: AttemptId) -> None:
        """After the end of an attempt: send all its outputs in full."""

    def job_ended(self, job_uuid: str) -> None:
        """After the end of the job: remove this node's copies of files that are in the store."""

    def check(self, tell: Tell = ...) -> None:
        """Report jobs whose background work has ended by an unexpected error."""

    def notices(self) -> tuple[Notice, ...]:
        """The notices about jobs' files on this node."""

    async def run(self, living: Callable[[], Collection[AttemptId]]) -> None:
        """Send the files that earlier lives of this agent had not sent yet; never fails."""

    async def close(self) -> None:
        """Stop. A successor sends the rest."""


class NoOutputs:
    """`Outputs` of a node without output directories."""

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
        """Absolute path of an unpacked archive, whether or not it exists. Raises UserError."""

    async def ensure(self, ref: CodeRef) -> str:
        """Fetch and unpack it if necessary, and return its directory. Concurrent calls are allowed.

        Raises NotFound (etcd no longer has it), Unreachable, Refused (damaged, or the disk refuses),
        UserError.
        """

    async def keep(self, in_use: frozenset[str]) -> None:
        """Remove archives of other digests, except the few used last. Raises Refused, Unreachable."""


ENVIRONMENT = "VIRTUAL_ENV"
"""The variable with the directory of a job's environment."""


class Environments(Protocol):
    """Python environments of jobs on this node: made once for each key, read-only."""

    async def ensure(self, ref: EnvironmentRef, workdir: str) -> str:
        """Make it if necessary, from a lock file below `workdir` or an archive, and return its directory.

        Concurrent calls share the work, and none waits for all of it: Unreachable says that it goes on.

        Raises NotFound, Unreachable, Refused (the packages cannot be had, or the disk refuses; BadArchive
        holds on all nodes and for ever), UserError.
        """

    async def keep(self, in_use: frozenset[str]) -> None:
        """Remove environments of other keys, except the few used last. Raises Refused, Unreachable."""


class NoEnvironments:
    """`Environments` of a node that makes none."""

    async def ensure(self, ref: EnvironmentRef, workdir: str) -> str:
        """Raise Refused."""
        del ref, workdir
        raise Refused("this node makes no environments")

    async def keep(self, in_use: frozenset[str]) -> None:
        """Do nothing."""


class JobData(Protocol):
    """The data of jobs: directories that their tasks only read. `data` is a job's: a name and a URI each."""

    async def ensure(self, job: str, job_uuid: str, data: Mapping[str, str]) -> None:
        """Bring the data to this node, without reading it.

        Raises NotFound, Unreachable, Refused, UserError, each with the name and the place.
        """

    def directories(self, job_uuid: str, data: Mapping[str, str]) -> dict[str, str]:
        """The directory of each, as tasks see it. Raises NoRoom, Refused, Unreachable."""

    def binds(self, job_uuid: str, data: Mapping[str, str]) -> dict[str, str]:
        """The directories to show in a container, so that `directories` are there. Raises as that."""

    def sign(self, job_uuid: str, data: Mapping[str, str], name: str) -> str:
        """The path of a file of this name in a directory that shows it while its store answers; or empty."""

    def keep(self, used: frozenset[tuple[str, str]]) -> None:
        """The data that tasks of this node use: the job's UUID and a URI each. Others may go."""

    def failed(self, job_uuid: str) -> tuple[int, str]:
        """The time at which data last failed a program of the job, on the clock, and its URI; -1: never."""

    def waited_ms(self, job_uuid: str) -> int:
        """Milliseconds since a program that reads data of the job last waited for its store; -1: never."""

    def check(self) -> None:
        """Raise the unexpected error that ended the background work."""

    async def close(self) -> None:
        """End the background work. What tasks use stays."""


class NoData:
    """`JobData` of a node that has none for jobs."""

    async def ensure(self, job: str, job_uuid: str, data: Mapping[str, str]) -> None:
        """Raise Refused if there is any."""
        del job, job_uuid
        if data:
            raise Refused("this node has no data for jobs")

    def directories(self, job_uuid: str, data: Mapping[str, str]) -> dict[str, str]:
        """None."""
        del job_uuid, data
        return {}

    def binds(self, job_uuid: str, data: Mapping[str, str]) -> dict[str, str]:
        """None."""
        del job_uuid, data
        return {}

    def sign(self, job_uuid: str, data: Mapping[str, str], name: str) -> str:
        """None."""
        del job_uuid, data, name
        return ""

    def keep(self, used: frozenset[tuple[str, str]]) -> None:
        """Do nothing."""

    def failed(self, job_uuid: str) -> tuple[int, str]:
        """Never."""
        del job_uuid
        return -1, ""

    def waited_ms(self, job_uuid: str) -> int:
        """Never."""
        del job_uuid
        return -1

    def check(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class Gpus(Protocol):
    """The watch over the node's GPUs."""

    async def run(self, post: Post) -> None:
        """Post GpusSeen for each look, until cancelled. Never fails: a failed look is reported too."""

    def look(self) -> None:
        """Make a look soon. Never blocks."""


class NoGpus:
    """`Gpus` of a node without a watch."""

    async def run(self, post: Post) -> None:
        """Do nothing."""

    def look(self) -> None:
        """Do nothing."""


class Firewall(Protocol):
    """Rules that keep tasks from the ports of other jobs' tasks."""

    async def set(self, openings: tuple[Opening, ...]) -> FirewallSet:
        """Put exactly these in force, atomically, except plans with a host name that never had an address.

        Raises any TfSupervisorError; the rules in force then stay.
        """


class NoFirewall:
    """`Firewall` of a node without one."""

    async def set(self, openings: tuple[Opening, ...]) -> FirewallSet:
        """Accept every opening: without a firewall nothing is closed."""
        return FirewallSet(openings)


class Disk(Protocol):
    """The space that jobs take on this node's disks."""

    async def run(self, tenants: Tenants, post: Post) -> None:
        """Post OverDisk for a job that takes too much, until cancelled."""


class UnlimitedDisk:
    """`Disk` without a limit."""

    async def run(self, tenants: Tenants, post: Post) -> None:
        """Do nothing."""


class KillTimes(Protocol):
    """The duration of kills on this node."""

    async def run(self, post: Post) -> None:
        """Post KillRehearsed at intervals, until cancelled."""


class NoKillTimes:
    """`KillTimes` without a measurement: the profile's `kill_time` holds."""

    async def run(self, post: Post) -> None:
        """Do nothing."""


class StateFile(Protocol):
    """The state that the agent needs after a restart, locked against a second agent."""

    def read(self) -> AgentRecord | None:
        """Take the lock and read; None at the first start. Raises Conflict if another agent holds it."""

    def saved(self) -> Saved | None:
        """The note on the last save, kept apart from the record; None if there is none, as after a boot."""

    async def save(self, record: AgentRecord) -> None:
        """Replace the record, atomically and durably, and then the note of `saved`. Raises Refused.

        After an error the old record may still be there. A new try needs a higher serial.
        """


@dataclass(frozen=True, slots=True)
class Outside:
    """All boundaries of a daemon, in one value."""

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
    environments: Environments = field(default_factory=NoEnvironments)
    data: JobData = field(default_factory=NoData)
