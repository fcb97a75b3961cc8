"""Owners of the files that tasks write to, if tasks run as another user than their agent."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from agent.host.task_users import TaskUsers, User, UserRange
from supervisor.adapters.failpoints import effect

SUMMARIES = "summaries"
"""The directory beside a job's generations for TensorBoard's files of all of them."""
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_DEEP = 32
TASK_UMASK = 0o022
"""The umask of tasks, as in containers. The agent's own umask gives other users no access to its files."""


def give(path: Path, user: User) -> None:
    """Give a path to a user; without root that is the agent's own user already. Raises OSError."""
    if os.geteuid() == 0:
        os.chown(path, *user, follow_symlinks=False)


class Credentials(TypedDict, total=False):
    """Arguments of `subprocess` that start a process of a task."""

    umask: int
    user: int
    group: int
    extra_groups: list[int]


def credentials(user: User | None) -> Credentials:
    """Arguments to start a process as that user, without the agent's groups; None: as the agent's own
    user.
    """
    if user is None:
        return {"umask": TASK_UMASK}
    return {"umask": TASK_UMASK, "user": user[0], "group": user[1], "extra_groups": []}


@dataclass(frozen=True, slots=True)
class TaskDirectories:
    """The directories on this node for tasks of another user than the agent's.

    Attributes:
        attempts, checkpoints: they hold a directory for each job, by UUID.
        lock_dir: the port locks.
    """

    users: TaskUsers
    attempts: Path
    checkpoints: Path
    lock_dir: Path

    def make(self, job_uuid: str, user: User) -> None:
        """Make a job's directories, and give exactly those that its tasks write to to their user.

        Raises OSError.
        """
        attempts, checkpoints = (each / job_uuid for each in (self.attempts, self.checkpoints))
        with effect("runtime.make_directories"):
            attempts.mkdir(mode=0o700, parents=True, exist_ok=True)
            give(attempts, user)
            checkpoints.mkdir(parents=True, exist_ok=True)
            # The agent's own umask may keep everybody out of what holds the generations' directories.
            checkpoints.chmod(self.users.mode)
            summaries = checkpoints / SUMMARIES
            summaries.mkdir(exist_ok=True)
            give(summaries, user)
        if not self.lock_dir.stat().st_mode & 0o002:
            give(self.lock_dir, user)
        if isinstance(self.users, UserRange):
            with effect("runtime.take_locks"):
                _take_locks(self.lock_dir, self.users)


def _take_locks(directory: Path, users: TaskUsers) -> None:
    """Give all port locks to root: a job could otherwise block the locks that it has made."""
    with os.scandir(directory) as entries:
        found = [entry for entry in entries if users.has(entry.stat(follow_symlinks=False).st_uid)]
    for entry in found:
        # Tasks may be at work on them. A file that is not there any more is left to the next time.
        with suppress(OSError):
            if not entry.is_file(follow_symlinks=False):
                Path(entry.path).unlink()
                continue
            fd = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                seen = os.fstat(fd)
                if stat.S_ISREG(seen.st_mode) and users.has(seen.st_uid) and seen.st_nlink == 1:
                    os.fchown(fd, 0, 0)
                    os.fchmod(fd, 0o666)
            finally:
                os.close(fd)


def give_tree(directory: Path, user: User) -> None:
    """Give a directory and all in it to a user.

    The directory comes last, so that the user cannot interfere.

    It may belong to that user already, and be in use: a link that replaces an entry meanwhile is not
    followed. Entries deeper than any checkpoint are left alone.
    """
    if os.geteuid() != 0:
        return
    fd = os.open(directory, _LISTED)
    try:
        _give_below(fd, user, 1)
        os.fchown(fd, *user)
    finally:
        os.close(fd)


def _give_below(fd: int, user: User, level: int) -> None:
    with os.scandir(fd) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        with suppress(FileNotFoundError):
            if is_directory and level < _MOST_DEEP:
                with suppress(NotADirectoryError):
                    inner = os.open(name, _LISTED, dir_fd=fd)
                    try:
                        _give_below(inner, user, level + 1)
                    finally:
                        os.close(inner)
            os.chown(name, *user, dir_fd=fd, follow_symlinks=False)
