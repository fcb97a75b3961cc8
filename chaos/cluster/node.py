"""A node: it is switched on and off, rebooted, frozen as a whole; and the daemons on it."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from chaos import processes
from chaos.cluster.control import ask, wait_for
from chaos.cluster.enter import entering, run_in
from chaos.cluster.program import REPOSITORY, Program
from chaos.cluster.shape import Place, Shape
from chaos.machine import slow_sync
from chaos.machine.main import DISK, descendants
from supervisor.adapters import failpoints

BOOT_S = 30.0
DEATH_S = 30.0
_FILES = {"state": 0o700, "tasks": 0o755, "run": 0o700, "locks": 0o1777, "tmp": 0o1777}
_FAILPOINTS = ("", failpoints.ARMED, failpoints.REACHED, failpoints.STRUCK)
_OWN = "own"
_FILL_TRIES = 20
_LOST_AT_REBOOT = ("run", "locks", "tmp")


class Daemon:
    """One program that a node runs. Killed by `kill` it stays dead until `start`; else it is started again.

    Attributes:
        name: agent, supervisor or etcd.
    """

    def __init__(self, node: Node, program: Program) -> None:
        self.name = program.name
        self._node = node
        self._program = program

    @property
    def pid(self) -> int | None:
        """Its process id as we see it; None when it does not run, or its node is off."""
        if not self._node.on:
            return None
        pid = self._said("pid")
        return self._node.host_pid(int(pid)) if isinstance(pid, int) and pid else None

    @property
    def starts(self) -> int:
        """The number of its starts since its node was switched on, by itself or by us."""
        starts = self._said("starts")
        assert isinstance(starts, int)
        return starts

    @property
    def last_exit(self) -> str:
        """Its last end: `exit code 1`, `SIGKILL`; empty when it never ended."""
        return str(self._said("last_exit"))

    @property
    def log(self) -> Path:
        """The file with its standard output and error, of all its lives."""
        return self._node.home / f"{self.name}.log"

    def kill(self, number: int = signal.SIGKILL, *, stay: bool = True) -> None:
        """Send it a signal. If it dies of that, it stays dead until `start`, unless `stay` is False."""
        ask(self._node.control, do="kill", name=self.name, signal=int(number), stay=stay)

    def stop(self, deadline_s: float = DEATH_S) -> None:
        """SIGTERM, and wait until it is gone."""
        self.kill(signal.SIGTERM)
        self.wait_gone(deadline_s)

    def wait_gone(self, deadline_s: float = DEATH_S) -> None:
        """Return when it does not run."""
        wait(lambda: not self._said("pid"), deadline_s, f"{self.name} of {self._node.name} does not end")

    def start(self, tree: Path = REPOSITORY, *, slow: bool = False) -> None:
        """Start it, if it does not run, from our sources or those of another release.

        With `slow`, what `Node.slow_disk` says holds for it.
        """
        ask(
            self._node.control,
            do="start",
            name=self.name,
            argv=list(self._program.argv),
            env=self._program.env | {"PYTHONPATH": str(tree)},
            cwd=str(tree),
            log=str(self.log),
            slow=str(self._node.sync_delay) if slow else "",
        )

    def freeze(self) -> None:
        """SIGSTOP: connections are taken, nothing is answered from the moment that this returns."""
        processes.freeze(self._running())

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self._running(), signal.SIGCONT)

    def _running(self) -> int:
        pid = self.pid
        assert pid is not None, f"{self.name} of {self._node.name} does not run"
        return pid

    def _said(self, field: str) -> object:
        said = ask(self._node.control, do="status").get(self.name)
        if said is None:
            return {"pid": 0, "starts": 0, "last_exit": ""}[field]
        assert isinstance(said, dict)
        return said[field]


class Node:
    """One node of a cluster.

    Attributes:
        name, kind, address: node-0, node, 10.77.3.1.
        home: the cluster's files about it: logs, its control socket.
        root: its own disk, as this process sees it; `root / "state"` is its daemon's state directory.
        cgroup: all of its processes; None without root.
        boots: how often it was switched on.
    """

    def __init__(self, place: Place, home: Path, root: Path, cgroup: Path | None, shape: Shape) -> None:
        self.name, self.kind, self.address = place.name, place.kind, place.address
        self.home, self.root, self.cgroup = home, root, cgroup
        self.boots = 0
        self.boot_id = ""
        self.daemons: dict[str, Daemon] = {}
        self.attach: Callable[[Node], None] = lambda _: None
        self.detach: Callable[[Node], None] = lambda _: None
        self._shape = shape
        self._disk_bytes = shape.hdfs_disk_bytes if place.kind == "hdfs" else shape.disk_bytes
        self._pid: int | None = None

    @property
    def control(self) -> Path:
        """The socket at which its first process takes requests."""
        return self.home / "control.sock"

    @property
    def clock(self) -> Path:
        """The file with the offset of its wall clock, a C integer of nanoseconds."""
        return self.home / "clock"

    @property
    def sync_delay(self) -> Path:
        """The file with the delay of its disk, for `chaos.machine.slow_sync`."""
        return self.home / "sync_delay"

    @property
    def failpoints(self) -> Path:
        """The directory of armed failpoints for its daemons and launchers; not on the node's disk."""
        return self.home / "failpoints"

    @property
    def on(self) -> bool:
        """Whether it has power."""
        return self._pid is not None

    @property
    def pid(self) -> int:
        """Its first process, as we see it; fails when the node is off."""
        assert self._pid is not None, f"{self.name} is off"
        return self._pid

    def pids(self) -> list[int]:
        """Ids, as we see them, of all that runs on it, containers included, but for its first process."""
        if self._pid is None:
            return []
        if self.cgroup is None:
            return descendants(self._pid)
        found: list[int] = []
        for directory, _, _ in os.walk(self.cgroup):
            with suppress(OSError):
                found += [int(pid) for pid in Path(directory, "cgroup.procs").read_text().split()]
        return [pid for pid in found if pid != self._pid]

    def host_pid(self, inside: int) -> int | None:
        """A process id of the node's own namespace, as we see it; None when there is none."""
        if self.cgroup is None:
            return inside
        for pid in self.pids():
            with suppress(OSError):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                levels = next(line for line in lines if line.startswith("NSpid:")).split()[1:]
                if len(levels) >= 3 and int(levels[2]) == inside:
                    return pid
        return None

    def switch_on(self) -> None:
        """Give it power; it runs nothing yet."""
        assert not self.on, f"{self.name} is on"
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "disk").mkdir(exist_ok=True)
        for name in _FAILPOINTS:
            (self.failpoints / name).mkdir(mode=0o700, exist_ok=True)
        if not self.clock.exists():
            self.clock.write_bytes(bytes(8))
        slow_sync.prepare(self.sync_delay)
        if self.cgroup is not None:
            # Where cgroups have controllers, processes are in the leaves alone; containers get others.
            (self.cgroup / _OWN).mkdir(parents=True, exist_ok=True)
        self.control.unlink(missing_ok=True)
        self.boots += 1
        self.boot_id = str(uuid.uuid4())
        ask(
            self.home.parents[1] / "machine.sock",
            do="boot",
            name=self.name,
            cgroup=str(self.cgroup / _OWN if self.cgroup is not None else ""),
            boot_id=self.boot_id,
            disk_bytes=self._disk_bytes,
            own_uptime=self._shape.own_uptime,
        )
        self._pid = wait_for(self.control, BOOT_S)
        for name, mode in _FILES.items():
            directory = self.root / name
            directory.mkdir(exist_ok=True)
            directory.chmod(mode)
        self.attach(self)

    def power_on(self) -> None:
        """Give it power and start its daemons, which come up in their own time."""
        self.switch_on()
        for daemon in self.daemons.values():
            daemon.start()

    def power_off(self) -> None:
        """Everything on it is gone at once, and nobody hears of it: no connection is closed.

        A power switch may have taken its power away before.
        """
        pid, self._pid = self.pid, None
        self.detach(self)
        if self.cgroup is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            (self.cgroup / "cgroup.freeze").write_text("0")
            empty = self.cgroup / "cgroup.events"
            wait(lambda: "populated 0" in empty.read_text(), DEATH_S, f"{self.name} does not end")
        else:
            # Frozen, the first process restarts nothing; with it alive, whom it leaves behind stays in sight.
            os.kill(pid, signal.SIGSTOP)
            wait(lambda: not _killed(pid), DEATH_S, f"processes of {self.name} do not end")
            os.kill(pid, signal.SIGKILL)
        wait(lambda: not Path(f"/proc/{pid}").exists(), DEATH_S, f"{self.name} does not end")
        for name in _LOST_AT_REBOOT:
            shutil.rmtree(self.root / name, ignore_errors=True)

    def reboot(self) -> None:
        """Off, and on again with another boot id."""
        self.power_off()
        self.power_on()

    def freeze(self) -> None:
        """Stop every process of it; returns when they stand still. Its network still acknowledges."""
        if self.cgroup is not None:
            (self.cgroup / "cgroup.freeze").write_text("1")
            events = self.cgroup / "cgroup.events"
            wait(lambda: "frozen 1" in events.read_text(), processes.STOP_S, f"{self.name} does not freeze")
            return
        for pid in [self.pid, *self.pids()]:
            with suppress(ProcessLookupError):
                processes.freeze(pid)

    def thaw(self) -> None:
        """Let it go on."""
        if self.cgroup is not None:
            (self.cgroup / "cgroup.freeze").write_text("0")
            return
        for pid in [*self.pids(), self.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def set_clock(self, offset_s: float) -> None:
        """Its daemons' wall clock, and what they start, is off by so much from now on; `Shape.clocks`."""
        with self.clock.open("r+b", buffering=0) as stream:
            stream.write(struct.pack("q", round(offset_s * 1e9)))

    def clock_readers(self) -> list[int]:
        """Its processes whose wall clock that is, by what they have mapped."""
        found = []
        for pid in self.pids():
            with suppress(OSError):
                if str(self.clock) in Path(f"/proc/{pid}/maps").read_text():
                    found.append(pid)
        return found

    def slow_disk(self, delay_s: float) -> None:
        """Each fsync of its daemons that were started `slow` takes so much longer from now on."""
        with self.sync_delay.open("r+b", buffering=0) as stream:
            stream.write(struct.pack(slow_sync.FORMAT[:-1], delay_s))

    def syncs_held_up(self) -> int:
        """The number of syncs that have taken longer so far."""
        return int(struct.unpack(slow_sync.FORMAT, self.sync_delay.read_bytes())[1])

    def fill_disk(self) -> None:
        """Its disk has no room left: nothing can be written to it any more that takes any."""
        for _ in range(_FILL_TRIES):
            seen = os.statvfs(self.root)
            used = (seen.f_blocks - seen.f_bfree) * seen.f_frsize
            with suppress(AssertionError):
                self._resize(used)
                break
        wait(lambda: os.statvfs(self.root).f_bavail == 0, 1.0, f"the disk of {self.name} is not full")

    def free_disk(self) -> None:
        """Its disk has its room again."""
        self._resize(self._disk_bytes)

    def make_read_only(self) -> None:
        """Its daemons' state directory cannot be written: each file that they open for it is an error."""
        state = f"{DISK}/state"
        run_in(self._isolated(), "mount", "mount", "--bind", state, state)
        run_in(self.pid, "mount", "mount", "-o", "remount,bind,ro", state)

    def make_writable(self) -> None:
        """Undo `make_read_only`."""
        run_in(self.pid, "mount", "umount", "--lazy", f"{DISK}/state")

    def _resize(self, size: int) -> None:
        self._isolated()
        machine = int(self.root.parts[2])
        run_in(machine, "mount", "mount", "-o", f"remount,size={size}", str(self.home / "disk"))

    def _isolated(self) -> int:
        """Its first process, when it has a disk of its own."""
        assert self.cgroup is not None, "without root a node has no disk of its own"
        return self.pid

    def inside(self, *argv: str) -> list[str]:
        """A command that runs `argv` on the node, beside its daemons."""
        if self.cgroup is None:
            return list(argv)
        return [*entering(self.pid, "net", "mount", "uts", "ipc", "pid"), *argv]


def wait(done: Callable[[], bool], deadline_s: float, what: str) -> None:
    """Return when `done` says so; AssertionError with `what` after the deadline."""
    deadline = time.monotonic() + deadline_s
    while not done():
        assert time.monotonic() < deadline, f"{what} after {deadline_s:g} s"
        time.sleep(0.005)


def _killed(root: int) -> list[int]:
    """Kill every descendant; those that there were."""
    found = descendants(root)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found
