"""Reads in /proc all that a process hands on to a program that it becomes. No message has to be believed."""

from __future__ import annotations

import ctypes
import os
import resource
from dataclasses import dataclass
from typing import Dict, FrozenSet, Tuple

_SAME_STATUS = (
    *("Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters", "TracerPid"),
    *("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"),
)
_SAME_FILES = ("cgroup", "personality")
_CONTROLLING_TERMINAL = 4
_IOPRIO_GET, _IOPRIO_WHO_PROCESS = {"x86_64": 252, "aarch64": 31}, 1
_libc = ctypes.CDLL(None)
_LIMITS = tuple(sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")}))


class Differs(Exception):
    """The process has something that a fork of this one cannot have."""


@dataclass(frozen=True)
class Peer:
    """`argv` and `env` are those of its exec; `ignored` and `blocked` are signals."""

    pid: int
    argv: Tuple[str, ...]
    env: Dict[str, str]
    umask: int
    ignored: FrozenSet[int]
    blocked: FrozenSet[int]
    limits: Dict[int, Tuple[int, int]]
    nice: int
    processors: FrozenSet[int]
    oom_score_adj: str

    @property
    def directory(self) -> str:
        """A path of its working directory."""
        return f"/proc/{self.pid}/cwd"

    def is_stopped(self) -> bool:
        """Whether it was stopped by a signal."""
        try:
            return _stat(self.pid)[0] == "T"
        except OSError:
            return False

    def take_on(self) -> None:
        """Give this process what that one has, but for descriptors, variables, signals. Raises OSError."""
        os.umask(self.umask)
        for which, limits in self.limits.items():
            resource.setrlimit(which, limits)
        if self.nice > os.getpriority(os.PRIO_PROCESS, 0):
            os.setpriority(os.PRIO_PROCESS, 0, self.nice)
        if self.processors != os.sched_getaffinity(0):
            os.sched_setaffinity(0, self.processors)
        if self.oom_score_adj != _read("self", "oom_score_adj"):
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write(self.oom_score_adj)
        os.chdir(self.directory)


def read(pid: int) -> Peer:
    """Read a process. Raises Differs, and OSError if it is gone or cannot be read."""
    status, own = _status(str(pid)), _status("self")
    for name in _SAME_STATUS:
        if status.get(name) != own.get(name):
            raise Differs(name)
    for name in _SAME_FILES:
        if _read(str(pid), name) != _read("self", name):
            raise Differs(name)
    for name in os.listdir("/proc/self/ns"):
        if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}"):
            raise Differs(f"namespace {name}")
    if not os.path.samestat(os.stat(f"/proc/{pid}/root"), os.stat("/")):
        raise Differs("root directory")
    if not os.path.samestat(os.stat(os.readlink(f"/proc/{pid}/cwd")), os.stat(f"/proc/{pid}/cwd")):
        raise Differs("working directory")
    if _stat(pid)[_CONTROLLING_TERMINAL] != "0":
        raise Differs("terminal")
    if os.sched_getscheduler(pid) != os.sched_getscheduler(0) or _io_class(pid) != _io_class(0):
        raise Differs("scheduling")
    _check_memory_policy(pid)
    argv = _read(str(pid), "cmdline").split("\0")[:-1]
    pairs = [each.partition("=") for each in _read(str(pid), "environ").split("\0")[:-1]]
    return Peer(
        pid=pid,
        argv=tuple(argv),
        env={name: value for name, _, value in reversed(pairs)},
        umask=int(status["Umask"], 8),
        ignored=_signals(status["SigIgn"]),
        blocked=_signals(status["SigBlk"]),
        limits=_limits(pid),
        nice=os.getpriority(os.PRIO_PROCESS, pid),
        processors=frozenset(os.sched_getaffinity(pid)),
        oom_score_adj=_read(str(pid), "oom_score_adj"),
    )


def descends_from(pid: int, ancestors: FrozenSet[int]) -> bool:
    """Whether one of these processes is above it."""
    while pid > 1 and pid not in ancestors:
        pid = int(_stat(pid)[1])
    return pid in ancestors


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for this signal. An exec leaves none."""
    try:
        return number in _signals(_status(str(pid))["SigCgt"])
    except (OSError, KeyError):
        return False


def _io_class(pid: int) -> int:
    """The class and the level that `ionice` sets; 0 where the number of the system call is not known."""
    number = _IOPRIO_GET.get(os.uname().machine)
    return int(_libc.syscall(number, _IOPRIO_WHO_PROCESS, pid)) if number else 0


def _check_memory_policy(pid: int) -> None:
    try:
        lines = _read(str(pid), "numa_maps").splitlines()
    except OSError:
        return  # a kernel without NUMA
    if lines and lines[0].split()[1] != "default":
        raise Differs("memory policy")


def _limits(pid: int) -> Dict[int, Tuple[int, int]]:
    """The limits that it does not have as this process has them."""
    theirs = {which: resource.prlimit(pid, which) for which in _LIMITS}
    found = {which: limits for which, limits in theirs.items() if limits != resource.getrlimit(which)}
    if resource.RLIMIT_STACK in found:
        raise Differs("size of stacks")  # read when a process starts
    return found


def _status(process: str) -> Dict[str, str]:
    pairs = (line.partition(":") for line in _read(process, "status").splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _signals(mask: str) -> FrozenSet[int]:
    bits = int(mask, 16)
    return frozenset(number for number in range(1, 65) if bits >> (number - 1) & 1)


def _stat(pid: int) -> list[str]:
    text = _read(str(pid), "stat")
    return text[text.rindex(")") + 2 :].split()


def _read(process: str, name: str) -> str:
    with open(f"/proc/{process}/{name}", "rb") as file:
        return os.fsdecode(file.read())
