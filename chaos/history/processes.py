"""The kernel's truth: which process of which launcher ran when and where, and when it was held or killed.

Launchers put a marker into their environment, which every process of a task inherits. Processes and their
states are seen by looking at /proc every few milliseconds, deaths by a pidfd at once. When one began the
kernel tells: on a busy machine that may be long before it is first seen.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from chaos.history.etcd_client import now_ms
from chaos.history.formats import BORN, FROZEN, GONE, KILLED, PROCESSES, RUNS, STATE, STOPPED, ProcessLine
from chaos.history.lines import append

LOOK_S = 0.025
MARKER = b"\0TFSUP_MARKER="
# A process that is being started has its parent's environment until it executes its own program.
_LOOK_AGAIN_MS = (0, 25, 50, 100, 200, 400, 800, 1600, 3200)
_SIGKILL = 1 << 8
_PF_EXITING = 0x4
_THAWED_MS = 3000
_FORGET_MS = 60_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Stat:
    """Fields of /proc/PID/stat: the state's letter, the parent, the start time, whether it is being torn
    down.
    """

    letter: str
    parent: int
    ticks: int
    exiting: bool


def stat_of(pid: int) -> Stat | None:
    """None when there is no such process."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    rest = raw[raw.rindex(b")") + 2 :].split()
    return Stat(rest[0].decode(), int(rest[1]), int(rest[19]), bool(int(rest[6]) & _PF_EXITING))


def marker_of(pid: int) -> str:
    """The launcher's marker in its environment; empty without one."""
    try:
        environ = b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    return environ.partition(MARKER)[2].partition(b"\0")[0].decode(errors="replace")


class Nodes:
    """The nodes of processes: `roots` gives the first process of each node that is up."""

    def __init__(self, roots: Callable[[], dict[int, str]]) -> None:
        self._roots = roots
        self._known: dict[int, str] = {}
        self._by_marker: dict[str, str] = {}

    def of(self, pid: int, marker: str) -> str:
        """Its name; empty for a process of no node of ours."""
        found = self._by_marker.get(marker, "")
        if not found:
            found = self._climb(pid)
        if not found:
            self._known = self._roots()
            found = self._climb(pid)
        if found:
            self._by_marker[marker] = found
        return found

    def _climb(self, pid: int) -> str:
        for _ in range(64):
            if pid in self._known:
                return self._known[pid]
            stat = stat_of(pid)
            if stat is None or stat.parent <= 1:
                return ""
            pid = stat.parent
        return ""


@dataclass(slots=True)
class _Seen:
    """A process without a marker: one that is young is looked at again."""

    first_ms: float
    looks: int = 0


@dataclass(slots=True)
class _Watched:
    ticks: int
    pidfd: int
    state: str
    freezers: tuple[Path, ...]
    killed: bool = False
    held_ms: float = float("-inf")


class ProcessRecorder:
    """One thread that looks at /proc."""

    def __init__(self, roots: Callable[[], dict[int, str]], directory: Path) -> None:
        self._nodes = Nodes(roots)
        self._file = directory / PROCESSES
        self._done = threading.Event()
        self._epoll = select.epoll()
        self._others: dict[int, _Seen] = {}
        self._watched: dict[int, _Watched] = {}
        self._by_fd: dict[int, int] = {}
        self._lines: list[ProcessLine] = []
        self._before_ms = self._alive_ms = now_ms()
        self._thread = threading.Thread(target=self._run, name="processes", daemon=True)

    def start(self) -> None:
        """Start recording. Processes that live already are recorded before this returns."""
        self._look()
        self._thread.start()

    def stop(self) -> bool:
        """End, with a last look. False if it had ended by itself before, so that something was missed."""
        whole = self._thread.is_alive()
        self._done.set()
        self._thread.join()
        self._look()
        for watched in self._watched.values():
            os.close(watched.pidfd)
        self._epoll.close()
        return whole

    def alive(self) -> list[int]:
        """The marked processes that live, as of the last look."""
        return sorted(self._watched)

    def _run(self) -> None:
        due_ms = now_ms()
        while not self._done.is_set():
            self._hear(max(0.0, due_ms - now_ms()) / 1000)
            if now_ms() >= due_ms:
                due_ms = now_ms() + LOOK_S * 1000
                self._look()
            self._write()

    def _hear(self, within_s: float) -> None:
        """Take the kernel's news of ended processes.

        Those not in it lived when it was asked, which may be long ago.
        """
        asked_ms = now_ms()
        for fd, _ in self._epoll.poll(within_s):
            self._ended(self._by_fd[fd])
        self._alive_ms = asked_ms

    def _look(self) -> None:
        began_ms = now_ms()
        there = {int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()}
        for pid in self._others.keys() - there:
            del self._others[pid]
        for pid in there - self._watched.keys():
            self._look_for_marker(pid, began_ms)
        for pid, watched in list(self._watched.items()):
            self._look_at(pid, watched)
        self._before_ms = began_ms
        self._write()

    def _write(self) -> None:
        if self._lines:
            append(self._file, self._lines)
            self._lines = []

    # Births.

    def _look_for_marker(self, pid: int, at_ms: float) -> None:
        seen = self._others.setdefault(pid, _Seen(at_ms))
        age_ms = at_ms - seen.first_ms
        if seen.looks >= len(_LOOK_AGAIN_MS):
            if age_ms > _FORGET_MS:
                del self._others[pid]  # the number may be another's by now
            return
        if age_ms < _LOOK_AGAIN_MS[seen.looks]:
            return
        seen.looks += 1
        marker = marker_of(pid)
        node = self._nodes.of(pid, marker) if marker else ""
        if not node:
            return
        with suppress(OSError):
            self._watch(pid, marker, node)
            del self._others[pid]

    def _watch(self, pid: int, marker: str, node: str) -> None:
        pidfd = os.pidfd_open(pid)
        stat = stat_of(pid)
        if stat is None:
            os.close(pidfd)
            return
        watched = _Watched(stat.ticks, pidfd, RUNS, _freezers(pid))
        self._watched[pid] = watched
        self._by_fd[pidfd] = pid
        self._epoll.register(pidfd, select.EPOLLIN)
        born = self._line(pid, stat.ticks, BORN)
        self._lines.append(
            replace(
                born,
                after_ms=stat.ticks * 1000 / _TICKS_PER_S,
                state=RUNS,
                node=node,
                marker=marker,
                parent=stat.parent,
                inner=_inner_pids(pid),
                command=_command(pid),
            )
        )

    # What becomes of them.

    def _look_at(self, pid: int, watched: _Watched) -> None:
        stat = stat_of(pid)
        if stat is None or stat.ticks != watched.ticks:
            return  # the pidfd tells
        state = STOPPED if stat.letter in "Tt" else RUNS
        if stat.letter == "D":
            # What a freezer of version 1 holds is in this state, and may have been put there since its birth.
            watched.freezers = _freezers(pid) or watched.freezers
        if state == RUNS and any(_is_frozen(path) for path in watched.freezers):
            state = FROZEN
        if state != RUNS:
            watched.held_ms = now_ms()
        recently = now_ms() - watched.held_ms < _THAWED_MS
        if recently and not watched.killed and (stat.exiting or _kill_pending(pid)):
            watched.killed = True
            self._lines.append(self._line(pid, stat.ticks, KILLED))
        if state != watched.state:
            watched.state = state
            self._lines.append(replace(self._line(pid, stat.ticks, STATE), state=state))

    def _ended(self, pid: int) -> None:
        watched = self._watched.pop(pid)
        self._epoll.unregister(watched.pidfd)
        del self._by_fd[watched.pidfd]
        self._lines.append(replace(self._line(pid, watched.ticks, GONE), after_ms=self._alive_ms))
        os.close(watched.pidfd)

    def _line(self, pid: int, ticks: int, kind: str) -> ProcessLine:
        return ProcessLine(kind, now_ms(), self._before_ms, pid, ticks)


def _kill_pending(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    pending = [line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(int(mask, 16) & _SIGKILL for mask in pending)


def _inner_pids(pid: int) -> tuple[int, ...]:
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return (pid,)
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return tuple(map(int, line.split()[1:]))
    return (pid,)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    except OSError:
        return ""


def _freezers(pid: int) -> tuple[Path, ...]:
    """The files that say whether its cgroups are frozen."""
    found = []
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return ()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for root, wanted, file in _FREEZERS:
            if controllers == wanted and path != "/":
                found.append(root / path.lstrip("/") / file)
    return tuple(path for path in found if path.exists())


def _is_frozen(path: Path) -> bool:
    try:
        said = path.read_text()
    except OSError:
        return False
    return "frozen 1" in said or said.startswith("FROZEN")


def _roots() -> tuple[tuple[Path, str, str], ...]:
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, options, *_ = line.split()
        if kind == "cgroup2":
            found.append((Path(point), "", "cgroup.events"))
        elif kind == "cgroup" and "freezer" in options.split(","):
            found.append((Path(point), "freezer", "freezer.state"))
    return tuple(found)


_FREEZERS = _roots()
