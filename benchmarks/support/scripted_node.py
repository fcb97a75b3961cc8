"""A node whose launchers and tasks are scripted, and whose agent is the real one.

The agent's loop, its core, its records in etcd, its watches, its lease and its beats are those of a real
node. Docker, processes, disks and the node's socket are left out: a launcher is an object that answers the
agent's messages, and a task is an attempt that makes a step each 100 ms until it is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.boundaries import LastWords, Outside, Post, Process
from agent.core.events import LauncherGone, LauncherSaid
from agent.core.instructions import Follow, Recipe
from agent.daemon import AgentDaemon
from agent.inside import protocol
from agent.inside.launcher.deadman import DeadMan
from agent.link import GrpcLinks
from agent.retry_log import Tell, raise_it
from agent.settings import AgentSettings
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.adapters.service import SILENCE_SHARE
from supervisor.contract.boundaries import Logger
from supervisor.contract.ids import AttemptId
from supervisor.contract.observed import Beat, NodeResources, Sign, TaskBeat
from supervisor.contract.timing import Timing
from supervisor.wire.rpc import Guard
from tests.agent.daemon import Disk, Machine, Nobody, NoCheckpoints, NoCode, NoFiles

STEP_MS = 100
HELLO_S = 0.02
FIRST_STEP_S = 0.3
IDLE_PULL_MS = 1_000
PORTS = (20_000, 29_999)
_pids = itertools.count(1_000)
_clock = BootClock()


@dataclass(frozen=True, slots=True)
class Cluster:
    """The way from nodes to their cluster, and the offer of each."""

    name: str
    endpoints: tuple[str, ...]
    supervisors: tuple[str, ...]
    timing: Timing
    cpus: float
    memory_bytes: int


@dataclass(slots=True, eq=False)
class ScriptedLauncher:
    """A launcher from its start to its end; `attempt` runs since `started_ms`."""

    launcher_id: str
    recipe: Recipe
    process: Process
    post: Post
    pull_ms: int
    attempt: protocol.Start | None = None
    started_ms: int = -1
    ended: Callable[[], None] = lambda: None
    _waiting: protocol.Start | None = None
    _held: dict[str, int] = field(default_factory=dict)
    _exits: dict[str, protocol.Exited] = field(default_factory=dict)
    _deadman: DeadMan = field(default_factory=DeadMan)
    _life: str = ""
    _timer: asyncio.TimerHandle | None = None
    _gone: bool = False

    def begin(self) -> None:
        """Say hello, and have all imports done."""
        if not self._gone:
            pid, ticks = self.process.pid, self.process.start_ticks
            hello = (protocol.PROTOCOL, self.launcher_id, self.recipe.job, pid, ticks, "boot", True)
            self._say(protocol.Hello(*hello, joins=True, adds_workers=True))
            self._say(protocol.Warm(1))

    def hear(self, message: object, free_port: Callable[[], int]) -> None:
        """Do what the agent says."""
        match message:
            case protocol.Welcome():
                self._life = message.incarnation
                self._pull()
            case protocol.Grant() if message.incarnation == self._life:
                self._deadman = self._deadman.granted(message.stamp_ms, message.remaining_ms)
                if self._waiting is not None and message.remaining_ms > 0:
                    self._start(self._waiting)
            case protocol.Reserve():
                port = message.reuse or self._held.get(message.reservation) or free_port()
                self._held[message.reservation] = port
                self._say(protocol.Reserved(message.reservation, port))
            case protocol.Release():
                self._held.pop(message.reservation, None)
            case protocol.Start():
                self._waiting = message
                self._pull()
            case protocol.Kill():
                self.end("killed", signal=9)
            case protocol.Terminate():
                self.end("exit", code=143)
            case protocol.AckExit():
                self._exits.pop(message.attempt, None)
            case protocol.Shutdown():
                self.end("killed", signal=9)
                self.vanish()
                self.ended()
            case _:
                pass

    def end(self, reason: str, *, code: int | None = None, signal: int | None = None) -> None:
        """The attempt ends, and is confirmed dead."""
        running, self.attempt, self._waiting = self.attempt, None, None
        if running is None:
            return
        port = self._held.get(running.reservation or "")
        exited = protocol.Exited(running.attempt, code, signal, _clock.now_ms(), reason, True, port=port)
        self._exits[running.attempt] = exited
        self._say(exited)

    def vanish(self) -> None:
        """The task ends, and its launcher says no more."""
        self._gone = True
        if self._timer is not None:
            self._timer.cancel()

    def _start(self, start: protocol.Start) -> None:
        self._waiting, self.attempt, self.started_ms = None, start, _clock.now_ms()
        pid, ticks = next(_pids), self.started_ms // 10
        self._say(protocol.Started(start.attempt, pid, ticks, self.started_ms, warm=True))
        asyncio.get_running_loop().call_later(FIRST_STEP_S, self._print, start)

    def _print(self, start: protocol.Start) -> None:
        if self.attempt is start:
            self._say(protocol.Output(start.attempt, 1, _clock.now_ms()))

    def _pull(self) -> None:
        """Ask the agent whether to go on, and again after the time between two pulls."""
        if self._gone:
            return
        now_ms = _clock.now_ms()
        if self.attempt is not None and self._deadman.expired(now_ms):
            self.end("deadline", signal=9)
        every_ms = self.pull_ms if self.attempt is not None else IDLE_PULL_MS
        due_ms = self._deadman.next_pull_ms(1)
        if due_ms is not None and now_ms >= due_ms:
            self._deadman = self._deadman.pulled(now_ms)
            attempt = self.attempt.attempt if self.attempt is not None else None
            self._say(protocol.Pull(now_ms, self._life, attempt))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(every_ms / 1000, self._pull)

    def _say(self, message: object) -> None:
        if not self._gone:
            self.post(LauncherSaid(self.launcher_id, message))


class ScriptedMachine(Machine, Nobody):
    """The agent's runtime and its launchers' socket."""

    def __init__(self, disk: Disk, timing: Timing) -> None:
        super().__init__(disk)
        self.launchers: dict[str, ScriptedLauncher] = {}
        self._pull_ms = timing.pull_ms
        self._ports = itertools.cycle(range(PORTS[0], PORTS[1] + 1))
        self._post: Post = _nobody

    async def open(self, post: Post) -> None:
        """Serve launchers."""
        self._post = post

    async def spawn(self, launcher_id: str, recipe: Recipe) -> Process:
        """Start a launcher."""
        process = Process(next(_pids), _clock.now_ms() // 10)
        launcher = ScriptedLauncher(launcher_id, recipe, process, self._post, self._pull_ms)
        self.launchers[launcher_id] = launcher
        asyncio.get_running_loop().call_later(HELLO_S, launcher.begin)
        return process

    def watch(self, launcher_id: str, process: Process, post: Post) -> None:
        """Post LauncherGone when it has left."""
        self.launchers[launcher_id].ended = lambda: self._left(launcher_id, post)

    def _left(self, launcher_id: str, post: Post) -> None:
        if self.launchers.pop(launcher_id, None) is not None:
            post(LauncherGone(launcher_id))

    def is_alive(self, process: Process) -> bool:
        """Whether it is a launcher here."""
        return any(each.process == process for each in self.launchers.values())

    async def fence(self, launcher_id: str, processes: tuple[Process, ...]) -> int:
        """Kill it; nothing survives."""
        launcher = self.launchers.get(launcher_id)
        if launcher is not None:
            launcher.vanish()
            launcher.ended()
        return 0

    async def last_words(self, launcher_id: str, attempts: tuple[str, ...]) -> LastWords:
        """Nothing: all was told."""
        return LastWords()

    def send(self, launcher_id: str, message: object) -> None:
        """Pass a message to a launcher, after what runs now."""
        launcher = self.launchers.get(launcher_id)
        if launcher is not None:
            asyncio.get_running_loop().call_soon(launcher.hear, message, self._ports.__next__)

    def running(self, attempt: str) -> ScriptedLauncher | None:
        """The launcher that runs an attempt."""
        for each in self.launchers.values():
            if each.attempt is not None and each.attempt.attempt == attempt:
                return each
        return None

    def power_off(self) -> None:
        """The node is switched off: all on it ends."""
        for each in self.launchers.values():
            each.vanish()
        self.launchers.clear()


class ScriptedFiles(NoFiles):
    """The output of attempts: a step each STEP_MS since their start."""

    def __init__(self, machine: ScriptedMachine) -> None:
        self._machine = machine
        self._followed: dict[AttemptId, int] = {}
        self._stepped: set[AttemptId] = set()

    def follow(self, follow: Follow) -> None:
        """Read it from now on."""
        self._followed.setdefault(follow.attempt, follow.started_ms)

    def unfollow(self, attempt: AttemptId) -> None:
        """Forget it."""
        self._followed.pop(attempt, None)
        self._stepped.discard(attempt)

    def wrote(self, attempt: AttemptId, now_ms: int) -> bool:
        """True at its first step."""
        first = attempt in self._followed and attempt not in self._stepped
        if first:
            self._stepped.add(attempt)
        return first

    def has_stepped(self, attempt: AttemptId) -> bool:
        """Whether it has made its first step."""
        return attempt in self._stepped

    def last_step(self, attempt: AttemptId) -> int:
        """Its newest step."""
        stepped = attempt in self._stepped
        return (_clock.now_ms() - self._followed[attempt]) // STEP_MS if stepped else -1

    def progress(
        self, now_ms: int, gpus: Mapping[AttemptId, float] | None = None, tell: Tell = raise_it
    ) -> tuple[TaskBeat, ...]:
        """The steps of all that runs."""
        return tuple(self._beat(each, since_ms, now_ms) for each, since_ms in self._followed.items())

    def _beat(self, attempt: AttemptId, since_ms: int, now_ms: int) -> TaskBeat:
        name, ran_ms = str(attempt), now_ms - since_ms
        if attempt not in self._stepped or self._machine.running(name) is None:
            return TaskBeat(name)
        age_ms = ran_ms % STEP_MS
        rate = 1000 / STEP_MS
        signs = (Sign("output", age_ms, STEP_MS), Sign("step", age_ms, STEP_MS), Sign("cpu", age_ms, STEP_MS))
        return TaskBeat(
            name,
            ran_ms // STEP_MS,
            age_ms,
            0,
            ran_ms,
            rate,
            STEP_MS,
            pace=rate,
            signs=signs,
            silent_ms=age_ms,
        )


class CountedLinks(GrpcLinks):
    """The real links; `sent` counts beats."""

    sent = 0

    def send(self, beat: Beat) -> None:
        """Pass it on."""
        self.sent += 1
        super().send(beat)


class ScriptedNode:
    """A node: its agent runs from `start` until `lose`."""

    def __init__(self, index: int, cluster: Cluster, sink: Logger) -> None:
        self.name = f"node-{index}"
        timing = cluster.timing
        host = f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}"
        self.machine = ScriptedMachine(Disk(), timing)
        self.links = CountedLinks(cluster.supervisors, Guard(), sink)
        first = index % len(cluster.endpoints)
        self._coordination = EtcdCoordination(
            (*cluster.endpoints[first:], *cluster.endpoints[:first]),
            cluster.name,
            rpc_deadline_ms=timing.rpc_deadline_ms,
            silence_ms=timing.d_ms // SILENCE_SHARE,
        )
        offer = NodeResources(cluster.cpus, cluster.memory_bytes, secrets=True, spares=False)
        settings = AgentSettings(
            self.name, host, f"{host}:7000", *PORTS, "/locks", timing, offer, spare_launchers=0
        )
        self.daemon = AgentDaemon(
            settings,
            Outside(
                coordination=self._coordination,
                runtime=self.machine,
                launchers=self.machine,
                links=self.links,
                files=ScriptedFiles(self.machine),
                checkpoints=NoCheckpoints(),
                state_file=self.machine.disk,
                clock=_clock,
                sink=sink,
                new_id=lambda: uuid.uuid4().hex,
                code=NoCode(),
            ),
        )
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the agent."""
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self.daemon.run()
        finally:
            await self._coordination.close()

    def failure(self) -> BaseException | None:
        """The error that has ended the agent."""
        task = self._running
        return task.exception() if task is not None and task.done() and not task.cancelled() else None

    def kill(self, attempt: str) -> bool:
        """End an attempt as by SIGKILL from outside; whether it ran here."""
        launcher = self.machine.running(attempt)
        if launcher is not None:
            launcher.end("exit", signal=9)
        return launcher is not None

    async def lose(self) -> None:
        """Switch the machine off: its key stays in etcd until its lease runs out."""
        self.machine.power_off()
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])


def _nobody(_event: object) -> None:
    """The `post` before the daemon serves launchers."""


def by_name(nodes: Sequence[ScriptedNode]) -> dict[str, ScriptedNode]:
    """The nodes by their names."""
    return {each.name: each for each in nodes}
