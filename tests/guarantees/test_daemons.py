"""What only the loops of the two daemons can promise: rules 1, 10, 11 and 12."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from agent.boundaries import Beside, Outside, Post, Process
from agent.core.instructions import Commit, Follow, FollowCommits, Reach, Recipe, Stage
from agent.core.saved import adopt
from agent.core.saved.record import AgentRecord, LauncherRecord, Saved
from agent.daemon import AgentDaemon
from agent.inside import protocol
from agent.retry_log import Tell, raise_it
from agent.settings import AgentSettings
from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.adapters.etcd.mirror import MirrorUpdate
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import KeyDeleted, KeyValue, Put
from supervisor.contract.desired import Assignment, ClusterRecord, JobPhase, JobSwitch, LeaderToken
from supervisor.contract.errors import Fenced, Refused, Unreachable, UserError
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.job.spec import CodeRef, ContainerSpec
from supervisor.contract.observed import (
    Beat,
    Incarnation,
    NodeResources,
    Prepared,
    SaverBeat,
    Saves,
    TaskBeat,
)
from supervisor.contract.promise import PromiseRequest
from supervisor.contract.secret import SecretsAnswer, SecretsRequest
from supervisor.contract.timing import FAST
from supervisor.control.decide.plan import put
from supervisor.control.loop.apply import Applier
from supervisor.control.loop.daemon import ControlDaemon, ControlSettings
from tests.support.clocks import ManualClock
from tests.support.sinks import ListSink

# The supervisor's.


@dataclass
class Supervisor:
    """A daemon whose loop does not run."""

    clock: ManualClock = field(default_factory=ManualClock)

    def daemon(self) -> ControlDaemon:
        return ControlDaemon(
            ControlSettings("s0", "c", "unix:/s0", 1, FAST),
            MemoryCoordination(MemoryStore()),
            lambda _uri: MemoryCheckpointStore(),
            self.clock,
            ListSink(),
            lambda: "id",
        )


async def test_a_new_leader_decides_only_on_a_picture_that_shows_its_own_election() -> None:
    daemon = Supervisor().daemon()
    daemon._token = LeaderToken(keys.LEADER, 100)
    daemon._view.apply((), 99, 0)
    assert daemon.job_service.snapshot() is None
    daemon._view.apply((), 100, 0)
    assert daemon.job_service.snapshot() is not None


async def test_after_its_own_freeze_a_leader_listens_afresh() -> None:
    supervisor = Supervisor()
    daemon = supervisor.daemon()
    supervisor.clock.ms += 20_000
    daemon._notice_stall()
    daemon._token = LeaderToken(keys.LEADER, 1)
    daemon._view.apply((), 1, 0)
    picture = daemon._picture()
    assert picture is not None
    assert picture.since_ms == supervisor.clock.ms


async def test_an_outage_of_etcd_begins_the_time_to_obey_anew() -> None:
    supervisor = Supervisor()
    daemon, clock = supervisor.daemon(), supervisor.clock
    daemon._mirror._last_alive_ms = began_ms = clock.ms
    for _ in range(20):
        clock.ms += FAST.d_ms // 4
        daemon._notice_stall()
    assert daemon._etcd_since_ms == clock.ms
    daemon._mirror._last_alive_ms = back_ms = clock.ms
    clock.ms += FAST.d_ms // 4
    daemon._notice_stall()
    assert daemon._etcd_since_ms == back_ms > began_ms


async def test_a_supervisor_with_another_d_does_not_lead() -> None:
    daemon = Supervisor().daemon()
    other = codec.encode(ClusterRecord("c", "default", 12_000))
    daemon._view.apply((KeyValue(keys.CLUSTER, other, 2, 2),), 2, 0)
    with pytest.raises(UserError, match="make them equal"):
        daemon._check_cluster()


def cluster_record(uuid: str, revision: int) -> KeyValue:
    value = codec.encode(ClusterRecord("c", FAST.profile, FAST.d_ms, uuid=uuid))
    return KeyValue(keys.CLUSTER, value, 2, revision)


@pytest.mark.parametrize("anew", [cluster_record("c2", 3), KeyDeleted(keys.CLUSTER, 3)])
async def test_a_supervisor_of_a_cluster_that_is_lost_stops(anew: KeyValue | KeyDeleted) -> None:
    daemon = Supervisor().daemon()
    for known in (cluster_record("", 2), cluster_record("c1", 2)):
        daemon._fold([MirrorUpdate(2, (known,), relisted=True)])
    with pytest.raises(Fenced, match="begun anew"):
        daemon._fold([MirrorUpdate(3, (anew,), relisted=True)])


@pytest.mark.parametrize(("revision", "forked"), [(8, False), (10, True)])
async def test_a_supervisor_decides_nothing_on_an_etcd_that_went_back(revision: int, forked: bool) -> None:
    """A snapshot was restored beneath it: its mirror has had to list again."""
    daemon = Supervisor().daemon()
    daemon._fold([MirrorUpdate(9, (cluster_record("c1", 9),), relisted=True)])
    with pytest.raises(UserError, match="A snapshot was restored"):
        daemon._fold([MirrorUpdate(revision, (), relisted=True, forked=forked)])


async def fixed(before: ClusterRecord | None, known: str = "") -> ClusterRecord:
    """The cluster's record once a leader, which has served a cluster before, has seen to it."""
    daemon = Supervisor().daemon()
    daemon._etcd.identity.cluster = known
    etcd = daemon._coordination
    if before is not None:
        await etcd.txn([], [put(keys.CLUSTER, before)])
    elected = await etcd.txn([], [Put(keys.LEADER, b"")])
    listing = await etcd.list(keys.CLUSTER)
    daemon._view.apply(listing.entries, listing.revision, 0)
    token = LeaderToken(keys.LEADER, elected.revision)
    sink = ListSink()
    await daemon._fix_cluster(Applier(token, etcd, daemon._open_store, daemon._clock, sink, 1))
    entry = await etcd.get(keys.CLUSTER)
    assert entry is not None
    return codec.decode(ClusterRecord, entry.value)


@pytest.mark.parametrize("earlier", [None, ClusterRecord("c", FAST.profile, FAST.d_ms)])
async def test_a_leader_gives_a_cluster_its_uuid(earlier: ClusterRecord | None) -> None:
    assert (await fixed(earlier)).uuid == "id"


async def test_a_cluster_keeps_its_uuid() -> None:
    record = ClusterRecord("c", FAST.profile, FAST.d_ms, uuid="c1")
    assert (await fixed(record)).uuid == "c1"
    written_by_an_earlier_release = replace(record, uuid="")
    assert (await fixed(written_by_an_earlier_release, "c1")).uuid == "c1"


# The agent's.


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

    async def last_words(self, launcher_id: str, attempts: tuple[str, ...]) -> tuple[protocol.Exited, ...]:
        raise NotImplementedError

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

    def note_commit(self, task: TaskId, generation: int, took_ms: int) -> None:
        pass

    def newest_step(self, task: TaskId, generation: int) -> int:
        return -1

    def saves(self, attempt: AttemptId) -> Saves:
        return Saves()

    def tail(self, attempt: AttemptId) -> str:
        return ""

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
    """Nothing is saved."""

    def directory(self, job_uuid: str, generation: int) -> str:
        return "/c"

    async def stage(self, stage: Stage) -> None:
        pass

    def commit(self, commit: Commit, *_who: object) -> None:
        pass

    async def found(self) -> frozenset[str]:
        return frozenset()

    async def drain(self, job_uuid: str, generation: int, timeout_ms: int, *, clean: bool) -> None:
        pass

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
            NoCheckpoints(),
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


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(0.01)


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


async def test_the_intent_is_on_disk_before_a_launcher_is_spawned() -> None:
    agent = Agent()
    agent.prepare("p1")
    running = asyncio.create_task(agent.daemon().run())
    async with asyncio.timeout(20):
        await agent.machine.spawned.wait()
    running.cancel()
    await asyncio.wait([running])
    assert agent.machine.known_at_spawn[:1] == [True]


async def test_what_cannot_be_written_is_not_spawned_and_the_agent_lives_on() -> None:
    agent = Agent()
    async with registered(agent):
        agent.disk.full = True
        agent.prepare("p1")
        key = keys.prepared(TaskId("job", "worker", 0), "p1")
        await until(lambda: bool(agent.store.read(key)))
        (found,) = agent.store.read(key)
        told = codec.decode(Prepared, found.value)
        assert told.delay == "cannot write agent.json: No space left on device"
        assert not told.failure
        assert not agent.machine.known_at_spawn
        agent.disk.full = False
        agent.prepare("p2")
        await agent.machine.spawned.wait()
        assert agent.machine.known_at_spawn == [True]
        said = [event for level, event, _ in agent.sink.lines if level == "error"]
        assert said == ["the state file cannot be written: tasks run on, no task starts"]


async def test_what_a_watch_shows_of_an_etcd_that_went_back_is_not_wanted() -> None:
    """The simulator: the orders of an old snapshot were carried out before a read had shown what it was."""
    agent = Agent()
    record = ClusterRecord("c", FAST.profile, FAST.d_ms, uuid="c1")
    assert agent.store.commit([], [put(keys.CLUSTER, record)], []).succeeded
    async with registered(agent) as daemon:
        await until(lambda: daemon.state.view is not None)
        before = daemon.state.life
        daemon._changed(MirrorUpdate(9, (), relisted=True))
        assert daemon._heard_ms() is not None
        daemon._changed(MirrorUpdate(9, (), relisted=True, forked=True))
        assert daemon._heard_ms() is None, "so nothing of it comes to the core, nor vouches for anything"
        agent.next_life = "life2"
        await until(lambda: daemon.state.life != before and daemon.state.view is not None)
        (said,) = [
            fields
            for _, event, fields in agent.sink.lines
            if event == "this life of the agent is lost; its tasks are ended"
        ]
        assert "a snapshot was restored" in str(said["reason"])


async def test_a_state_that_goes_back_to_what_was_saved_before_a_failure_is_saved_again() -> None:
    agent = Agent()
    daemon = agent.daemon()
    daemon._state = before = adopt.anew(None, daemon._settings, "life1", "boot")
    assert await daemon._save()
    agent.disk.full = True
    daemon._state = replace(before, born=1)
    assert not await daemon._save()
    assert daemon._unsaved
    daemon._state, agent.disk.full = before, False
    assert await daemon._save()
    assert not daemon._unsaved, "its beats would say for ever that nothing can start here"
    assert agent.disk.told == Saved("life1", 3, "")


async def test_a_state_file_that_does_not_know_what_runs_is_not_believed() -> None:
    agent = Agent()
    known = LauncherRecord("life0-1", Recipe("job", "u", "/", "python"), 100, 1)
    agent.disk.record = AgentRecord("n1", "boot", "life0", born=1, launchers=(known,))
    agent.machine.strange = {"later-1": (Process(200, 2),)}
    # The life that the file does not know of is this node's all the same.
    later = Incarnation("n1", "later", "boot", 1, "h", "h:1", 1, 2, 1, NodeResources(1.0, 1))
    assert agent.store.commit([], [put(keys.node("n1"), later)], []).succeeded
    holders: list[str] = []

    def look() -> None:
        (found,) = agent.store.read(keys.node("n1"))
        holders.append(codec.decode(Incarnation, found.value).incarnation)

    agent.machine.at_fence = look
    daemon = await joined(agent)
    assert sorted(agent.machine.fenced) == ["later-1", "later-1", "life0-1", "life0-1"]
    assert set(holders) == {"later"}, "all of it is dead before this life registers"
    assert daemon.state.me is not None
    assert daemon.state.me.succeeds == ()
    assert not daemon.state.launchers
    (said,) = [fields for _, event, fields in agent.sink.lines if event.startswith("the state file is not")]
    assert said["unknown"] == ("later-1",)


async def test_a_state_file_that_is_not_the_last_one_is_not_believed_though_it_knows_what_runs() -> None:
    agent = Agent()
    launcher = LauncherRecord("life0-1", Recipe("job", "u", "/", "python"), 100, 1)
    agent.disk.record = AgentRecord(
        "n1", "boot", "life0", born=1, launchers=(launcher,), serial=7, origin="o"
    )
    agent.disk.told = Saved("later", 9, "o")
    agent.machine.strange = {"life0-1": (Process(100, 1),)}
    later = Incarnation("n1", "later", "boot", 1, "h", "h:1", 1, 2, 1, NodeResources(1.0, 1))
    assert agent.store.commit([], [put(keys.node("n1"), later)], []).succeeded
    daemon = await joined(agent)
    assert set(agent.machine.fenced) == {"life0-1"}
    assert daemon.state.me is not None
    assert daemon.state.me.succeeds == ()
    assert not daemon.state.launchers
    assert agent.disk.told == Saved(daemon.state.me.incarnation, 10, "o")
