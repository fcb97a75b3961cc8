"""What a dead attempt leaves in memory: files of directories in memory, and System V IPC objects.

It would fill what the next attempt needs, and hold its names. The launcher removes it once the attempt is
confirmed dead, and before the next one starts. The user must belong to one job alone: in a container, or by a
uid that the agent gave to the job.
"""

from __future__ import annotations

import ctypes
import os
import stat
from contextlib import suppress
from typing import Iterator, List, Set, Tuple, Union

from ..failpoints import effect
from ..processes import fence

OF_IPC = ("/dev/shm", "/dev/mqueue")
"""Where POSIX shared memory, semaphores and message queues have their names."""

_SYSTEM_V = (("shm", "shmctl"), ("sem", "semctl"), ("msg", "msgctl"))
_REMOVE = 0

File = Tuple[int, int]
"""Device and inode."""

Object = Tuple[str, int]
"""A System V object: the call that removes it, and its number."""


class Remains:
    """The remains of attempts in `directories`; without any nothing is removed, as others have the same user.

    What the launcher's own imports have made stays.
    """

    def __init__(self, directories: Tuple[str, ...]) -> None:
        self._directories = directories
        self._before: Set[Union[File, Object]] = set()
        self._own: Set[Union[File, Object]] = set()

    def importing(self) -> None:
        """Remove what attempts of earlier launchers left. What is made from now on is the launcher's own."""
        self.clear()
        self._before = self._all()

    def imported(self) -> None:
        """From now on nothing more is the launcher's own."""
        self._own = self._all() - self._before

    def full(self) -> str:
        """The directories that are full, for people; empty if none is."""
        found = []
        for each in self._directories:
            with suppress(OSError):
                disk = os.statvfs(each)
                if disk.f_blocks and not disk.f_bavail:
                    found.append(f"its {each} of {disk.f_blocks * disk.f_frsize >> 20} MiB is full")
        return "; ".join(found)

    def clear(self) -> None:
        """Remove all that is there now, unless another program of this user lives: it may be its own."""
        if not self._directories:
            return
        # Listed before the look at processes: what one makes that starts meanwhile is not in the list.
        files = [each for each in self._files() if each[1] not in self._own]
        objects = [each for each in _objects() if each not in self._own]
        if not (files or objects) or _somebody_lives():
            return
        for path, file, is_directory in files:
            with suppress(OSError), effect("launcher.clear"):
                if _identity(os.lstat(path)) == file:
                    (os.rmdir if is_directory else os.unlink)(path)
        libc = ctypes.CDLL(None, use_errno=True)
        for call, number in objects:
            with effect("launcher.clear_object"):
                # The second argument of semctl is the number of a semaphore, which a removal ignores.
                getattr(libc, call)(*((number, 0, _REMOVE) if call == "semctl" else (number, _REMOVE, None)))

    def _all(self) -> Set[Union[File, Object]]:
        return {file for _, file, _ in self._files()}.union(_objects())

    def _files(self) -> Iterator[Tuple[str, File, bool]]:
        """Each file and directory of this user, the deepest first; nothing that is mounted below."""
        found: List[Tuple[str, File, bool]] = []
        for top in self._directories:
            with suppress(OSError):
                device = os.lstat(top).st_dev
                waiting = [top]
                while waiting:
                    waiting += _look(waiting.pop(), device, found)
        return reversed(found)


def _look(directory: str, device: int, found: List[Tuple[str, File, bool]]) -> List[str]:
    """Add the entries of a directory to `found`; returns those that are directories."""
    below = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                is_directory = stat.S_ISDIR(status.st_mode)
                if status.st_dev != device:
                    continue
                if is_directory:
                    below.append(entry.path)
                if status.st_uid == os.getuid():
                    found.append((entry.path, _identity(status), is_directory))
    return below


def _objects() -> Iterator[Object]:
    """The System V objects of this user."""
    for kind, call in _SYSTEM_V:
        with suppress(OSError):
            with open(f"/proc/sysvipc/{kind}", encoding="utf-8") as table:
                names, *rows = [line.split() for line in table]
            number, owner = names.index(f"{kind}id" if kind != "msg" else "msqid"), names.index("uid")
            for row in rows:
                if int(row[owner]) == os.getuid():
                    yield call, int(row[number])


def _somebody_lives() -> bool:
    """Whether a program of this user lives: a process below another one of the user.

    Launchers are below the agent, or are the first of a container, and so is what an operator runs there.
    """
    own = os.getuid()
    return any(
        fence.user_of(each.pid) == own and fence.user_of(each.parent) == own
        for each in fence.all_processes().values()
        if each.pid != os.getpid()
    )


def _identity(status: os.stat_result) -> File:
    return status.st_dev, status.st_ino
