"""System calls that Python has no function for. Standard library alone, for programs without `site`."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEW_NAMESPACES = {"mnt": 0x0002_0000, "uts": 0x0400_0000, "ipc": 0x0800_0000, "pid": 0x2000_0000}
NEW_NET = 0x4000_0000
NEW_TIME = 0x80
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Give the calling thread namespaces of its own; raises OSError."""
    _check(_libc.unshare(flags))


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount `source` of file system `kind` over `target`; raises OSError."""
    _check(
        _libc.mount(
            source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode() or None
        ),
        target,
    )


def die_with_parent() -> None:
    """SIGKILL for the calling process when the thread that forked it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0))


def become_subreaper() -> None:
    """Orphans among our descendants become our children."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


@contextmanager
def network_of(pid: int | None) -> Iterator[None]:
    """Sockets that this thread makes meanwhile are in the network of process `pid`; None: nothing changes.

    Raises:
        OSError: there is no such process, or it may not be entered.
    """
    if pid is None:
        yield
        return
    ours = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        theirs = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(theirs, NEW_NET))
        finally:
            os.close(theirs)
        try:
            yield
        finally:
            _check(_libc.setns(ours, NEW_NET))
    finally:
        os.close(ours)


@contextmanager
def short(path: Path) -> Iterator[str]:
    """The same file by a name that is short enough for a Unix socket; its directory must exist."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def cgroup_root() -> Path | None:
    """The mount point of version 2 of cgroups; None where there is none."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(point)
    return None


def _check(result: int, what: str = "") -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what or None)
