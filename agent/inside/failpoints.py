"""A point before and one after each effect, where a test can kill, freeze, hold up or fail this process.

`with effect("commit.rename"):` has the points `commit.rename.before` and `commit.rename.after`; the second is
reached only when the effect did not raise. Nothing happens at either unless `arm` was called and found
`TFSUP_FAILPOINTS` in the environment: a directory that belongs to this user alone, as a test makes it. No
unit file or configuration can set it, and a daemon that finds it says so in its log.

In that directory, `armed/POINT` holds what to do, `ACTION[:MS][@HIT]`: `kill`, `freeze`, `pause:200` or
`error`, at the HIT-th time (default 1) that one process gets there from then on. Whoever does it first
renames that file to `struck/POINT.PID`, so it happens once, and the proof stays. `reached/POINT` says that
some process was there.

`agent/inside/failpoints.py` is the same file, byte for byte, for what runs inside tasks and imports nothing
of the daemons.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

VARIABLE = "TFSUP_FAILPOINTS"
ARMED, REACHED, STRUCK = "armed", "reached", "struck"


def io_error(point: str) -> Exception:
    """The error of a disk that fails."""
    return OSError(errno.EIO, os.strerror(errno.EIO), f"failpoint {point}")


class _Nothing:
    """An effect of a process in which nothing is armed."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_raised: object) -> None:
        pass


class _Effect:
    """An effect of a process in which points may be armed."""

    __slots__ = ("_error", "_name")

    def __init__(self, name: str, error: Callable[[str], Exception]) -> None:
        self._name = name
        self._error = error

    def __enter__(self) -> None:
        _reach(f"{self._name}.before", self._error)

    def __exit__(self, kind: type[BaseException] | None, *_raised: object) -> None:
        if kind is None:
            _reach(f"{self._name}.after", self._error)


_NOTHING = _Nothing()
_installed: list[Callable[[str, Callable[[str], Exception]], None]] = []


def _reach(point: str, error: Callable[[str], Exception]) -> None:
    for each in tuple(_installed):
        each(point, error)


def effect(name: str, error: Callable[[str], Exception] = io_error) -> _Nothing | _Effect:
    """Put the points of this effect around a `with` block; `error` makes what `error` raises there."""
    return _Effect(name, error) if _installed else _NOTHING


def install(reach: Callable[[str, Callable[[str], Exception]], None]) -> Callable[[], None]:
    """Have `reach` called at each point, with what makes the error to raise there; the result ends that."""
    _installed.append(reach)
    return lambda: _installed.remove(reach)


def arm(environ: Mapping[str, str]) -> str:
    """Heed `TFSUP_FAILPOINTS` from now on; returns the directory, empty when it is not set.

    Raises ValueError when it names anything but a directory that nobody else can write to.
    """
    root = environ.get(VARIABLE, "")
    if not root:
        return ""
    try:
        found = Path(root).stat()
    except OSError as error:
        raise ValueError(f"{VARIABLE}={root}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ValueError(f"{VARIABLE}={root}: this is not a directory that only this user can write to")
    install(_Directory(root).reach)
    return root


class _Directory:
    """The directory of failpoints: orders by a test, and traces of reached and struck points."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._hits: dict[tuple[str, int, int], int] = {}

    def reach(self, point: str, error: Callable[[str], Exception]) -> None:
        """Leave a trace, and do what is asked for here."""
        os.close(os.open(self._path(REACHED, point), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            fd = os.open(self._path(ARMED, point), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            now, text = os.fstat(fd), os.read(fd, 100).decode()
        finally:
            os.close(fd)
        order = (point, now.st_ino, now.st_mtime_ns)
        self._hits[order] = self._hits.get(order, 0) + 1
        what, _, hit = text.strip().partition("@")
        if self._hits[order] < int(hit or 1):
            return
        try:
            Path(self._path(ARMED, point)).rename(self._path(STRUCK, f"{point}.{os.getpid()}"))
        except FileNotFoundError:
            return  # another process was faster
        _strike(what, point, error)

    def _path(self, kind: str, point: str) -> str:
        return f"{self._root}/{kind}/{point}"


def _strike(what: str, point: str, error: Callable[[str], Exception]) -> None:
    action, _, pause_ms = what.partition(":")
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "pause":
        time.sleep(int(pause_ms) / 1000)
    elif action == "error":
        raise error(point)
    else:
        raise ValueError(f"failpoint {point}: {what!r} is not an action")
