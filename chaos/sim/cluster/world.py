"""The simulated cluster: etcd, supervisors, nodes with their agents, launchers and programs, and the network.

The daemons are the real ones. A daemon that dies is restarted by a keeper after a while, as by systemd; a
node that loses power stays down until it is turned on.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from agent.boundaries import NoGpus, Outside
from agent.checkpoints.keeper import NodeCheckpoints
from agent.daemon import AgentDaemon
from agent.fencing import Fencing, fence_node
from agent.settings import AgentSettings
from chaos.sim.cluster.etcd import EtcdUser, RecordingStore, SimEtcd
from chaos.sim.cluster.fencing import Keeper, LyingRuntime
from chaos.sim.cluster.loop import PROCESS, Life, SimProcess, VirtualLoop
from chaos.sim.cluster.machine import Addresses, Machine, NodeClock, Ports
from chaos.sim.cluster.network import Network
from chaos.sim.cluster.node import (
    LauncherTable,
    SimCode,
    SimGpus,
    SimLaunchers,
    SimLinks,
    SimRuntime,
    SimTaskFiles,
)
from chaos.sim.cluster.power import Device, SimPower
from chaos.sim.cluster.programs import Program, Temper, Training
from chaos.sim.cluster.seat import Seat, SimSink, Weather, unforeseen
from chaos.sim.cluster.state_file import SimStateFile
from chaos.sim.cluster.vows import SimMarkFile, SimWordFile, Vows
from chaos.sim.trouble.aimed import Aim
from chaos.sim.trouble.flaws import Flaw
from recovery.stores.memory import REAL_FILES, LocalSide, MemoryCheckpointStore, MemoryDisk
from supervisor.adapters import failpoints
from supervisor.adapters.etcd.memory_store import Backup
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.observed import NodeResources
from supervisor.contract.timing import FAST, Timing
from supervisor.control.loop.daemon import ControlDaemon, ControlSettings, StateFiles
from supervisor.control.loop.promise_log import Terms

T = TypeVar("T")

KEEPER_S = (0.1, 0.9)
SWITCHED_ON_S = 5.0
AFTER_MS = (0, 400, 1_750, 5_500)
"""The age of a lost mark at which a fence device is asked: the defaults, and less than they."""
SILENCE_SHARE = 3
GPU_SHARE = 2
NETWORK = "training"
"""Docker's, which spans all machines."""
WENT_BACK = "UserError: etcd has gone back"
"""The error of a supervisor that meets an etcd restored from an old snapshot."""
PORTS_FORGOTTEN = 0.3
"""The share of seeds in which ports are not taken in turn."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes of a simulated cluster.

    Attributes:
        gpus: of each node.
        promise_s: the time for which supervisors promise that tasks may live on without etcd; 0: no promises.
        cpus: of each node.
        docker: tasks are in containers.
        disk_s: the longest time of work that a daemon gives to a thread; 0: no time.
        device: how the fence devices behave.
        keeper: what a node does where its agent is stopped.
    """

    supervisors: int = 2
    nodes: int = 3
    gpus: int = 0
    promise_s: float = 0.0
    timing: Timing = FAST
    cpus: float = 8.0
    docker: bool = False
    disk_s: float = 0.0
    device: Device = Device.NONE
    keeper: Keeper = Keeper.NONE


class World:
    """The simulated cluster. `say` adds a line to the trace; `violations` has the broken promises.

    `reached`: failpoint -> how often daemons have come to it, without those of twins. At `aim` a daemon is
    killed.
    """

    def __init__(self, seed: int, root: Path, layout: Layout = Layout()) -> None:
        self.seed = seed
        self._root = root
        self.elsewhere = root / "elsewhere"
        """Where operators have checkpoints that they bring in."""
        self.rng = random.Random(seed)
        self.timing = layout.timing
        self._device, self._keeper = layout.device, layout.keeper
        self.pace = self.timing.d_ms / FAST.d_ms
        self.loop = VirtualLoop()
        self.loop.threads = _threads(random.Random(f"threads {seed}"), layout.disk_s)
        self.lines: list[str] = []
        self.violations: list[str] = []
        self.weather = Weather(store_s=self.rng.choice((0.004, 0.004, 0.05, 0.3)))
        self.etcd = RecordingStore(self.loop)
        self.disk = MemoryDisk()
        self._other_disks: dict[str, MemoryDisk] = {}
        self._gpus, self._gpu_share = layout.gpus, GPU_SHARE if layout.gpus else 1
        self._cpus = layout.cpus
        self._addresses = Addresses() if layout.docker else None
        self.rotten: set[str] = set()
        self.healed = self.watched = False
        self.flaw: Flaw | None = None
        """The bug of the leader's that this run has, if any."""
        self.at_effect: Callable[[SimProcess, str], None] | None = None
        self.aim: Aim | None = None
        self.reached: Counter[str] = Counter()
        self._disarm = failpoints.install(self._at_failpoint)
        self.tempers: dict[str, Temper] = {}
        self.observers: list[Callable[[str, Program], None]] = []
        self.etcd_lost: list[Callable[[], None]] = []
        """Called before etcd loses all its data."""
        self.etcd_restored: list[Callable[[Backup], None]] = []
        """Called after etcd has a snapshot's data instead."""
        self.rolled_back = False
        """Etcd is as it was some time ago, and does not know what has happened since."""
        self.training = Training(self.rng, self.tempers, self._observe)
        self.supervisors = [Seat(f"s{number + 1}", self._clock()) for number in range(layout.supervisors)]
        self.network = Network(self.loop, self.rng, self.weather, self.supervisors)
        self.disk_changed = self.network.store_changed
        self.nodes: dict[str, Seat] = {}
        self.twins: list[Seat] = []
        self._forgets = random.Random(f"ports {seed}").random() < PORTS_FORGOTTEN
        self._ports = Ports(forgets=self._forgets) if self.rng.random() < 0.5 else None
        for _ in range(layout.nodes):
            self.add_node()
        self.vows = Vows(self.loop, self.rng, self.weather, self.supervisors, self.say, layout.promise_s)

    @property
    def _one_machine(self) -> bool:
        """Whether all agents share an address, and so its ports."""
        return self._ports is not None

    def _clock(self) -> NodeClock:
        offset_ms = self.rng.randrange(0, 10**9)
        rate = 1.0 + self.rng.uniform(-0.002, 0.002)
        return NodeClock(self.loop, offset_ms, rate, 1_700_000_000_000 + self.rng.randrange(-(10**6), 10**6))

    # The trace.

    def say(self, line: str) -> None:
        """Add a line to the trace."""
        # A scratch directory has another name in each run, and a seed replays exactly.
        told = line.replace(str(self._root), "")
        self.lines.append(f"{self.loop.time():9.3f} {told}")

    def violate(self, promise: str, text: str) -> None:
        """A promise is broken."""
        line = f"PROMISE BROKEN [{promise}] {text}"
        self.say(line)
        self.violations.append(line)

    def _observe(self, what: str, program: Program) -> None:
        if what != "stepped":
            self.say(f"{program.machine.name}: {program.attempt} {what} (step {program.last_step})")
        self.observed(what, program)

    def observed(self, what: str, program: Program) -> None:
        """Tell those who check promises."""
        for observer in self.observers:
            observer(what, program)

    # Daemons.

    def start_all(self) -> None:
        """Turn the cluster on."""
        for seat in (*self.supervisors, *self.nodes.values()):
            self.start(seat)

    def start(self, seat: Seat, *, fence: bool = False) -> None:
        """A new life of a daemon. `fence`: of an agent's program that ends what a dead agent has left."""
        # The state directory's lock lets one of them run at a time.
        if seat.running or (seat.machine is not None and not seat.machine.up):
            return
        seat.lives += 1
        process = seat.process = SimProcess(f"{seat.host}#{seat.lives}")
        holder = f"agent:{seat.machine.name}" if seat.machine is not None else f"supervisor:{seat.name}"
        seat.etcd = SimEtcd(
            self.loop,
            self.etcd,
            process,
            EtcdUser(holder, partial(self.violate, "a daemon stays within its rights in etcd")),
            rpc_deadline_ms=self.timing.rpc_deadline_ms,
            silence_ms=self.timing.d_ms // SILENCE_SHARE,
            delay=self.network.etcd_delay,
            fault=self.network.etcd_fault,
        )
        if seat.name in self.weather.cut_from_etcd:
            seat.etcd.disconnect()
        self.say(f"{process.name} fences" if fence else f"{process.name} starts")
        begin = self._fence if fence else self._agent if seat.machine is not None else self._supervisor
        main = process.context.run(begin, seat)
        task = self.loop.spawn(process, main)
        self.loop.begin(None, self._keep(seat, process, task))

    def kill(self, seat: Seat) -> None:
        """SIGKILL of a daemon."""
        process = seat.process
        if process is None or not process.alive:
            return
        self.say(f"{process.name} is killed")
        self.loop.kill(process)
        self._bury(seat)
        self._restart_later(seat)

    def stop(self, seat: Seat) -> None:
        """A node's agent ends, and its keeper does not bring it back. It may fence what is left there."""
        seat.kept = False
        self.kill(seat)
        if self._keeper is not Keeper.NONE:
            rng = random.Random(f"keeper {self.seed} {seat.host} {seat.lives}")
            delay_s = self.pace * rng.uniform(*self._keeper.delay_s)
            self.loop.post(None, delay_s, lambda: None if seat.kept else self.start(seat, fence=True))

    def freeze(self, seat: Seat) -> None:
        """SIGSTOP of a daemon."""
        if seat.process is not None:
            self.say(f"{seat.process.name} is frozen")
            self.loop.freeze(seat.process)

    def thaw(self, seat: Seat) -> None:
        """SIGCONT."""
        if seat.process is not None:
            self.say(f"{seat.process.name} thaws")
            self.loop.thaw(seat.process)

    def thaw_quietly(self, seat: Seat) -> None:
        """SIGCONT to whatever is frozen."""
        if seat.process is not None and seat.process.life is Life.FROZEN:
            self.thaw(seat)

    def restart_soon(self, seat: Seat) -> None:
        """Its keeper has been told to bring it back."""
        self._restart_later(seat)

    def add_node(self) -> Seat:
        """A machine that nobody has started yet."""
        name, clock = f"n{len(self.nodes) + 1}", self._clock()
        ports, host = self._ports or Ports(forgets=self._forgets), "127.0.0.1" if self._one_machine else name
        machine = Machine(name, self.loop, self.rng, clock, ports, self._root / name, host)
        machine.gpus.count = self._gpus
        seat = self.nodes[name] = Seat(name, clock, machine=machine)
        return seat

    def add_twin(self, seat: Seat) -> Seat:
        """Another machine comes up whose agent was given the same node id by mistake."""
        clock, host = self._clock(), f"{seat.name}-twin-{len(self.twins) + 1}"
        address = "127.0.0.1" if self._one_machine else host
        machine = Machine(seat.name, self.loop, self.rng, clock, Ports(), self._root / host, address)
        twin = Seat(seat.name, clock, machine=machine, label=host)
        self.twins.append(twin)
        self.start(twin)
        return twin

    def power_off(self, seat: Seat) -> None:
        """A node loses power."""
        assert seat.machine is not None
        self.say(f"{seat.name} loses power")
        if seat.process is not None:
            self.loop.kill(seat.process)
        self._bury(seat)
        seat.machine.power_off()
        seat.table = LauncherTable()

    def retire(self, seat: Seat) -> None:
        """A machine is taken away for good."""
        seat.kept = False
        if seat.machine is not None and seat.machine.up:
            self.power_off(seat)

    def power_on(self, seat: Seat) -> None:
        """The node boots, and its keeper starts the agent."""
        assert seat.machine is not None
        if not seat.machine.up:
            self.say(f"{seat.name} boots")
            seat.machine.power_on()
            self._restart_later(seat)

    def cut(self, seat: Seat, *, etcd: bool) -> None:
        """A partition between a host and etcd, or between it and the supervisors."""
        if not etcd:
            self.weather.cut_from_supervisors.add(seat.name)
            return
        self.weather.cut_from_etcd.add(seat.name)
        if seat.etcd is not None:
            seat.etcd.disconnect()

    def seat_of(self, process: SimProcess) -> Seat | None:
        """The seat whose present process this is; None without one."""
        seats = (*self.supervisors, *self.nodes.values())
        return next((seat for seat in seats if seat.process is process), None)

    def lose_etcd(self) -> None:
        """All members of etcd lose their data, and are down."""
        for callback in self.etcd_lost:
            callback()
        self.etcd.lose()
        self.etcd.down()
        self.rolled_back = False

    def restore_etcd(self, backup: Backup) -> None:
        """All members have the data of a snapshot, and are down."""
        self.lose_etcd()
        self.etcd.restore(backup)
        self.rolled_back = True
        for callback in self.etcd_restored:
            callback(backup)

    def heal(self, seat: Seat) -> None:
        """The end of its partitions."""
        self.weather.cut_from_supervisors.discard(seat.name)
        self.weather.cut_from_etcd.discard(seat.name)
        if seat.etcd is not None:
            seat.etcd.reconnect()

    def leader(self) -> Seat | None:
        """The supervisor that leads and has its first snapshot; None without one."""
        for seat in self.supervisors:
            if seat.running and seat.control is not None and seat.control.job_service.snapshot() is not None:
                return seat
        return None

    async def call(self, seat: Seat, work: Coroutine[object, object, T], timeout_s: float = 3.0) -> T:
        """Have a daemon do something for an operator. Raises TimeoutError when it does not answer."""
        assert seat.process is not None
        task = self.loop.spawn(seat.process, work)
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        async with asyncio.timeout(timeout_s):
            return await asyncio.shield(task)

    def open_store(self, uri: str, files: LocalSide = REAL_FILES) -> CheckpointStore:
        """Every job has its own directory, the first of a run `disk`. `files`: of the machine that asks."""
        disk = self._other_disks.setdefault(uri, self.disk if not self._other_disks else MemoryDisk())
        return MemoryCheckpointStore(disk, self.network.store_hook, files)

    def damage(self, name: str) -> None:
        """Another first byte in a file of the store."""
        for disk in (self.disk, *self._other_disks.values()):
            if name in disk.files:
                data = disk.files[name]
                disk.files[name] = bytes([data[0] ^ 1]) + data[1:]
                return

    def stored(self) -> Mapping[str, Mapping[str, bytes]]:
        """The files of all jobs' checkpoints, by directory and name."""
        found: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        for disk in (self.disk, *self._other_disks.values()):
            for path, data in disk.files.items():
                directory, _, name = path.rpartition("/")
                found[directory][name] = data
        return found

    def new_id(self) -> str:
        """32 hex digits."""
        return f"{self.rng.getrandbits(128):032x}"

    def _supervisor(self, seat: Seat) -> Coroutine[object, object, None]:
        assert seat.etcd is not None
        assert seat.process is not None
        terms = Terms(int(1000 * self.vows.promise_s), tuple(each.name for each in self.supervisors))
        settings = ControlSettings(seat.name, "sim", seat.name, seat.lives, self.timing, terms)
        sink = SimSink(seat.process.name, self.say)
        disk = self.vows.disks[seat.name]
        # Marks are saved all the time: what is drawn for that changes nothing else.
        own = random.Random(f"marks {self.seed} {seat.process.name}")
        files = StateFiles(SimWordFile(disk, self.rng), SimMarkFile(disk, own))
        rng = random.Random(f"power {self.seed} {seat.process.name}")
        power = SimPower(self._device, rng.choice(AFTER_MS), self.pace, rng, self._switch_off)
        seat.control = ControlDaemon(
            settings, seat.etcd, self.open_store, seat.clock, sink, self.new_id, files, power
        )
        return seat.control.run()

    def _switch_off(self, node: str) -> None:
        """A fence device takes a machine's power away. An operator switches it on again, by and by."""
        seat = self.nodes.get(node)
        if seat is None or seat.machine is None or not seat.machine.up:
            return
        self.power_off(seat)
        self.loop.post(None, self.pace * SWITCHED_ON_S, lambda: self.power_on(seat))

    def _agent(self, seat: Seat) -> Coroutine[object, object, None]:
        machine = seat.machine
        assert machine is not None
        assert seat.etcd is not None
        assert seat.process is not None
        settings = AgentSettings(
            node=seat.name,
            host=machine.host,
            address=f"{seat.name}:7000",
            port_low=20_000,
            port_high=20_099,
            lock_dir="/locks",
            timing=self.timing,
            resources=self.resources,
            spare_launchers=1,
            pid=seat.lives,
        )
        seat.launchers = SimLaunchers(machine, seat.table, seat.process)
        outside = self.outside(seat, settings, seat.launchers)
        seat.agent = AgentDaemon(settings, outside)
        return seat.agent.run()

    def _fence(self, seat: Seat) -> Coroutine[object, object, None]:
        machine = seat.machine
        assert machine is not None
        assert seat.etcd is not None
        assert seat.process is not None
        kind = LyingRuntime if self._keeper is Keeper.LIES else SimRuntime
        given = Fencing(
            node=seat.name,
            timing=self.timing,
            state_file=SimStateFile(machine, self.rng),
            runtime=kind(machine, seat.table, self.training, self.timing.pull_ms, self._addresses),
            coordination=seat.etcd,
            clock=seat.clock,
            sink=SimSink(seat.process.name, self.say),
        )
        return fence_node(given)

    def outside(self, seat: Seat, settings: AgentSettings, launchers: SimLaunchers) -> Outside:
        """The boundaries of one agent."""
        machine = seat.machine
        assert machine is not None
        assert seat.etcd is not None
        assert seat.process is not None
        sink = SimSink(seat.process.name, self.say)
        return Outside(
            coordination=seat.etcd,
            runtime=SimRuntime(machine, seat.table, self.training, self.timing.pull_ms, self._addresses),
            launchers=launchers,
            links=SimLinks(seat.name, self.network.carry, self.vows.asker(seat.name, seat.process)),
            files=SimTaskFiles(machine, self.training),
            checkpoints=NodeCheckpoints(
                seat.name,
                self._parent_of(machine),
                seat.etcd,
                partial(self.open_store, files=machine.files),
                seat.clock,
                sink,
                self.new_id,
            ),
            state_file=SimStateFile(machine, self.rng),
            clock=seat.clock,
            sink=sink,
            new_id=self.new_id,
            code=SimCode(machine, self.rng),
            gpus=SimGpus(machine, seat.process) if machine.gpus.count else NoGpus(),
        )

    @property
    def resources(self) -> NodeResources:
        """The resources of each node."""
        runtime, networks = ("docker", (NETWORK,)) if self._addresses is not None else ("process", ())
        return NodeResources(
            cpus=self._cpus,
            memory_bytes=16 << 30,
            gpu_share=self._gpu_share,
            runtime=runtime,
            networks=networks,
        )

    def _parent_of(self, machine: Machine) -> Path:
        """Agents of one machine share the checkpoint parent."""
        return (self._root if self._one_machine else machine.root) / "checkpoints"

    async def _keep(self, seat: Seat, process: SimProcess, task: asyncio.Task[None]) -> None:
        await asyncio.wait([task])
        if seat.process is not process or not process.alive:
            return
        error = None if task.cancelled() else task.exception()
        self.say(f"{process.name} ends: {error!r}")
        if seat.agent is not None or seat.control is not None:
            self._judge_end(process, error)
        self.loop.kill(process)
        self._bury(seat)
        self._restart_later(seat)

    def _judge_end(self, process: SimProcess, error: BaseException | None) -> None:
        """A daemon may give up for the reasons that its contract names; anything else is a bug."""
        why = unforeseen(error)
        if why and not (self.rolled_back and WENT_BACK in why):
            self.violate("no daemon crashes", f"{process.name}: {why}")

    def _bury(self, seat: Seat) -> None:
        if seat.etcd is not None:
            seat.etcd.died()
        if seat.launchers is not None:
            seat.launchers.died()
        seat.process = seat.etcd = seat.control = seat.agent = seat.launchers = None

    def _restart_later(self, seat: Seat) -> None:
        if seat.kept:
            delay_s = self.pace * self.rng.uniform(*KEEPER_S)
            self.loop.post(None, delay_s, lambda: self.start(seat) if seat.kept else None)

    def _at_failpoint(self, point: str, _error: Callable[[str], Exception]) -> None:
        process = PROCESS.get()
        seat = self.seat_of(process) if process is not None and process.alive else None
        if seat is None or process is None:
            return
        self.reached[point] += 1
        if self.flaw is not None:
            self.flaw.reach(point)
        if self.aim is not None and (point, self.reached[point]) == (self.aim.point, self.aim.hit):
            self.say(f"** {process.name} at {point}, as aimed")
            self.kill(seat)
        elif self.at_effect is not None:
            self.at_effect(process, point)

    @property
    def struck(self) -> bool:
        """Whether a daemon has come to the aim."""
        return self.aim is not None and self.reached[self.aim.point] >= self.aim.hit

    def close(self) -> None:
        """The end of the run: nothing of it is left in the process."""
        self._disarm()
        self.loop.close()


def _threads(rng: random.Random, most_s: float) -> Callable[[], tuple[float, float]] | None:
    """It is done some time before its caller hears of it, or some time after it was given."""
    if not most_s:
        return None

    def draw() -> tuple[float, float]:
        took_s = rng.uniform(0.0, most_s)
        return (took_s, 0.0) if rng.random() < 0.5 else (0.0, took_s)

    return draw
