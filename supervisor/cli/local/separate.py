"""`local up --separate`: each agent and its tasks see a checkpoint directory of their node's own.

On real machines each node has a disk. Here the agents of one machine share one directory, unless each begins
in a mount namespace of its own, where a directory of its node covers the shared one. The path is the same in
all of them.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def separate(own: Path, shown: Path, parent: int) -> None:
    """Show `own` at the path `shown`, for this process and its children. Both directories are made.

    Users other than root need a user namespace for that. `parent`: the process whose end ends this one;
    PDEATHSIG is set again, as it does not survive the change of namespace. Raises OSError.
    """
    for directory in (own, shown):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _enter()
    _mount(b"none", b"/", _MS_REC | _MS_PRIVATE)
    _mount(os.fsencode(own), os.fsencode(shown), _MS_BIND | _MS_REC)
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(0)


def objection(scratch: Path) -> str:
    """The reason why this user may not do that on this machine; empty if it works.

    It is tried in a child, in `scratch`.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            separate(scratch / "own", scratch / "shown", os.getppid())
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status == 0:
        return ""
    return (
        "--separate needs root, or user namespaces, which this machine does not allow this user "
        "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)"
    )


def _enter() -> None:
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        _check(_libc.unshare(_CLONE_NEWNS))
        return
    _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(f"{uid} {uid} 1")
    (own / "gid_map").write_text(f"{gid} {gid} 1")


def _mount(source: bytes, target: bytes, flags: int) -> None:
    _check(_libc.mount(source, target, None, ctypes.c_ulong(flags), None))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
