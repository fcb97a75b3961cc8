"""The keeper's calls of the kernel: children that cannot outlive it, and the list of its descendants."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from agent.inside.processes import priority

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
ROTATE_BYTES = 16 * 1024 * 1024


def become_subreaper() -> None:
    """Make orphans among our descendants our children, such as a launcher whose agent died."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def spawn(argv: Sequence[str], cwd: Path, env: Mapping[str, str], log: Path) -> int:
    """Start a child in a process group of its own that is killed when this process dies; returns its pid.

    Raises OSError when there is no such program. Call it from the main thread: PDEATHSIG follows threads.
    """
    with suppress(FileNotFoundError):
        if log.stat().st_size > ROTATE_BYTES:
            log.replace(log.with_suffix(".log.1"))
    program = _find(argv[0], env)
    parent = os.getpid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        pid = os.fork()
        if pid == 0:
            _become(program, argv, cwd, env, output, parent)
    finally:
        os.close(output)
    return pid


def descendants(root: int) -> list[int]:
    """Pids of all descendants of a process, zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in ("Z", "X"):
                    children.setdefault(int(parent), []).append(int(entry.name))
    found: list[int] = []
    queue = [root]
    while queue:
        fresh = children.pop(queue.pop(), [])
        found += fresh
        queue += fresh
    return found


def kill_descendants(root: int, deadline_s: float) -> list[int]:
    """SIGKILL every descendant until none is left; returns those that are still there at the deadline."""
    deadline = time.monotonic() + deadline_s
    while left := descendants(root):
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                priority.hasten(pid)
        reap()
        if time.monotonic() > deadline:
            return left
        time.sleep(0.01)
    return []


def reap() -> list[tuple[int, int]]:
    """Collect every child that has ended: (pid, exit code, or minus the signal)."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def _become(
    program: str, argv: Sequence[str], cwd: Path, env: Mapping[str, str], output: int, parent: int
) -> None:
    """Become the program, in the child. Never returns."""
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.chdir(cwd)
        os.execve(program, list(argv), dict(env))
    except OSError as error:
        os.write(2, f"cannot execute {program}: {error}\n".encode())
    finally:
        os._exit(127)


def _find(program: str, env: Mapping[str, str]) -> str:
    for directory in env.get("PATH", os.defpath).split(os.pathsep) if "/" not in program else [""]:
        candidate = Path(directory) / program
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return str(candidate)
    raise FileNotFoundError(f"{program}: no such program in PATH")


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
