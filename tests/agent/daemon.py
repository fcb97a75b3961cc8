"""An agent's daemon over an etcd in memory, and a machine that does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from agent.boundaries import Beside, LastWords, Outside, Post, Process
from agent.core.instructions import Commit, Follow, FollowCommits, Reach, Recipe, Stage
from agent.core.saved.record import AgentRecord, AttemptRecord, LauncherRecord, Saved
from agent.daemon import AgentDaemon
from agent.retry_log import Tell, raise_it
from agent.settings import AgentSettings
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.contract import keys
from supervisor.contract.desired import Assignment, JobPhase, JobSwitch
from supervisor.contract.errors import Refused, Unreachable
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.incident import Raised
from supervisor.contract.job.spec import CodeRef, ContainerSpec
from supervisor.contract.observed import (
    Beat,
    NodeResources,
    SaverBeat,
    Saves,
    TaskBeat,
)
from supervisor.contract.promise import PromiseRequest
from supervisor.contract.secret import SecretsAnswer, SecretsRequest
from supervisor.contract.timing import FAST
from supervisor.control.decide.plan import put
from tests.support.sinks import ListSink
from tests.support.waiting import until

RECORD = AgentRecord(
    "n1",
    "boot1",
    "life1",
    launchers=(LauncherRecord("life1-1", Recipe("job", "u", "/w", "python", env={"A": "b"}), 10, 11),),
    attempts=(
        AttemptRecord("job", "worker", 0, 1, 1, "u", "p", "life1-1", 20000, "h:20000", True, (), 12, 13),
    ),
)
"""A life with one launcher and one attempt, as its state file tells a successor."""


@dataclass
class Disk:
    """The state file, in memory."""

    record: AgentRecord | None = None
    full: bool = False
    told: Saved | None = None

    def read(self) -> AgentRecord | None:
        return self.record

    def saved(self) -> Saved | None:
        return self.told

    async def save(self, record: AgentRecord) -> None:
        await asyncio.sleep(0)
        if self.full:
            raise Refused("cannot write agent.json: No space left on device")
        self.record = record
        self.told = Saved(record.incarnation, record.serial, record.origin)


@dataclass
class Machine:
    """Runtime, launchers, links, files and checkpoints that do nothing but look at the disk."""

    disk: Disk
    known_at_spawn: list[bool] = field(default_factory=list)
    strange: dict[str, tuple[Process, ...]] = field(default_factory=dict)
    fenced: list[str] = field(default_factory=list)
    at_fence: Callable[[], None] = lambda: None
    left: LastWords = field(default_factory=LastWords)
    spawned: asyncio.Event = field(default_factory=asyncio.Event)

    def boot_id(self) -> str:
        return "boot"

    async def bring_in(self, container: ContainerSpec, plan_id: str) -> None:
        pass

    async def tidy(self, known: Callable[[], AbstractSet[str]]) -> None:
        pass

    async def spawn(self, launcher_id: str, recipe: Recipe) -> Process:
        assert self.disk.record is not None
        known = {each.launcher_id for each in self.disk.record.launchers}
        self.known_at_spawn.append(launcher_id in known)
        self.spawned.set()
        return Process(100, 1)

    def reach(self, launcher_id: str) -> Reach | None:
        pass

    def watch(self, launcher_id: str, process: Process, post: Post) -> None:
        pass

    def is_alive(self, process: Process) -> bool:
        return False

    async def living(self) -> Mapping[str, tuple[Process, ...]]:
        return dict(self.strange)

    def free_bytes(self) -> int:
        return -1

    def launching(self, launcher_id: str, *, yields: bool) -> None:
        pass

    def began(self, process: Process) -> None:
        pass

    async def last_words(self, launcher_id: str, attempts: tuple[str, ...]) -> LastWords:
        return self.left

    def limit_met(self, process: Process) -> str:
        del process
        return ""

    def oom_beside(self, process: Process) -> Beside:
        return Beside.NOBODY

    def oom_killed(self, process: Process) -> bool:
        return False

    async def fence(self, launcher_id: str, processes: tuple[Process, ...]) -> int:
        """The first round leaves something."""
        self.at_fence()
        self.fenced.append(launcher_id)
        if self.fenced.count(launcher_id) == 1:
            return 1
        self.strange.pop(launcher_id, None)
        return 0

    async def close(self) -> None:
        pass


class Living(Machine):
    """The processes of a former life are alive until they are fenced."""

    def is_alive(self, process: Process) -> bool:
        return not self.fenced


class Nobody:
    """No launcher ever comes."""

    async def open(self, post: Post) -> None:
        pass

    def taken(self, launcher_id: str) -> None:
        pass

    def send(self, launcher_id: str, message: object) -> None:
        pass

    async def close(self) -> None:
        pass


class Silence:
    """No supervisor listens."""

    async def open(self, post: Post) -> None:
        pass

    def send(self, beat: Beat) -> None:
        pass

    def ask(self, request: PromiseRequest, sent_ms: int) -> None:
        pass

    async def secrets(self, request: SecretsRequest) -> SecretsAnswer:
        raise Unreachable("no supervisor listens")

    async def close(self) -> None:
        pass


class NoFiles:
    """No attempt ever writes."""

    def directory(self, job_uuid: str, attempt: AttemptId) -> str:
        return "/d"

    def follow(self, follow: Follow) -> None:
        pass

    def progress(
        self, now_ms: int, gpus: Mapping[AttemptId, float] | None = None, tell: Tell = raise_it
    ) -> tuple[TaskBeat, ...]:
        return ()

    def wrote(self, attempt: AttemptId, now_ms: int) -> bool:
        return False

    def last_step(self, attempt: AttemptId) -> int:
        return -1

    def has_stepped(self, attempt: AttemptId) -> bool:
        return False

    def note_commit(self, task: TaskId, generation: int, took_ms: int, seen_ms: int) -> None:
        pass

    def newest_step(self, task: TaskId, generation: int) -> int:
        return -1

    def saves(self, attempt: AttemptId) -> Saves:
        return Saves()

    def tail(self, attempt: AttemptId) -> str:
        return ""

    def raised(self, attempt: AttemptId, *, aborted: bool) -> tuple[Raised, ...]:
        return ()

    async def dump(self, attempt: AttemptId) -> bool:
        return False

    def stack(self, attempt: AttemptId) -> str:
        return ""

    def hold(self, attempt: AttemptId, hold_ms: int) -> str:
        return ""

    def signalled(self, attempt: AttemptId) -> tuple[int, int] | None:
        return None

    def unfollow(self, attempt: AttemptId) -> None:
        pass

    async def tidy(self) -> None:
        pass


class NoCheckpoints:
    """Checkpoints of an agent whose tasks save none."""

    def directory(self, job_uuid: str, generation: int) -> str:
        return "/c"

    async def stage(self, stage: Stage) -> None:
        pass

    def commit(self, commit: Commit, *_who: object) -> None:
        pass

    async def found(self) -> frozenset[str]:
        return frozenset()

    async def drain(self, job_uuid: str, generation: int, timeout_ms: int, *, clean: bool) -> str:
        return ""

    async def look_aside(
        self, commit: Commit, incarnation: str, step: int, timeout_ms: int, *, clean: bool
    ) -> str:
        return ""

    def beats(self, tell: Tell = raise_it) -> tuple[SaverBeat, ...]:
        return ()

    def store_failed_ms(self, job_uuid: str, generation: int) -> int:
        return -1

    async def settle(self) -> None:
        pass

    def stop_commit(self, job_uuid: str, generation: int) -> None:
        pass

    def follow(self, following: FollowCommits) -> None:
        pass

    def stop_following(self, job_uuid: str, generation: int) -> None:
        pass

    async def clean(self, job: str, job_uuid: str, generation: int, *, ended: bool) -> None:
        pass

    async def close(self) -> None:
        pass


class NoCode:
    def directory(self, ref: CodeRef) -> str:
        return ""

    async def ensure(self, ref: CodeRef) -> str:
        return ""

    async def keep(self, in_use: frozenset[str]) -> None:
        pass


@dataclass
class Agent:
    """A daemon over those."""

    disk: Disk = field(default_factory=Disk)
    store: MemoryStore = field(default_factory=MemoryStore)
    sink: ListSink = field(default_factory=ListSink)
    next_life: str = "life1"
    checkpoints: NoCheckpoints = field(default_factory=NoCheckpoints)

    def __post_init__(self) -> None:
        self.machine = Machine(self.disk)

    def daemon(self) -> AgentDaemon:
        settings = AgentSettings("n1", "h", "h:1", 20000, 20100, "/locks", FAST, NodeResources(1.0, 1))
        return AgentDaemon(settings, self.outside())

    def outside(self) -> Outside:
        coordination = MemoryCoordination(self.store)
        return Outside(
            coordination,
            self.machine,
            Nobody(),
            Silence(),
            NoFiles(),
            self.checkpoints,
            self.disk,
            BootClock(),
            self.sink,
            lambda: self.next_life,
            NoCode(),
        )

    def prepare(self, plan_id: str) -> None:
        """A plan asks for a task here."""
        order = Assignment("job", "u", "worker", 0, 1, plan_id, "n1", "life1", 1, ("x",), "/")
        for record in (
            put(keys.switch("job"), JobSwitch("job", "u", JobPhase.WAITING, 0)),
            put(keys.assignment("n1", TaskId("job", "worker", 0), plan_id), order),
        ):
            assert self.store.commit([], [record], []).succeeded


@asynccontextmanager
async def registered(agent: Agent) -> AsyncIterator[AgentDaemon]:
    """A daemon that has registered, and has 20 s for what is wanted of it."""
    daemon = agent.daemon()
    running = asyncio.create_task(daemon.run())
    try:
        async with asyncio.timeout(20):
            await daemon.started.wait()
            await until(lambda: daemon.state.me is not None)
            yield daemon
    finally:
        running.cancel()
        await asyncio.wait([running])


async def joined(agent: Agent) -> AgentDaemon:
    """A daemon that has run until it had registered."""
    async with registered(agent) as daemon:
        return daemon
