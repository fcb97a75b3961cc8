"""A small process between a daemon and a program: nothing that the program starts outlives this process.

It is run as `PYTHON -I -S .../guard.py`, and imports nothing of ours. Standard input is a socket. Its one
line is the request, a JSON object; the answer is a JSON line and, after it, the program's output. The end of
the socket means that the caller is gone.

The guard is a subreaper. A program that leaves its session, forks twice and has no environment is its child
again, so a guard without children has no descendants either.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NoReturn

EXITED, LATE, MEMORY = "exited", "late", "memory"
GONE_S = 5.0
"""How long the answer waits for the last descendant. The guard itself stays until that is gone."""
_LOOK_S = 0.5
"""How often memory is measured, and how late the end of the program's time may be seen."""
_MOST_READ = 16 << 20
"""A program that prints more waits for its end: it is read no more."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.1
_PIECE = 1 << 16
_MOST_REAPED = 1_000
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LEFT_ALONE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end the guard's daemon, perhaps with all of its service. The guard ends after it."""
_SIGNALS_OF_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_libc = ctypes.CDLL(None, use_errno=True)


class Output:
    """The last `kept` bytes that the program prints. A pipe that others still hold is not waited for."""

    def __init__(self, kept: int) -> None:
        self.fd, self.pipe = os.pipe() if kept else (-1, os.open(os.devnull, os.O_WRONLY))
        self._most, self._kept, self._left = kept, b"", _MOST_READ if kept else 0
        if kept:
            os.set_blocking(self.fd, False)

    def take(self) -> bool:
        """Read a piece; False if there is none now, or if no more is read."""
        if self._left <= 0:
            return False
        try:
            piece = os.read(self.fd, _PIECE)
        except BlockingIOError:
            return False
        self._left -= len(piece)
        self._kept = (self._kept + piece)[-self._most :]
        return self._left > 0

    def end(self) -> bytes:
        """All that is kept, once the program is dead."""
        while self.take():
            pass
        return self._kept


class Descendants:
    """All that the program started, and itself. `code`: the program's, once it was reaped."""

    def __init__(self, child: int) -> None:
        self._child = child
        self.code = -int(signal.SIGKILL)

    def reap(self) -> bool:
        """Reap what has ended, a bounded number at a time. False if no descendant is left."""
        try:
            for _ in range(_MOST_REAPED):
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self._child:
                    self.code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            return False
        return True

    def kill(self) -> bool:
        """Kill until none is left, or for GONE_S; returns whether none is left.

        Only children are killed: their pids are theirs until they are reaped here. Those of a dead child
        become children of this process.
        """
        until, pause_s, killed = time.monotonic() + GONE_S, _PAUSE_S, set[int]()
        while self.reap():
            found = _children()
            for each in found:
                # It may run as another user, with more rights than the guard.
                with suppress(OSError):
                    os.kill(each, signal.SIGKILL)
            if time.monotonic() > until:
                return False
            # A program that forks and ends on and on is only met without a pause.
            if found <= killed:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            killed = found
        return True


def main() -> None:
    """Run the program of the request to its end, or to the end of its caller, time or memory."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for number in _LEFT_ALONE:
        signal.signal(number, signal.SIG_IGN)
    caller = socket.socket(fileno=0)
    asked = json.loads(_line(caller))
    output = Output(asked["kept"])
    try:
        child = _start(asked, output.pipe)
    except OSError as error:
        _answer(caller, {"errno": error.errno}, b"")
        return
    all_of_it = Descendants(child)
    until = time.monotonic() + asked["limit_s"]
    why = _watch(all_of_it, child, caller, output, until, asked["memory"])
    gone = all_of_it.kill()
    _answer(caller, {"code": all_of_it.code, "end": why}, output.end())
    while not gone:
        gone = all_of_it.kill()


def _line(caller: socket.socket) -> bytes:
    said = b""
    while not said.endswith(b"\n"):
        piece = caller.recv(_PIECE)
        if not piece:
            os._exit(1)  # the caller is gone
        said += piece
    return said


def _answer(caller: socket.socket, told: dict[str, Any], said: bytes) -> None:
    with suppress(OSError):
        caller.sendall(json.dumps(told).encode() + b"\n" + said)
        caller.shutdown(socket.SHUT_RDWR)


def _start(asked: dict[str, Any], output: int) -> int:
    """Start the program; returns its pid. Raises OSError if it cannot be started."""
    told = os.memfd_create("told")
    os.write(told, os.fsencode(asked["told"]))
    os.lseek(told, 0, os.SEEK_SET)
    failed, guard = os.pipe(), os.getpid()
    child = os.fork()
    if child == 0:
        _become(asked, told, output, failed[1], guard)
    os.close(told)
    os.close(failed[1])
    with open(failed[0], "rb") as file:
        said = file.read()
    if said:
        raise OSError(int(said), os.strerror(int(said)))
    return child


def _become(asked: dict[str, Any], told: int, output: int, failed: int, guard: int) -> NoReturn:
    try:
        os.setsid()
        # With the guard's own rights: the program's user may enter none of the directories above.
        os.chdir(asked["cwd"])
        if asked["umask"] is not None:
            os.umask(asked["umask"])
        os.setpriority(os.PRIO_PROCESS, 0, asked["nice"])
        if asked["oom_score_adj"]:
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write(str(asked["oom_score_adj"]))
        if asked["user"] is not None:
            uid, gid = asked["user"]
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        # A change of user takes this away.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        for number in (*_LEFT_ALONE, *_SIGNALS_OF_PYTHON):
            signal.signal(number, signal.SIG_DFL)
        errors = output if asked["errors"] else os.open(os.devnull, os.O_WRONLY)
        for source, target in ((told, 0), (output, 1), (errors, 2)):
            os.dup2(source, target)
        os.execve(asked["command"][0], asked["command"], asked["env"])
    except (OSError, ValueError) as error:
        os.write(failed, str(getattr(error, "errno", None) or errno.EINVAL).encode())
    finally:
        os._exit(127)


def _watch(
    all_of_it: Descendants, child: int, caller: socket.socket, output: Output, until: float, memory: int
) -> str:
    """Wait for the first end: of the program, its caller, its time or its memory; returns which."""
    with selectors.DefaultSelector() as selector:
        ended = os.pidfd_open(child)
        for fd in (ended, caller.fileno(), *((output.fd,) if output.fd >= 0 else ())):
            selector.register(fd, selectors.EVENT_READ)
        look = time.monotonic() + _LOOK_S
        while True:
            now = time.monotonic()
            ready = {key.fd for key, _ in selector.select(max(0.0, min(until, look) - now))}
            if ended in ready:
                return EXITED
            if caller.fileno() in ready or time.monotonic() >= until:
                return LATE
            if output.fd in ready and not output.take():
                selector.unregister(output.fd)
            if time.monotonic() >= look:
                look = time.monotonic() + _LOOK_S
                all_of_it.reap()
                if memory and _resident() > memory:
                    return MEMORY


def _children() -> set[int]:
    own = os.getpid()
    with suppress(OSError), open(f"/proc/{own}/task/{own}/children", "rb") as file:
        return set(map(int, file.read().split()))
    return {pid for pid, parent, _ in _processes() if parent == own}


def _resident() -> int:
    """Bytes of memory of all descendants. Pages that several of them have are counted for each."""
    below: dict[int, list[tuple[int, int]]] = {}
    for pid, parent, resident in _processes():
        below.setdefault(parent, []).append((pid, resident))
    total, left = 0, [os.getpid()]
    while left:
        for pid, resident in below.pop(left.pop(), []):
            total += resident
            left.append(pid)
    return total


def _processes() -> Iterator[tuple[int, int, int]]:
    """(pid, parent, resident bytes) of each process."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                rest = file.read().rpartition(b")")[2].split()
                yield int(name), int(rest[1]), int(rest[21]) * _PAGE


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    main()
