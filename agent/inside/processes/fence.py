"""Fencing: SIGKILL of everything that an attempt started, and proof that it is gone.

A process belongs to an attempt when it descends from one of the attempt's roots, or carries the launcher's
marker in its environment. The launcher is a subreaper, so while it lives every orphan stays its descendant;
when it is dead, the marker finds what double-forked or called setsid. The marker must be in the launcher's
own environment at exec time: a child that was only forked shows its parent's environment in /proc. A process
that is being torn down no longer has an environment, but still its ports and files. So `fence` also waits for
all processes of the same user that are exiting when it begins. A process whose main thread has ended by
itself is not torn down: its other threads go on, and show its environment.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass
from typing import Callable, Tuple

from ..clock import now_ms
from ..failpoints import effect
from . import priority

Root = Tuple[int, int]
"""(pid, start_ticks): a pid alone may be reused by another process."""

MARKER_VARIABLE = "TFSUP_MARKER"
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05
_PF_EXITING = 0x4
_KILL_BIT = 1 << (signal.SIGKILL - 1)


def _nobody(_uid: int) -> bool:
    return False


@dataclass(frozen=True)
class Process:
    """A live process. `start_ticks` (field 22 of stat) makes the pid unambiguous within a boot.

    `used_ticks`: processor time, with that of its reaped children.
    """

    pid: int
    parent: int
    start_ticks: int
    state: str
    exiting: bool = False
    used_ticks: int = 0


@dataclass(frozen=True)
class FenceReport:
    """`survivors` were still seen after the last SIGKILL: they hang in the kernel (D), or may not be killed
    by us.
    """

    killed: int
    survivors: tuple[Process, ...]
    elapsed_ms: int

    @property
    def confirmed_dead(self) -> bool:
        """Whether no process of the attempt is left, so that its memory, ports and files are free."""
        return not self.survivors


def read_process(pid: int) -> Process | None:
    """The process, or None when it is gone or a zombie all of whose threads have ended."""
    raw = _read(f"/proc/{pid}/stat")
    if not raw:
        return None
    # The command name is in parentheses and may itself hold spaces and parentheses.
    rest = raw[raw.rindex(b")") + 2 :].split()
    state, threads = rest[0].decode(), int(rest[17])
    if state in "ZX" and threads <= 1:
        return None
    return Process(
        pid=pid,
        parent=int(rest[1]),
        start_ticks=int(rest[19]),
        state=state,
        exiting=bool(int(rest[6]) & _PF_EXITING),
        used_ticks=sum(map(int, rest[11:15])),
    )


def members(
    marker: str,
    roots: tuple[Root, ...] = (),
    spare: tuple[int, ...] = (),
    strange: Callable[[int], bool] = _nobody,
) -> tuple[Process, ...]:
    """Every live process of an attempt: the `roots`, their descendants, marked ones.

    `spare` pids are never included, though their descendants are. An empty marker matches nothing.
    `strange`: uids of which the marker proves nothing.
    """
    table = all_processes()
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found = set()
    stack = [pid for pid, ticks in roots if pid in table and table[pid].start_ticks == ticks]
    while stack:
        pid = stack.pop()
        if pid not in found:
            found.add(pid)
            stack.extend(children.get(pid, ()))
    marked = (pid for pid in table if pid not in found and has_marker(pid, marker))
    found.update([pid for pid in marked if not strange(user_of(pid))])
    return tuple(table[pid] for pid in sorted(found) if pid in table and pid not in spare)


def pids() -> list[int]:
    """The pids of all processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def all_processes() -> dict[int, Process]:
    """Every live process, by pid."""
    seen = map(read_process, pids())
    return {process.pid: process for process in seen if process is not None}


def children(pid: int) -> tuple[int, ...]:
    """The children of a process; none where the kernel does not list them."""
    return tuple(map(int, _read(f"/proc/{pid}/task/{pid}/children").split()))


def survivors(marker: str) -> tuple[Process, ...]:
    """Live processes that carry the marker, the launcher included."""
    return members(marker)


def has_marker(pid: int, marker: str) -> bool:
    """Whether the process was started with this launcher's marker; False when that cannot be read.

    A marker is `LAUNCHER_ID#NONCE`; `LAUNCHER_ID#` alone matches any nonce, for callers that do not know it.
    """
    return bool(marker) and shows(pid, MARKER_VARIABLE, marker, begins=marker.endswith("#"))


def shows(pid: int, variable: str, value: str, *, begins: bool = False) -> bool:
    """Whether the process was exec'd with this variable (with `begins`: a value that begins so); False if
    unreadable.
    """
    environ = environment(pid)
    end = "" if begins else "\0"
    return f"\0{variable}={value}{end}".encode() in environ


def marker_of(pid: int) -> str:
    """The marker that the process was started with; empty without one, or if it cannot be read."""
    begin = f"\0{MARKER_VARIABLE}=".encode()
    return os.fsdecode(environment(pid).partition(begin)[2].partition(b"\0")[0])


def environment(pid: int) -> bytes:
    """The environment, each variable after a zero byte; empty if it cannot be read.

    A main thread that has ended shows no environment, even if the process is alive, so other threads are
    read.
    """
    found = _read(f"/proc/{pid}/environ")
    process = read_process(pid) if not found else None
    if process is not None and process.exiting:
        found = next(filter(None, (_read(f"/proc/{pid}/task/{each}/environ") for each in _threads(pid))), b"")
    return b"\0" + found if found else b""


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def is_torn_down(process: Process) -> bool:
    """Whether all of its threads are exiting, or must exit."""
    return process.exiting and all(
        _ends(f"/proc/{process.pid}/task/{each}") for each in _threads(process.pid)
    )


def _ends(thread: str) -> bool:
    stat, status = _read(f"{thread}/stat"), _read(f"{thread}/status")
    if not stat or not status:
        return True  # it is gone
    pending = int(status.partition(b"\nSigPnd:\t")[2].split(None, 1)[0], 16)
    flags = int(stat[stat.rindex(b")") + 2 :].split()[6])
    return bool(flags & _PF_EXITING or pending & _KILL_BIT)


def user_of(pid: int) -> int:
    """The real uid of a process, which programs with the set-user-ID bit keep; -1 if it is gone."""
    status = _read(f"/proc/{pid}/status")
    return int(status.partition(b"\nUid:\t")[2].split(None, 1)[0]) if status else -1


def sweep(
    marker: str,
    roots: tuple[Root, ...] = (),
    spare: tuple[int, ...] = (),
    strange: Callable[[int], bool] = _nobody,
) -> tuple[Process, ...]:
    """Make one pass: SIGKILL all members seen, and return them. An empty result proves that none is left."""
    seen = members(marker, roots, spare, strange)
    for process in seen:
        kill(process)
    return seen


def kill(process: Process, number: int = signal.SIGKILL) -> None:
    """Send a signal to this process, never to another one with its pid. A killed process gets precedence."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except AttributeError:
        pidfd = -1  # Python 3.8
    except OSError as error:
        if error.errno == errno.ESRCH:
            return
        pidfd = -1  # a kernel before 5.3, or no descriptor left
    try:
        current = read_process(process.pid)
        if current is None or current.start_ticks != process.start_ticks:
            return
        with effect("fence.kill"):
            if pidfd >= 0:
                signal.pidfd_send_signal(pidfd, number)
            else:
                os.kill(process.pid, number)
        if number == signal.SIGKILL:
            priority.hasten(process.pid)
    except (ProcessLookupError, PermissionError):
        pass  # gone, or not ours: the next pass tells which
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def fence(
    marker: str,
    roots: tuple[Root, ...] = (),
    spare: tuple[int, ...] = (),
    timeout_ms: int = 5_000,
    user: int | None = None,
    strange: Callable[[int], bool] = _nobody,
) -> FenceReport:
    """Kill until a pass finds no process, or `timeout_ms` have passed. Blocks: call it in a worker thread.

    `user`: the user of the processes; None for our own. `strange`: as for `members`.
    """
    began_ms = now_ms()
    whose = os.getuid() if user is None else user
    exiting = {
        _key(each)
        for each in all_processes().values()
        if is_torn_down(each) and each.pid not in spare and user_of(each.pid) == whose
    }
    killed: set[Root] = set()
    pause_s = _FIRST_PAUSE_S
    while True:
        found = sweep(marker, roots, spare, strange)
        killed.update(map(_key, found))
        # What was seen once is waited for by its identity: its environment goes before it does.
        seen = (read_process(pid) for pid, _ in exiting | killed)
        left = tuple(each for each in seen if each is not None and _key(each) in exiting | killed)
        elapsed_ms = now_ms() - began_ms
        # A member may have forked while the pass ran, so only a pass that finds none is the proof.
        if not (left or found) or elapsed_ms >= timeout_ms:
            return FenceReport(killed=len(killed), survivors=left or found, elapsed_ms=elapsed_ms)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _key(process: Process) -> Root:
    return process.pid, process.start_ticks
