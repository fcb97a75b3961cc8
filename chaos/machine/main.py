"""The machine that all nodes of a cluster are on: its bridge, its disks, and how a node is switched on.

    python -S -m chaos.machine.main ROOT CGROUP

As root it moves into namespaces of its own, so that nothing of the cluster is seen outside and everything
ends with its first process. It clears away and ends when its standard input ends: however its owner ended.
Without root (CGROUP is `-`) nodes are plain process trees. Standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path

from chaos.machine import kernel
from chaos.machine.init import Init, Request, forked

DISK = "/srv"
"""The directory of a node's own disk, as root."""
_PATIENCE_S = 30.0
_SWITCH_S = 4.0
_NO_CGROUP = "-"
_CGROUPS = "/sys/fs/cgroup"


class Machine(Init):
    """The first process of the machine."""

    def __init__(self, root: Path, *, isolated: bool) -> None:
        super().__init__(root / "machine.sock")
        self._root = root
        self._isolated = isolated
        self._cgroups: dict[str, Path] = {}
        self.verbs |= {"boot": self._boot, "power_off": self._power_off, "power": self._power}

    def _boot(self, request: Request) -> Request:
        """Switch a node on: its first process listens on nodes/NAME/control.sock soon."""
        name = str(request["name"])
        home = self._root / "nodes" / name
        if self._isolated:
            disk = home / "disk"
            if not os.path.ismount(disk):
                kernel.mount("tmpfs", str(disk), "tmpfs", 0, f"size={request['disk_bytes']},mode=755")
            self._cgroups[name] = Path(str(request["cgroup"])).parent
        forked(partial(self._become_node, home, request))
        return {}

    def _power_off(self, request: Request) -> Request:
        """A power switch takes a node's power away, frozen or not; it is off when this returns."""
        (self._cgroups[str(request["name"])] / "cgroup.kill").write_text("1")
        deadline = time.monotonic() + _SWITCH_S
        while self._power(request)["on"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{request['name']} does not end")
            time.sleep(0.005)
        return {}

    def _power(self, request: Request) -> Request:
        """Whether anything runs on a node."""
        events = (self._cgroups[str(request["name"])] / "cgroup.events").read_text()
        return {"on": "populated 1" in events}

    def _become_node(self, home: Path, request: Request) -> None:
        self.close_for_child()
        _become_node(home, request, isolated=self._isolated)


def _become_node(home: Path, request: Request, *, isolated: bool) -> None:
    """In a child of the machine: never returns."""
    if not isolated:
        kernel.die_with_parent()
        kernel.become_subreaper()
        Init(home / "control.sock").serve()
    Path(str(request["cgroup"]), "cgroup.procs").write_text("0")
    flags = kernel.NEW_NET
    for flag in kernel.NEW_NAMESPACES.values():
        flags |= flag
    kernel.unshare(flags)
    if request["own_uptime"]:
        kernel.unshare(kernel.NEW_TIME)
        since_s = -int(time.clock_gettime(time.CLOCK_BOOTTIME))
        monotonic_s = -int(time.monotonic())
        offsets = f"boottime {since_s} 0\nmonotonic {monotonic_s} 0\n"
        Path("/proc/self/timens_offsets").write_text(offsets)
    if os.fork() != 0:
        os._exit(0)
    socket.sethostname(str(request["name"]))
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    boot_id = home / "boot_id"
    boot_id.write_text(f"{request['boot_id']}\n")
    kernel.mount(str(boot_id), "/proc/sys/kernel/random/boot_id", flags=kernel.MS_BIND)
    kernel.mount(str(home / "disk"), DISK, flags=kernel.MS_BIND)
    # There are no name servers, and who asks one would wait.
    for name in ("hosts", "resolv.conf"):
        kernel.mount(str(home.parents[1] / "conf" / name), f"/etc/{name}", flags=kernel.MS_BIND)
    Init(home / "control.sock").serve()


def main() -> None:
    """Start the machine and watch over it until standard input ends; then leave nothing behind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    root, cgroup = Path(sys.argv[1]), sys.argv[2]
    isolated = cgroup != _NO_CGROUP
    if isolated:
        kernel.unshare(kernel.NEW_NAMESPACES["pid"])
    else:
        kernel.become_subreaper()
    pid = forked(partial(_become_machine, root, isolated=isolated))
    sys.stdin.buffer.read()
    left = _kill(pid, isolated=isolated)
    if isolated:
        left += _remove_cgroups(Path(cgroup))
    if left:
        raise SystemExit(f"these are left: {' '.join(left)}")


def _become_machine(root: Path, *, isolated: bool) -> None:
    kernel.die_with_parent()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    if isolated:
        spaces = kernel.NEW_NAMESPACES
        kernel.unshare(kernel.NEW_NET | spaces["mnt"] | spaces["uts"] | spaces["ipc"])
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    else:
        kernel.become_subreaper()
    Machine(root, isolated=isolated).serve()


def _kill(machine: int, *, isolated: bool) -> list[str]:
    """Kill the machine and, where no kernel does it, all of its descendants; those that do not die."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(machine, signal.SIGKILL)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            # The machine itself, and with it, where it has namespaces, everything.
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return []
        left = [machine] if isolated else descendants(os.getpid())
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return [f"process {pid}" for pid in left]
        time.sleep(0.01)


def _remove_cgroups(top: Path) -> list[str]:
    """Kill what is in them and remove them; those that do not go."""
    deadline = time.monotonic() + _PATIENCE_S
    # Containers have some below the hierarchies of version 1, where there are such.
    tops = {top, *Path(_CGROUPS).glob(f"*/{top.name}")}
    while left := [each for each in tops if each.exists()]:
        for each in left:
            with contextlib.suppress(OSError):
                (each / "cgroup.kill").write_text("1")
            for inner, _, _ in os.walk(each, topdown=False):
                with contextlib.suppress(OSError):
                    Path(inner).rmdir()
        if time.monotonic() > deadline:
            return [str(each) for each in left]
        time.sleep(0.005)
    return []


def descendants(root: int) -> list[int]:
    """Pids of all descendants of a process, zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                if state not in ("Z", "X"):
                    children.setdefault(int(parent), []).append(int(entry.name))
    found: list[int] = []
    queue = [root]
    while queue:
        fresh = children.pop(queue.pop(), [])
        found += fresh
        queue += fresh
    return found


if __name__ == "__main__":
    main()
