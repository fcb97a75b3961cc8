"""The main process of a wrapper's attempt: parent of the wrapper, and a warm interpreter for its Python.

It is a fork of the launcher. The first `python` in the wrapper's PATH (`shim.py`) connects to it; it forks
once more, and that child becomes what the shim would have been: same arguments, environment, directory and
descriptors. The child lives as long as the shim, which ends as the child ends. One program runs warm at a
time; another Python meanwhile is the real one.

Being the parent of both, it is the root of all that the attempt started, for fencing (both die with it) and
for whoever counts what the attempt uses. It passes its signals on to the wrapper and ends as that ends.
"""

from __future__ import annotations

import array
import fcntl
import io
import os
import resource
import select
import selectors
import shutil
import signal
import socket
import struct
import sys
from dataclasses import replace
from typing import FrozenSet, NoReturn, Optional

from .. import shim
from ..child import program, saves, stacks, warm
from ..failpoints import effect
from . import peer, spawn

_PATIENCE_S = 5.0
_START_S = 30.0
_LOOK_S = 0.2
_MOST_REQUEST = 4096
_MOST_DESCRIPTORS = 256
_SHIM_WORDS = 2
"""The words before the path of the shim in its command line: interpreter and options."""
_CREDENTIALS = struct.Struct("3i")
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
_CAUGHT = signal.valid_signals() - _FAULTS - spawn.IGNORED_BY_PYTHON - {signal.SIGKILL, signal.SIGSTOP}


class _Request:
    """One shim: its connection, what it hands on, and the program that it stands for."""

    def __init__(self, conn: socket.socket, order: spawn.Order) -> None:
        self.conn = conn
        self._order = order
        conn.settimeout(_PATIENCE_S)
        pid, uid, _ = _CREDENTIALS.unpack(
            conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if uid != os.getuid() or not peer.descends_from(pid, frozenset({os.getpid(), os.getppid()})):
            raise peer.Differs("no process of this attempt")
        self.numbers, self.fds = _received(conn)
        try:
            if not {0, 1, 2} <= set(self.numbers) or order.keep_fds - {0, 1, 2} & set(self.numbers):
                raise peer.Differs("descriptors")
            self.peer = peer.read(pid)
            self.env, self.executable, self.program = self._chosen()
        except BaseException:
            self.close_descriptors()
            raise

    def _chosen(self) -> tuple[dict[str, str], str, program.Program]:
        name = os.path.basename(self.peer.argv[_SHIM_WORDS])
        places = self.peer.env["PATH"].split(os.pathsep)
        if not all(map(os.path.isabs, places)):
            raise peer.Differs("relative places in PATH")
        ours = self._order.cold_env["PATH"].partition(os.pathsep)[0]
        env = {**self.peer.env, "PATH": os.pathsep.join(each for each in places if each != ours)}
        found = shutil.which(name, path=env["PATH"])
        imports = self._order.preloaded.imports
        if found is None or not program.is_its_file(found) or imports.would_differ(env):
            raise peer.Differs("interpreter, or what it reads at its start")
        arguments = self.peer.argv[_SHIM_WORDS + 1 :]
        chosen = program.warm_program((found, *arguments), self.peer.directory, imports.changed(env))
        if chosen is None:
            raise peer.Differs("program")
        return env, found, replace(chosen, command=(name, *arguments))

    def close_descriptors(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def become(self, zygote: int, running: int) -> program.Program:
        """In the child: be the program, unless the shim has gone. `running` is closed when it is."""
        try:
            os.setpgid(0, 0)
            spawn.die_with(zygote)
            self._take_descriptors(running)
            _open_input()
            self.peer.take_on()
            for name in self._order.cold_env.keys() - self.env.keys():
                os.environ.pop(name, None)
            sys.executable = self.executable
            warm.restore(self.env, self.env, self._order.preloaded)
            _reset_signals(self.peer.ignored)
            stacks.register(self._order.attempt_dir)
            self.conn.sendall(shim.READY)
            if self.conn.recv(len(shim.GO)) != shim.GO:
                os._exit(1)
            saves.begin(self._order.attempt_dir, self._order.env)
            os.write(self._running, b".")
            os.close(self._running)
            self.conn.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, self.peer.blocked)
        except (OSError, ValueError):
            os._exit(1)  # the shim becomes the real Python
        return self.program

    def _take_descriptors(self, running: int) -> None:
        """Put the descriptors where they were, and close all but those of preloaded modules."""
        above = max(self.numbers, default=2) + 1
        moved = [
            fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in (running, self.conn.fileno(), *self.fds)
        ]
        self._running = moved[0]
        self.conn.detach()
        for fd in spawn.open_fds() - self._order.keep_fds - set(moved):
            os.close(fd)
        self.conn = socket.socket(fileno=moved[1])
        self.conn.settimeout(_PATIENCE_S)
        self.fds = []
        for index, number in enumerate(self.numbers, 2):
            os.dup2(moved[index], number)
            os.close(moved[index])


class Zygote:
    """Keep it referenced in its children: its sockets would close descriptors that are the program's then."""

    def __init__(self, order: spawn.Order, wrapper: int) -> None:
        assert order.listener is not None
        self._order = order
        self._wrapper = wrapper
        self._listener = order.listener
        self._request: Optional[_Request] = None
        self._child = 0
        self._stopped = False
        self._selector = selectors.DefaultSelector()
        self._signals, self._wakeup = socket.socketpair()

    def run(self) -> program.Program:
        """Serve until the wrapper ends, and end as it; returns in each child, with the program to run."""
        for sock in (self._signals, self._wakeup, self._listener):
            sock.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        for number in _CAUGHT:
            signal.signal(number, lambda *_: None)
        self._selector.register(self._listener, selectors.EVENT_READ, self._on_shim)
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signals)
        self._reap()
        while True:
            for key, _ in self._selector.select(_LOOK_S if self._child else None):
                chosen: Optional[program.Program] = key.data()
                if chosen is not None:
                    return chosen
            self._follow_stops()

    def _on_shim(self) -> Optional[program.Program]:
        try:
            conn, _ = self._listener.accept()
        except OSError:
            return None
        request = None
        if not self._child:
            try:
                request = _Request(conn, self._order)
            except (peer.Differs, OSError, ValueError, KeyError, IndexError):
                pass
        if request is None:
            conn.close()  # the shim becomes the real Python
            return None
        chosen = self._fork(request)
        if chosen is None:
            request.close_descriptors()
            if not self._child:
                conn.close()
        return chosen

    def _fork(self, request: _Request) -> Optional[program.Program]:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        zygote = os.getpid()
        # A signal that came between fork and reset would be handled twice.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with effect("zygote.fork"):
                child = spawn.fork()
        except OSError:
            child = -1
        if child == 0:
            return request.become(zygote, writer)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writer)
        ready, _, _ = select.select([reader], [], [], _START_S)
        runs = bool(ready) and os.read(reader, 1) == b"."
        os.close(reader)
        if not runs:
            if child > 0:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            return None
        request.conn.setblocking(False)
        self._request, self._child, self._stopped = request, child, False
        self._selector.register(request.conn, selectors.EVENT_READ, self._on_request)
        return None

    def _on_request(self) -> None:
        """A signal for the program, or the end of the shim."""
        if self._request is None:
            return  # the end of the program was seen in the same turn
        try:
            said = self._request.conn.recv(1)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        number = said[0] if said else signal.SIGKILL
        if not said:
            self._selector.unregister(self._request.conn)
        if number in signal.valid_signals():
            os.kill(self._child, number)  # not reaped, so the pid cannot be another's

    def _on_signals(self) -> None:
        try:
            numbers = self._signals.recv(4096)
        except BlockingIOError:
            return
        for number in numbers:
            if number == signal.SIGCHLD:
                self._reap()
            elif number != stacks.SIGNAL:
                os.kill(self._wrapper, number)
            elif self._child and peer.catches(self._child, number):
                os.kill(self._child, number)

    def _reap(self) -> None:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid == self._child:
                self._tell(status)
            elif pid == self._wrapper:
                _end_as(status)

    def _tell(self, status: int) -> None:
        """Tell the shim how the program has ended."""
        assert self._request is not None
        conn, self._child = self._request.conn, 0
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if conn in self._selector.get_map():
            self._selector.unregister(conn)
            try:
                conn.send(str(code).encode())
            except OSError:
                pass  # it has ended first
        conn.close()
        self._request = None

    def _follow_stops(self) -> None:
        """A shim that is stopped stops the program: a SIGSTOP cannot be passed on."""
        if self._request is None or not self._child:
            return
        stopped = self._request.peer.is_stopped()
        if stopped != self._stopped:
            self._stopped = stopped
            os.kill(self._child, signal.SIGSTOP if stopped else signal.SIGCONT)


def _received(conn: socket.socket) -> tuple[list[int], list[int]]:
    """The numbers that the shim's descriptors had, and the descriptors. Raises OSError, ValueError."""
    room = socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS)
    data, extra, _, _ = conn.recvmsg(_MOST_REQUEST, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, piece in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += array.array("i", piece[: len(piece) - len(piece) % 4])
    try:
        numbers = [int(each) for each in data.split()]
        if len(numbers) != len(fds) or len(set(numbers)) != len(fds) or min(numbers, default=0) < 0:
            raise ValueError("not the descriptors that it names")
    except ValueError:
        for fd in fds:
            os.close(fd)
        raise
    return numbers, fds


def _open_input() -> None:
    """Make `sys.stdin` anew: the one of the launcher knows whether it can seek in another file."""
    former = sys.stdin
    raw = io.FileIO(0, closefd=False)
    vars(raw)["name"] = former.name
    sys.stdin = io.TextIOWrapper(io.BufferedReader(raw), former.encoding, former.errors, newline="\n")
    vars(sys.stdin)["mode"] = former.mode
    vars(sys)["__stdin__"] = sys.stdin


def _reset_signals(ignored: FrozenSet[int]) -> None:
    """Make them as they are at the start of a program that ignores these. All signals are blocked."""
    signal.set_wakeup_fd(-1)
    for number in _CAUGHT:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_as(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the wrapper has left its own
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))
