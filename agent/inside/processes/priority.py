"""The order in which processes get processors: daemons, starting and dying tasks, then training ones.

A task that trains yields (decision 0009). A task that is to die comes first (decision 0046): each of its
threads has to run once more in order to end, and would wait for that behind everything that trains.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress

_FIRST = -20
_USUAL = 0


def lower(pid: int, nice: int, *, contained: bool = False) -> None:
    """Lower the priority of the session that `pid` leads, all its threads; a hint, so failures are ignored.

    Linux may group sessions for scheduling (autogroup), and then weighs groups against each other by a nice
    value of their own. Any process may set that value back to 0; for a thread's value that needs a right.
    Where a session has such a weight and this process has no right, the threads keep their nice value, so
    that a kill can take all of it back. `contained`: the session's container is weighed against others, not
    its threads.
    """
    if contained or may_raise() or not sessions_are_weighed():
        with suppress(OSError):
            os.setpriority(os.PRIO_PGRP, pid, nice)
    weigh_session(pid, nice)


def may_raise() -> bool:
    """Whether this process may set a nice value back to 0: it has CAP_SYS_NICE, or a limit that allows it."""
    return _limit_allows(_USUAL) or _may_take(os.getpriority(os.PRIO_PROCESS, 0) - 1)


def sessions_are_weighed(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> bool:
    """Whether autogroups count for this process: they do outside of all control groups with a CPU weight."""
    try:
        with open(f"{proc}/sys/kernel/sched_autogroup_enabled", encoding="utf-8") as file:
            enabled = file.read().strip() == "1"
        with open(f"{proc}/self/cgroup", encoding="utf-8", errors="replace") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return False
    for _, controllers, path in groups:
        if "cpu" in controllers.split(","):
            return enabled and path == "/"
    for _, controllers, path in groups:
        first = path.strip("/").partition("/")[0]
        if not controllers and first and os.path.exists(f"{cgroups}/{first}/cpu.weight"):
            return False
    return enabled


def shortfall(*, foreign: bool = False) -> str:
    """A text about the priority that a killed task lacks because of missing rights; empty if it runs before
    all others.

    `foreign`: its launcher has another user, with the limits of this process but without its capabilities.
    """
    if _limit_allows(_FIRST) or (not foreign and _may_take(_FIRST)):
        return ""
    if (not foreign and may_raise()) or _limit_allows(_USUAL) or sessions_are_weighed():
        return "a task that is killed runs before those that train, but not before other programs"
    return "a task that is killed waits for a processor like those that train"


def hasten(pid: int) -> None:
    """Let a process with a pending SIGKILL run before all others, as far as this process has the right.

    The weight is of a whole session: it changes when the session's leader is killed, as all of it dies then.

    Call it after the kill, so that no code of the program runs at that priority, and again while the process
    lives: the kernel may accept the weight of a session only later. It is a hint, so failures are ignored.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in map(int, threads):
        with suppress(OSError):
            _raise(thread)
    try:
        if os.getsid(pid) == pid:
            _write_weight(pid, _FIRST)
    except PermissionError:
        weigh_session(pid, _USUAL)
    except OSError:
        pass  # a kernel without autogroups, a session that is gone, or too soon after another wish


def weigh_session(pid: int, nice: int) -> bool:
    """Set only the session's weight against other sessions, which can be undone without privilege.

    False if the kernel asks for a later try: it accepts one such change in a tenth of a second.
    """
    try:
        _write_weight(pid, nice)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a kernel without autogroups, or a session that is gone
    return True


class Weight:
    """The weight of the launcher's own control group, by a descriptor that its agent has given it.

    A container is weighed against others by its control group alone, which its own processes cannot change.
    The agent may be gone when the launcher has to kill, so the launcher gets the right to this one file.
    Without a descriptor all methods do nothing.
    """

    def __init__(self) -> None:
        self._fd = -1
        self._first = self._usual = _USUAL
        self._raised = False

    def given(self, fd: int, first: int, usual: int) -> None:
        """Use `fd` from now on: `first` is the value while processes are killed, `usual` the one after
        that.
        """
        self.close()
        self._fd, self._first, self._usual = fd, first, usual
        if self._raised:
            self._write(first)

    def raise_(self) -> None:
        """Give the control group precedence. Repeat it, as other processes may set the weight too."""
        self._raised = True
        self._write(self._first)

    def restore(self) -> None:
        """Set the usual weight again."""
        if self._raised:
            self._raised = False
            self._write(self._usual)

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, value: int) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.write(self._fd, str(value).encode())


def _limit_allows(nice: int) -> bool:
    limit = resource.getrlimit(resource.RLIMIT_NICE)[0]
    return limit == resource.RLIM_INFINITY or limit >= 20 - nice


def _may_take(nice: int) -> bool:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        os.setpriority(os.PRIO_PROCESS, 0, own)
    except OSError:
        return False
    return True


def _raise(thread: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, thread, _FIRST)
    except PermissionError:
        if os.getpriority(os.PRIO_PROCESS, thread) > _USUAL:
            os.setpriority(os.PRIO_PROCESS, thread, _USUAL)


def _write_weight(pid: int, nice: int) -> None:
    if os.getsid(pid) != pid:
        return  # the session of others, which live on: the weight is all of theirs
    fd = os.open(f"/proc/{pid}/autogroup", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(nice).encode())
    finally:
        os.close(fd)
