"""Starting an attempt: fork, a session of its own that dies with the launcher, then exec or go on warm."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import sys
import warnings
from dataclasses import dataclass, field
from typing import NoReturn, Optional

from ..child import adopt, joining, partial, patches, peers, program, saves, stacks, waiting, warm
from ..failpoints import effect
from . import priority

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# What the launcher or the interpreter changed, and a program must find as exec'd programs do.
_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
IGNORED_BY_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_libc = ctypes.CDLL(None, use_errno=True)


class ProgramStarts(BaseException):
    """Raised in the forked child, to leave the launcher's loop and run the program low in the stack.

    Without a program of its own it is to serve the process `wrapper` (`zygote`).
    """

    def __init__(self, order: Order, wrapper: int) -> None:
        super().__init__()
        self.order = order
        self.wrapper = wrapper


@dataclass(frozen=True)
class Order:
    """The order for a child. `warm_program` None means exec `argv` with exactly `cold_env`; with a `listener`
    in a child of its own, whose Python may then ask there for a warm start (`zygote`).

    `env` is added to the launcher's own environment in a warm child. `keep_fds` stay open; `lock_fd` (-1:
    none) is also inherited through exec. A failure before the program runs is written to `status_fd`. Before
    the program runs, the file `must_see` must appear within `see_ms`, the path `adopt` is made to lead to the
    checkpoint directory (`adopt`), and all of `wait_for` must listen within `wait_ms` (`waiting`). A warm
    child's stacks are dumped to `attempt_dir` on the agent's request (`stacks`), and its saves are noted
    there (`saves`). `nice`: the nice value of its session; 0: the launcher's. `contained`: as for
    `priority.lower`. `peers_fd`: the child's end of the socket for new addresses (`peers`), -1 if there is
    none. `joins`: a warm child joins a running cluster (`joining`). `secrets`: values that no file may hold.
    """

    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    cold_env: dict[str, str]
    job_env: dict[str, str]
    warm_program: program.Program | None
    preloaded: warm.Preloaded
    output_fd: int
    status_fd: int
    lock_fd: int
    keep_fds: frozenset[int]
    oom_score_adj: int
    wait_for: tuple[str, ...] = ()
    wait_ms: Optional[int] = None
    must_see: str = ""
    see_ms: int = 0
    adopt: str = ""
    attempt_dir: str = ""
    nice: int = 0
    contained: bool = False
    listener: Optional[socket.socket] = None
    peers_fd: int = -1
    joins: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)


def become_subreaper() -> None:
    """Make every orphan among our descendants our child."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """In a child: arrange a SIGKILL at the end of its parent `parent`. A fork does not inherit this."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before it could be told to take us along


def has_children() -> bool:
    """Whether this process has a living child; ended ones are reaped."""
    try:
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
    except ChildProcessError:
        return False


def open_fds() -> frozenset[int]:
    """Descriptors of this process that are open now."""
    # The listing's own descriptor is among them, and closed by the time that they are looked at.
    return frozenset(fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_open(fd))


def _is_open(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def spawn(order: Order) -> int:
    """Fork the main process; returns its pid. Raises OSError (nothing runs); in the child, ProgramStarts."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    launcher = os.getpid()
    # A signal that came between fork and reset would reach the launcher's handlers in the child.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with effect("launcher.fork"):
            pid = fork()
            if pid == 0:
                _become(order, launcher)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def fork() -> int:
    """Fork; as `os.fork`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of threads that a preloaded module left
        return os.fork()


def _become(order: Order, launcher: int) -> None:
    what = "cannot set up the process"
    try:
        os.setsid()
        die_with(launcher)
        _reset_signals(for_exec=order.warm_program is None and order.listener is None)
        if order.nice:
            priority.lower(os.getpid(), order.nice, contained=order.contained)
        _redirect(order)
        _raise_oom_score(order.oom_score_adj)
        what = f"cannot change to directory {order.cwd!r}"
        os.chdir(order.cwd)
        what = "cannot wait"
        unseen = waiting.wait_to_see(order.must_see, order.see_ms)
        if unseen:
            _give_up(order, unseen, waiting.NO_DIRECTORY)
        # What is mounted already is better linked to: a mount of a mount would not follow a new one.
        failure = adopt.adopt(order.adopt, order.env.get("CHECKPOINT_DIR", ""), mounting=not order.must_see)
        if failure:
            _give_up(order, failure, adopt.NOT_ADOPTED)
        failure = waiting.wait(order.wait_for, order.wait_ms)
        if failure:
            _give_up(order, failure, waiting.NEVER_READY)
        what = "cannot fork"
        wrapper = 0 if order.listener is None else _fork_wrapper(order)
        if order.warm_program is None and wrapper == 0:
            what = f"cannot run {order.argv[0]!r}"
            with effect("launcher.exec"):
                os.execvpe(order.argv[0], order.argv, order.cold_env)
        if order.warm_program is not None:
            what = "cannot set the environment"
            warm.restore(order.job_env, order.env, order.preloaded)
            stacks.register(order.attempt_dir)
            saves.begin(order.attempt_dir, order.env)
            peers.begin(order.peers_fd)
            if order.joins:
                what = "cannot join the running cluster"
                patches.apply(joining.changes())
            if order.env.get(partial.VARIABLE) == partial.PARTIAL:
                patches.apply(partial.changes())
        os.close(order.status_fd)
    except OSError as error:
        _give_up(order, f"{what}: {error.strerror}", 126 if isinstance(error, PermissionError) else 127)
    except ValueError as error:
        _give_up(order, f"{what}: {error}", 127)  # a NUL, or half a character, in a word or a variable
    raise ProgramStarts(order, wrapper)


def _fork_wrapper(order: Order) -> int:
    """Fork the process that the wrapper runs in; 0 in it."""
    zygote = os.getpid()
    with effect("launcher.fork_wrapper"):
        pid = fork()
    if pid == 0:
        os.setsid()
        die_with(zygote)
        _reset_signals(for_exec=True)
        if order.nice:
            priority.lower(os.getpid(), order.nice, contained=order.contained)
        for fd in order.keep_fds:
            os.close(fd)
    return pid


def _give_up(order: Order, message: str, code: int) -> NoReturn:
    os.write(order.status_fd, message.encode(errors="replace"))
    os.write(2, f"tf-supervisor: {message}\n".encode(errors="replace"))
    os._exit(code)


def _reset_signals(*, for_exec: bool) -> None:
    signal.set_wakeup_fd(-1)
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL)
    if for_exec:
        for number in IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
    else:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _redirect(order: Order) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(order.output_fd, 1)
    os.dup2(order.output_fd, 2)
    keep = order.keep_fds | {0, 1, 2, order.status_fd, order.lock_fd, order.peers_fd}
    if order.listener is not None:
        keep |= {order.listener.fileno()}
    for fd in open_fds() - keep:
        os.close(fd)
    if order.lock_fd >= 0:
        os.set_inheritable(order.lock_fd, True)


def _raise_oom_score(by: int) -> None:
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
            wanted = min(1000, int(file.read()) + max(0, by))
            file.seek(0)
            file.write(str(wanted))
    except OSError:
        pass  # a hint to the kernel: the task runs without it


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
