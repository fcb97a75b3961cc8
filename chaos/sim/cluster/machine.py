"""The simulated machine: processes that are killed and frozen as Linux does it, ports, a socket, a disk."""

from __future__ import annotations

import errno
import os
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from pathlib import Path

from agent.core.gpus.health import GpuSight, Sight
from agent.core.saved.record import AgentRecord, Saved
from chaos.sim.cluster.loop import Life, SimProcess, VirtualLoop
from recovery.stores.memory import REAL_FILES, LocalSide
from supervisor.contract.boundaries import Clock

KILL_MS = (2, 400)
"""From SIGKILL to gone: its memory, ports and files are free."""

PLENTY = 1 << 40
"""Bytes of memory."""
REMEMBERED = 40
"""State files that a disk could show again."""


class NodeClock(Clock):
    """CLOCK_BOOTTIME of one machine: an offset of its own, and a rate that is a little off."""

    def __init__(self, loop: VirtualLoop, offset_ms: int, rate: float, wall_ms: int) -> None:
        self._loop = loop
        self._offset_ms = offset_ms
        self._rate = rate
        self._wall_ms = wall_ms

    def now_ms(self) -> int:
        """Milliseconds since this machine's boot."""
        return self._offset_ms + int(self._loop.time() * 1000 * self._rate)

    def wall_ms(self) -> int:
        """The time on its wall clock, in milliseconds; no two machines agree."""
        return self._wall_ms + int(self._loop.time() * 1000)

    def set_wall(self, by_ms: int) -> None:
        """Set the wall clock forward by `by_ms`; the boot clock stays as it is."""
        self._wall_ms += by_ms


@dataclass(slots=True, eq=False)
class MachineProcess:
    """One row of the process table.

    Attributes:
        stuck: in D state or frozen with its machine: SIGKILL is pending until it thaws.
        doomed: SIGKILL was sent, or it has exited; nothing of it runs any more unless it is stuck.
        code, signal: how it ended, once `gone`.
    """

    pid: int
    start_ticks: int
    process: SimProcess
    stuck: bool = False
    doomed: bool = False
    gone: bool = False
    code: int | None = None
    signal: int | None = None
    at_end: list[Callable[[], None]] = field(default_factory=list)
    thawed_s: float = -1.0

    @property
    def frozen(self) -> bool:
        """Not running, and not dead either."""
        return not self.gone and self.process.life is Life.FROZEN


class Ports:
    """The machine-wide lock files of ports: who holds which. Every agent of the machine shares them.

    `forgets`: the file that says which port was claimed last is lost each time.
    """

    def __init__(self, *, forgets: bool = False) -> None:
        self._holders: dict[int, set[object]] = {}
        self._cursor = 0
        self._forgets = forgets

    def claim(self, low: int, high: int, avoid: tuple[int, ...], reuse: int | None, holder: object) -> int:
        """Take the least recently claimed free port, or exactly `reuse`; -1 when that is not possible."""
        if reuse is not None:
            wanted = [reuse]
        else:
            count = high - low + 1
            first = max(low, self._cursor) - low
            wanted = [low + (first + offset) % count for offset in range(count)]
        for port in wanted:
            if port in avoid and reuse is None:
                continue
            if not self._holders.get(port):
                self._holders[port] = {holder}
                if reuse is None and not self._forgets:
                    self._cursor = port + 1 if port < high else low
                return port
        return -1

    def share(self, port: int, holder: object) -> None:
        """A child inherits the lock."""
        self._holders.setdefault(port, set()).add(holder)

    def leave(self, port: int, holder: object) -> None:
        """A holder has closed it, or died."""
        self._holders.get(port, set()).discard(holder)

    def held(self) -> dict[int, set[object]]:
        """Port -> its holders, for each port that is held."""
        return {port: holders for port, holders in self._holders.items() if holders}


class Addresses:
    """The addresses of a docker network that spans all machines: each container gets the lowest free one."""

    def __init__(self) -> None:
        self._holders: dict[int, MachineProcess] = {}

    def take(self, holder: MachineProcess) -> str:
        """An address for as long as the process lives."""
        number = next(each for each in count(2) if each not in self._holders)
        self._holders[number] = holder
        holder.at_end.append(lambda: self._give_back(number))
        return f"10.0.9.{number}"

    def _give_back(self, number: int) -> None:
        del self._holders[number]


class Trouble(Enum):
    """Why a machine makes no launchers for now."""

    AWAY = "away"
    REFUSES = "refuses"
    STILLBORN = "stillborn"


class Board:
    """The GPUs of one machine, and who listens to their driver now.

    `hung`: the driver does not answer. `faults`: how many it has told of.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.hung = False
        self.faults = 0
        self.listener: Callable[[Sight], None] | None = None

    @property
    def uuids(self) -> tuple[str, ...]:
        """The UUIDs of its GPUs, by index."""
        return tuple(f"GPU-{self.name}-{index}" for index in range(self.count))

    def look(self) -> Sight:
        """The driver's report on all GPUs."""
        if self.hung:
            return Sight("580.1", problem="NVML does not answer")
        found = tuple(GpuSight(uuid, index, "NVIDIA H100", 80 << 30) for index, uuid in enumerate(self.uuids))
        return Sight("580.1", gpus=found)

    def tell(self, sight: Sight | None = None) -> None:
        """Pass a report to the listener: one with an XID, or the present state."""
        self.faults += len(sight.xids) if sight is not None else 0
        if self.listener is not None:
            self.listener(sight or self.look())


class Machine:
    """One node's hardware and kernel.

    The contents of `disk` and `root` survive a reboot. `host`: its address.
    """

    def __init__(
        self,
        name: str,
        loop: VirtualLoop,
        rng: random.Random,
        clock: NodeClock,
        ports: Ports,
        root: Path,
        host: str = "",
    ) -> None:
        self.name = name
        self.host = host or name
        self.loop = loop
        self.rng = rng
        self.clock = clock
        self.ports = ports
        self.root = root
        self.up = True
        self.boots = 1
        self.state_file: AgentRecord | None = None
        self.records: deque[AgentRecord] = deque(maxlen=REMEMBERED)
        self.saved: Saved | None = None
        self.strangers: set[tuple[int, int]] = set()
        """Since the last boot they have the pids and start times of what ran before it."""
        self.struck: list[tuple[int, int]] = []
        """Strangers that an agent has killed."""
        self.disk_full = False
        self.disk_cramped = False
        """Its disk has room for a state file, and none for a checkpoint."""
        self.code: set[str] = set()
        self.trouble: Trouble | None = None
        """With its runtime."""
        self.free_bytes = PLENTY
        self.refused = 0
        """Launchers that it has not made, or that have ended at once."""
        self.starved: set[tuple[int, int]] = set()
        """Processes that the OOM killer has ended."""
        self.gpus = Board(name)
        self.table: dict[int, MachineProcess] = {}
        self._next_pid = 100

    @property
    def boot_id(self) -> str:
        """Changes whenever the machine boots."""
        return f"{self.name}-boot-{self.boots}"

    @property
    def files(self) -> LocalSide:
        """The reads and writes of a store on the files of its disk."""
        return LocalSide(REAL_FILES.read, self._write_new)

    def _write_new(self, path: str, data: bytes) -> None:
        if self.disk_cramped:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        REAL_FILES.write_new(path, data)

    def fork(self, name: str) -> MachineProcess:
        """A new process; nobody runs in it yet."""
        self._next_pid += self.rng.randint(1, 3)
        row = MachineProcess(self._next_pid, self.clock.now_ms() // 10, SimProcess(f"{self.name}/{name}"))
        self.table[row.pid] = row
        return row

    def find(self, pid: int, start_ticks: int) -> MachineProcess | None:
        """This very process, if it is not gone."""
        row = self.table.get(pid)
        return row if row is not None and row.start_ticks == start_ticks and not row.gone else None

    def kill(self, row: MachineProcess, delay_ms: int | None = None) -> None:
        """SIGKILL. One that is stuck dies when it is not stuck any more."""
        if row.gone or row.doomed:
            return
        row.doomed = True
        row.signal = 9
        if not row.stuck:
            self._die(row, delay_ms)

    def exit(self, row: MachineProcess, code: int) -> None:
        """The process ends by itself; by a signal of its own where the code is negative."""
        if not row.doomed and not row.gone:
            row.doomed = True
            row.code, row.signal = (code, None) if code >= 0 else (None, -code)
            self._die(row, 1)

    def freeze(self, row: MachineProcess, *, stuck: bool) -> None:
        """SIGSTOP, or (`stuck`) something that not even SIGKILL gets through."""
        if not row.doomed and not row.gone:
            row.stuck = stuck
            self.loop.freeze(row.process)

    def thaw(self, row: MachineProcess) -> None:
        """SIGCONT. A pending SIGKILL comes first."""
        row.stuck = False
        row.thawed_s = self.loop.time()
        if row.doomed and not row.gone and row.process.life is Life.FROZEN:
            self._die(row, None)
        elif not row.gone:
            self.loop.thaw(row.process)

    def power_off(self) -> None:
        """Everything on it is gone at once."""
        self.up = False
        self.strangers = {(row.pid, row.start_ticks) for row in self.table.values()}
        for row in list(self.table.values()):
            if not row.gone:
                row.doomed, row.signal = True, 9
                self.loop.kill(row.process)
                self._gone(row)
        self.table.clear()
        self.saved = None
        if self.state_file is not None:
            # After a boot nothing would tell one that is older (decision 0026).
            self.state_file = self.records[-1]

    def power_on(self) -> None:
        """A fresh boot on the old disk."""
        self.up = True
        self.boots += 1

    def _die(self, row: MachineProcess, delay_ms: int | None) -> None:
        self.loop.kill(row.process)
        after_ms = self.rng.randint(*KILL_MS) if delay_ms is None else delay_ms
        self.loop.post(None, after_ms / 1000, lambda: self._gone(row))

    def _gone(self, row: MachineProcess) -> None:
        if row.gone:
            return
        row.gone = True
        if self.table.get(row.pid) is row:
            del self.table[row.pid]
        for callback in row.at_end:
            callback()
        row.at_end.clear()
