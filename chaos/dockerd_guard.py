"""Removes a dockerd of the tests and all that it made, when its standard input ends: however its owner ended.

    dockerd_guard.py DIRECTORY NAME

DIRECTORY holds everything of that dockerd; NAME is its cgroup and the beginning of its bridges' names.
Standard library alone, run as a program: it must start and end quickly.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 60.0
_PROGRAMS = ("dockerd", "containerd", "runc", "docker")
_CGROUPS = Path("/sys/fs/cgroup")
_SIOCSIFFLAGS, _SIOCBRDELBR = 0x8914, 0x89A1


def main() -> None:
    """Wait for the end of standard input, then clear away; the exit code is 0 when nothing is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    directory, name = Path(sys.argv[1]), sys.argv[2]
    sys.stdin.buffer.read()
    clear(directory, name)


def clear(directory: Path, name: str) -> None:
    """Kill the daemons and every container's processes, then remove mounts, bridges, cgroups and files.

    Raises:
        SystemExit: something is left after PATIENCE_S.
    """
    deadline = time.monotonic() + PATIENCE_S
    while left := _kill(directory, name):
        if time.monotonic() > deadline:
            raise SystemExit(f"these processes do not die: {left}")
        time.sleep(0.02)
    for point in _mounts(directory):
        subprocess.run(["umount", "--lazy", point], check=False, stderr=subprocess.DEVNULL)
    for bridge in Path("/sys/class/net").glob(f"{name}*"):
        _delete_bridge(bridge.name)
    shutil.rmtree(directory, ignore_errors=True)
    while _remove_cgroups(name) or directory.exists() or _mounts(directory):
        if time.monotonic() > deadline:
            raise SystemExit(f"these are left: {[directory, *_cgroups(name)]}")
        time.sleep(0.02)
        shutil.rmtree(directory, ignore_errors=True)


def processes(directory: Path, name: str) -> dict[int, str]:
    """The daemons of `directory`, their descendants and what is in the cgroup: pid -> command, no zombies."""
    parents: dict[int, int] = {}
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace")
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        comm, _, rest = stat.partition("(")[2].rpartition(")")
        state, parent = rest.split()[:2]
        if state in "ZX":
            continue
        parents[int(entry.name)] = int(parent)
        if comm.startswith(_PROGRAMS) and str(directory).encode() in command:
            found[int(entry.name)] = comm
    for process in [*parents]:
        member, line = process, list[int]()
        while member > 1 and member not in found:
            line.append(member)
            member = parents.get(member, 0)
        if member > 1:
            found |= dict.fromkeys(line, "descendant")
    for top in _cgroups(name):
        for listing in _below(top, "cgroup.procs"):
            try:
                inside = [int(pid) for pid in listing.read_text().split()]
            except OSError:
                continue
            found |= {pid: "container" for pid in inside if pid in parents}
    found.pop(os.getpid(), None)
    return found


def _kill(directory: Path, name: str) -> dict[int, str]:
    for top in _cgroups(name):
        # SIGKILL has no effect on what is frozen.
        for file, thawed in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            for state in _below(top, file):
                try:
                    state.write_text(thawed)
                except OSError:
                    continue
    left = processes(directory, name)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return left


def _cgroups(name: str) -> list[Path]:
    return [*_CGROUPS.glob(name), *_CGROUPS.glob(f"*/{name}")]


def _below(top: Path, file: str) -> list[Path]:
    """The files of this name; what vanishes meanwhile is left out, where `rglob` would raise."""
    return [Path(directory) / file for directory, _, files in os.walk(top) if file in files]


def _remove_cgroups(name: str) -> list[Path]:
    """Remove them with all below; those that are still there."""
    for top in _cgroups(name):
        for directory, _, _ in os.walk(top, topdown=False):
            try:
                Path(directory).rmdir()
            except OSError:
                continue
    return _cgroups(name)


def _mounts(directory: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4] for line in lines]
    return [point for point in reversed(points) if point.startswith(f"{directory}/")]


def _delete_bridge(bridge: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        encoded = bridge.encode()
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh", encoded, 0))
        fcntl.ioctl(control, _SIOCBRDELBR, encoded + b"\0")


if __name__ == "__main__":
    main()
