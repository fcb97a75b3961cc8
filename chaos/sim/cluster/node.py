"""The boundaries of an agent on a simulated machine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise

from agent.boundaries import Beside, LastWords, Post, Process
from agent.core.events import GpusSeen, LauncherGone, LauncherLeft, LauncherSaid
from agent.core.gpus.health import Sight
from agent.core.instructions import Follow, Reach, Recipe
from agent.inside import protocol
from agent.retry_log import Tell, raise_it
from chaos.sim.cluster.launcher import SimLauncher
from chaos.sim.cluster.loop import PROCESS, SimProcess
from chaos.sim.cluster.machine import Addresses, Machine, MachineProcess, Trouble
from chaos.sim.cluster.node_socket import Connection, Socket
from chaos.sim.cluster.programs import Program, Training
from recovery.policy.logs import raised
from supervisor.contract.errors import Refused, Unreachable
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.incident import Raised
from supervisor.contract.job.spec import CodeRef, ContainerSpec
from supervisor.contract.observed import Beat, Saves, Sign, TaskBeat
from supervisor.contract.promise import PromiseRequest
from supervisor.contract.secret import SecretsAnswer, SecretsRequest

FENCE_LOOKS = 30
FETCH_FAILS = 0.3


@dataclass(slots=True, eq=False)
class LauncherTable:
    """All launchers that were ever started on a machine since it booted, by id."""

    socket: Socket = field(default_factory=Socket)
    by_id: dict[str, SimLauncher] = field(default_factory=dict)


class SimRuntime:
    """`Runtime` over a Machine. With `addresses`, launchers are containers."""

    def __init__(
        self,
        machine: Machine,
        table: LauncherTable,
        training: Training,
        pull_ms: int,
        addresses: Addresses | None = None,
    ) -> None:
        self._machine = machine
        self._table = table
        self._training = training
        self._pull_ms = pull_ms
        self._addresses = addresses
        self._open = True

    def boot_id(self) -> str:
        """Changes whenever the machine boots."""
        return self._machine.boot_id

    async def bring_in(self, container: ContainerSpec, plan_id: str) -> None:
        """Images come soon, where docker is there at all."""
        await asyncio.sleep(self._machine.rng.uniform(0.001, 0.3))
        if self._machine.trouble is Trouble.AWAY:
            raise Unreachable("docker does not answer")

    async def tidy(self, known: Callable[[], AbstractSet[str]]) -> None:
        """A launcher leaves nothing behind here."""

    async def spawn(self, launcher_id: str, recipe: Recipe) -> Process:
        """Fork and exec a launcher."""
        machine = self._machine
        await asyncio.sleep(machine.rng.uniform(0.002, 0.03))
        machine.refused += machine.trouble in (Trouble.REFUSES, Trouble.STILLBORN)
        if machine.trouble is Trouble.AWAY:
            raise Unreachable("the runtime does not answer")
        if machine.trouble is Trouble.REFUSES:
            raise Refused("no more processes")
        launcher = SimLauncher(
            machine, self._table.socket, self._training, launcher_id, recipe.job, self._pull_ms
        )
        self._table.by_id[launcher_id] = launcher
        if recipe.networked and self._addresses is not None:
            launcher.move_to(self._addresses.take(launcher.row))
        if machine.trouble is Trouble.STILLBORN:
            machine.exit(launcher.row, 1)
        await asyncio.sleep(machine.rng.uniform(0.0, 0.01))
        return Process(launcher.row.pid, launcher.row.start_ticks)

    def reach(self, launcher_id: str) -> Reach | None:
        """On a network of docker's; all others have their machine's address."""
        launcher = self._table.by_id[launcher_id]
        return Reach(launcher.host) if launcher.ports is not self._machine.ports else None

    def watch(self, launcher_id: str, process: Process, post: Post) -> None:
        """Post LauncherGone when the launcher's process has ended."""
        if (process.pid, process.start_ticks) in self._machine.strangers:
            return
        row = self._machine.find(process.pid, process.start_ticks)

        def tell() -> None:
            if self._open:
                post(LauncherGone(launcher_id))

        if row is None:
            asyncio.get_running_loop().call_soon(tell)
            return
        loop, owner = self._machine.loop, PROCESS.get()
        row.at_end.append(lambda: loop.post(owner, 0.0005, tell))

    def is_alive(self, process: Process) -> bool:
        """Whether this very process lives."""
        stranger = (process.pid, process.start_ticks) in self._machine.strangers
        return stranger or self._machine.find(process.pid, process.start_ticks) is not None

    async def living(self) -> Mapping[str, tuple[Process, ...]]:
        """Launcher id -> the processes of the launcher and of its programs that live."""
        found: dict[str, tuple[Process, ...]] = {}
        rows = [(each.launcher_id, each.row) for each in self._table.by_id.values() if not each.row.gone]
        rows += [
            (each.launcher.launcher_id, each.row)
            for each in self._training.alive()
            if each.machine is self._machine
        ]
        for launcher_id, row in rows:
            found[launcher_id] = (*found.get(launcher_id, ()), Process(row.pid, row.start_ticks))
        return found

    def free_bytes(self) -> int:
        """The free bytes of the machine's disk."""
        return self._machine.free_bytes

    def launching(self, launcher_id: str, *, yields: bool) -> None:
        """Do nothing: these processors are never busy."""

    def began(self, process: Process) -> None:
        """Do nothing: no start is remembered here."""

    async def last_words(self, launcher_id: str, attempts: tuple[str, ...]) -> LastWords:
        """A container's files stay; what other launchers write is lost with them, as on a full disk."""
        launcher = self._table.by_id.get(launcher_id) if self._addresses is not None else None
        found = [launcher.last_words(each) for each in attempts] if launcher is not None else []
        return LastWords(tuple(each for each in found if each is not None))

    def limit_met(self, process: Process) -> str:
        """These machines have no limits."""
        del process
        return ""

    def oom_beside(self, process: Process) -> Beside:
        """These machines have memory enough."""
        return Beside.NOBODY

    def oom_killed(self, process: Process) -> bool:
        """The kernel's word."""
        return (process.pid, process.start_ticks) in self._machine.starved

    async def fence(self, launcher_id: str, processes: tuple[Process, ...]) -> int:
        """SIGKILL the launcher and what carries its marker; returns how many are still seen."""
        rows: list[MachineProcess] = []
        launcher = self._table.by_id.get(launcher_id)
        if launcher is not None:
            rows.append(launcher.row)
        rows += [each.row for each in self._training.alive() if each.launcher.launcher_id == launcher_id]
        named = {(each.pid, each.start_ticks) for each in processes}
        self._machine.struck += sorted(named & self._machine.strangers)
        known = (self._machine.find(each.pid, each.start_ticks) for each in processes)
        rows += [row for row in known if row is not None and row not in rows]
        for row in rows:
            self._machine.kill(row)
        for _ in range(FENCE_LOOKS):
            if all(row.gone for row in rows):
                break
            await asyncio.sleep(0.02)
        return sum(1 for row in rows if not row.gone)

    async def close(self) -> None:
        """Stop watching."""
        self._open = False


class SimLaunchers:
    """`Launchers`: the agent's end of the node's socket."""

    def __init__(self, machine: Machine, table: LauncherTable, process: SimProcess) -> None:
        self.process = process
        self._machine = machine
        self._socket = table.socket
        self._post: Post = _nobody
        self._by_id: dict[str, Connection] = {}
        self._mine: list[Connection] = []

    async def open(self, post: Post) -> None:
        """Serve the socket; the one who served it before is dead, the state file's lock says so."""
        self._post = post
        self._socket.server = self

    def taken(self, launcher_id: str) -> None:
        """Do nothing: programs here say little."""

    def send(self, launcher_id: str, message: object) -> None:
        """Queue a message."""
        connection = self._by_id.get(launcher_id)
        if connection is not None and self.process.alive:
            connection.to_launcher(message)

    async def close(self) -> None:
        """End all connections."""
        self.died()

    def died(self) -> None:
        """The kernel closes the socket of a dead process."""
        if self._socket.server is self:
            self._socket.server = None
        for connection in self._mine:
            connection.close()
        self._mine.clear()

    def arrived(self, connection: Connection, message: object) -> None:
        """A launcher's message."""
        launcher_id = connection.launcher.launcher_id
        if not connection.hello:
            assert isinstance(message, protocol.Hello), "a launcher begins with a hello"
            connection.hello = True
            self._mine.append(connection)
            old = self._by_id.get(launcher_id)
            self._by_id[launcher_id] = connection
            if old is not None:
                old.close()
                self._post(LauncherLeft(launcher_id))
        if self._by_id.get(launcher_id) is connection:
            self._post(LauncherSaid(launcher_id, message))

    def ended(self, connection: Connection) -> None:
        """A launcher's connection is over."""
        launcher_id = connection.launcher.launcher_id
        if self._by_id.get(launcher_id) is connection:
            del self._by_id[launcher_id]
            self._post(LauncherLeft(launcher_id))


class SimLinks:
    """`Links`: datagram-like beats to every supervisor, late, twice, never, or in another order."""

    def __init__(
        self,
        node: str,
        carry: Callable[[str, Beat], None],
        ask: Callable[[PromiseRequest, int, Post], None],
    ) -> None:
        self._node = node
        self._carry = carry
        self._ask = ask
        self._post: Post = _nobody
        self._open = False

    async def open(self, post: Post) -> None:
        """Begin to connect."""
        self._post = post
        self._open = True

    def send(self, beat: Beat) -> None:
        """Give it to the network."""
        if self._open:
            self._carry(self._node, beat)

    def ask(self, request: PromiseRequest, sent_ms: int) -> None:
        """Give it to the network, too."""
        if self._open:
            self._ask(request, sent_ms, self._post)

    async def secrets(self, request: SecretsRequest) -> SecretsAnswer:
        """No job here has any."""
        raise Unreachable(f"{request.task} has no secrets")

    async def close(self) -> None:
        """End all streams."""
        self._open = False


class SimGpus:
    """`Gpus`: hears what the machine's driver tells, as long as this agent lives."""

    def __init__(self, machine: Machine, process: SimProcess) -> None:
        self._machine = machine
        self._process = process

    async def run(self, post: Post) -> None:
        """Tell how they are, then what happens to them."""
        board = self._machine.gpus

        def hear(sight: Sight) -> None:
            self._machine.loop.post(self._process, 0.002, lambda: post(GpusSeen(sight)))

        board.listener = hear
        board.tell()
        try:
            await asyncio.Event().wait()
        finally:
            if board.listener is hear:
                board.listener = None

    def look(self) -> None:
        """Tell how they are, again."""
        self._machine.gpus.tell()


class SimTaskFiles:
    """`TaskFiles`: reads the logs of programs, which stay readable when they are dead."""

    def __init__(self, machine: Machine, training: Training) -> None:
        self._machine = machine
        self._training = training
        self._followed: dict[AttemptId, tuple[Program | None, int]] = {}
        self._first: dict[AttemptId, tuple[int, int]] = {}
        self._slowest: dict[AttemptId, tuple[int, int]] = {}

    def directory(self, job_uuid: str, attempt: AttemptId) -> str:
        """Absolute path of an attempt's directory."""
        return str(self._machine.root / "attempts" / job_uuid / attempt.dirname)

    def follow(self, follow: Follow) -> None:
        """Read steps from now on."""
        self._followed.setdefault(follow.attempt, (self._find(follow.attempt), follow.started_ms))

    def progress(
        self, now_ms: int, gpus: Mapping[AttemptId, float] | None = None, tell: Tell = raise_it
    ) -> tuple[TaskBeat, ...]:
        """The step of every followed attempt."""
        return tuple(self._beat(attempt) for attempt in self._followed)

    def wrote(self, attempt: AttemptId, now_ms: int) -> bool:
        """True when the attempt's first step has come."""
        if attempt not in self._followed or attempt in self._first:
            return False
        return self._look(attempt)

    def last_step(self, attempt: AttemptId) -> int:
        """The newest step."""
        program = self._find(attempt)
        known = program is not None and program.told_steps and not program.epochs
        return program.told_steps[-1][1] if program is not None and known else -1

    def has_stepped(self, attempt: AttemptId) -> bool:
        """Whether it made a step that can be read."""
        program = self._find(attempt)
        return program is not None and bool(program.told_steps)

    def note_commit(self, task: TaskId, generation: int, took_ms: int, seen_ms: int) -> None:
        """Programs of the simulator save when they like."""

    def newest_step(self, task: TaskId, generation: int) -> int:
        """The newest step of a task in a generation."""
        return max(
            (
                self.last_step(each)
                for each in self._followed
                if each.task == task and each.generation == generation
            ),
            default=-1,
        )

    def saves(self, attempt: AttemptId) -> Saves:
        """The number of its saves, as all of these programs say."""
        program = self._find(attempt)
        if program is None:
            return Saves()
        return Saves(inside=len(program.saved), watched=True, recovers=program.recovers)

    def tail(self, attempt: AttemptId) -> str:
        """The last lines."""
        program = self._find(attempt)
        said = program.last_words if program is not None else ""
        return f"step {self.last_step(attempt)}\n{said}"

    def raised(self, attempt: AttemptId, *, aborted: bool) -> tuple[Raised, ...]:
        """Read its output, as of a program that notes nothing."""
        return raised(self.tail(attempt))

    def signalled(self, attempt: AttemptId) -> tuple[int, int] | None:
        """No operator is simulated here."""
        return None

    async def dump(self, attempt: AttemptId) -> bool:
        """Return False: there are no stacks here."""
        return False

    def stack(self, attempt: AttemptId) -> str:
        """Return an empty text: no stack was kept."""
        return ""

    def hold(self, attempt: AttemptId, hold_ms: int) -> str:
        """Nothing is ever removed here."""
        return self.directory("", attempt)

    def unfollow(self, attempt: AttemptId) -> None:
        """Forget it."""
        self._followed.pop(attempt, None)
        self._first.pop(attempt, None)
        self._slowest.pop(attempt, None)

    async def tidy(self) -> None:
        """Nothing is ever removed here."""

    def _find(self, attempt: AttemptId) -> Program | None:
        for program in reversed(self._training.programs):
            if program.attempt == attempt and program.machine is self._machine:
                return program
        return None

    def _look(self, attempt: AttemptId) -> bool:
        program = self._followed[attempt][0] or self._find(attempt)
        if program is None or not program.told_steps:
            return False
        at_s, step = program.steps[0]
        age_ms = int((self._machine.loop.time() - at_s) * 1000)
        self._first[attempt] = (step, self._machine.clock.now_ms() - age_ms)
        return True

    def _beat(self, attempt: AttemptId) -> TaskBeat:
        if attempt not in self._first and not self._look(attempt):
            return TaskBeat(str(attempt), saves=self.saves(attempt))
        program = self._followed[attempt][0] or self._find(attempt)
        assert program is not None
        first, first_ms = self._first[attempt]
        now_ms = self._machine.clock.now_ms()
        at_s, step = program.steps[-1]
        now_s = self._machine.loop.time()
        age_ms = int((now_s - at_s) * 1000)
        slowest_ms = self._slowest_ms(attempt, program)
        works_ms = 0 if program.spins and now_s < program.rests_until_s else max(0, age_ms)
        return TaskBeat(
            str(attempt),
            -1 if program.epochs else step,
            max(0, age_ms),
            -1 if program.epochs else first,
            max(0, now_ms - first_ms),
            1.0,
            slowest_ms=slowest_ms,
            stopped=program.row.frozen,
            signs=(Sign("step", max(0, age_ms), slowest_ms), Sign("cpu", works_ms, slowest_ms)),
            saves=self.saves(attempt),
        )

    def _slowest_ms(self, attempt: AttemptId, program: Program) -> int:
        """The longest pause between two steps so far, -1 before the second."""
        seen, slowest_ms = self._slowest.get(attempt, (1, -1))
        for (before_s, _), (after_s, _) in pairwise(program.steps[seen - 1 :]):
            slowest_ms = max(slowest_ms, int((after_s - before_s) * 1000))
        self._slowest[attempt] = (len(program.steps), slowest_ms)
        return slowest_ms


class SimCode:
    """`Code`: arrives after a while, and is on the machine's disk until it is not in use any more."""

    def __init__(self, machine: Machine, rng: random.Random) -> None:
        self._machine = machine
        self._rng = rng

    def directory(self, ref: CodeRef) -> str:
        """The directory of the code. No program is ever started where there is none."""
        assert ref.digest in self._machine.code, f"{self._machine.name} has no code {ref.digest[:8]}"
        return str(self._machine.root / "code" / ref.digest)

    async def ensure(self, ref: CodeRef) -> str:
        """Fetch and unpack."""
        await asyncio.sleep(self._rng.uniform(0.001, 0.01))
        if ref.digest not in self._machine.code:
            await asyncio.sleep(self._rng.uniform(0.0, 0.3))
            if self._rng.random() < FETCH_FAILS:
                raise Unreachable("etcd was too slow with the code")
            self._machine.code.add(ref.digest)
        return self.directory(ref)

    async def keep(self, in_use: frozenset[str]) -> None:
        """Keep not one that may go."""
        self._machine.code &= in_use


def _nobody(_event: object) -> None:
    """Before the daemon has opened the socket."""
