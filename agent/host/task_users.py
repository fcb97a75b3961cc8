"""The users of tasks: one for all jobs of a node, or one of a range for each job.

The user of a job is recorded only on the disk: it is the group of the job's directory below
`checkpoint_parent`, which no other user may enter. So it survives any loss, agents of one machine that share
that directory agree on it, and it is free again when the directory is gone.
"""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent.inside.processes import fence
from recovery.io.files import mapped_errors
from supervisor.adapters.failpoints import effect
from supervisor.adapters.files.config.docker import range_of
from supervisor.contract.errors import NoRoom, UserError

User = tuple[int, int]
"""(uid, gid)."""

LOCK = ".users"
"""A file beside the jobs' directories, with one line of `UserRange.homes` for each agent that shares them."""
_MOST_BYTES = 64 << 10
SHARED = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path("/dev/mqueue"))
"""Directories in which tasks may leave files that outlive their job, where they are mounted."""
SYSTEM_V = Path("/proc/sysvipc")
"""The directory of a table for each kind of System V IPC objects, which outlive their job too."""
MOST_KNOWN = 100
"""Most numbers of a range that are looked up as users or groups of this machine: a directory service is
slow."""
MOST_ENTRIES = 100_000
"""Most entries to look at in each directory. All agents of the machine wait for that."""
_NOBODY = -1


class TaskUsers(Protocol):
    """The users of the tasks of one agent."""

    @property
    def mode(self) -> int:
        """The mode of a job's directory below `checkpoint_parent`, which its tasks must enter."""

    @property
    def own(self) -> User:
        """The user for the agent's rehearsals of kills."""

    def has(self, uid: int) -> bool:
        """Whether tasks of a job may have this uid."""

    def has_group(self, gid: int) -> bool:
        """Whether tasks of a job may have this gid."""

    def is_of_one_job(self, uid: int) -> bool:
        """Whether a uid belongs to the tasks of one job, and to no other process of this machine."""

    def all_homes(self) -> frozenset[str]:
        """The directories with the launchers of all agents that share these users.

        Raises the errors of `mapped_errors`.
        """

    def of(self, job_uuid: str) -> User:
        """The user of a job's tasks on this node, from its first use until no file of the job is left here.

        Raises NoRoom if none is free, and the errors of `mapped_errors`.
        """


@dataclass(frozen=True, slots=True)
class OneUser:
    """One user for the tasks of all jobs."""

    uid: int
    gid: int

    @property
    def mode(self) -> int:
        """All users may enter it."""
        return 0o711

    @property
    def own(self) -> User:
        """The user of the tasks."""
        return self.uid, self.gid

    def has(self, uid: int) -> bool:
        """Whether it is the user's."""
        return uid == self.uid

    def has_group(self, gid: int) -> bool:
        """Whether it is the user's."""
        return gid == self.gid

    def is_of_one_job(self, uid: int) -> bool:
        """False: all jobs share it."""
        del uid
        return False

    def all_homes(self) -> frozenset[str]:
        """Empty: agents do not register."""
        return frozenset()

    def of(self, job_uuid: str) -> User:
        """The one user."""
        del job_uuid
        return self.uid, self.gid


@dataclass(frozen=True, slots=True)
class UserRange:
    """A uid of its own for each job, and the gid of the same number. `low` is for no job.

    Attributes:
        checkpoints, attempts: they hold a directory for each job, by UUID.
        homes: holds a directory for each launcher, which belongs to its job's user.
    """

    low: int
    high: int
    checkpoints: Path
    attempts: Path
    homes: Path

    @property
    def mode(self) -> int:
        """Only its group and root may enter it."""
        return 0o710

    @property
    def own(self) -> User:
        """The first of the range."""
        return self.low, self.low

    def has(self, uid: int) -> bool:
        """Whether a job has this uid, or may get it."""
        return self.low < uid <= self.high

    def has_group(self, gid: int) -> bool:
        """Whether a job has this gid, or may get it."""
        return self.has(gid)

    def is_of_one_job(self, uid: int) -> bool:
        """Whether it is in the range."""
        return self.has(uid)

    def all_homes(self) -> frozenset[str]:
        """The directories that agents have registered."""
        with mapped_errors(f"read {self.checkpoints / LOCK}"):
            try:
                fd = os.open(self.checkpoints / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                return frozenset()
            try:
                return frozenset(map(os.fsdecode, _lines(fd)))
            finally:
                os.close(fd)

    def register(self) -> None:
        """Have this agent's `homes` among `all_homes`. Raises the errors of `mapped_errors`."""
        own = os.path.realpath(self.homes)
        if own in self.all_homes():
            return
        with mapped_errors(f"register {own} in {self.checkpoints / LOCK}"), _locked(self.checkpoints) as fd:
            # A line without its end is of an agent that was killed while it wrote.
            known = b"".join(each + b"\n" for each in _lines(fd))
            with effect("task_users.register"):
                os.ftruncate(fd, len(known))
                os.pwrite(fd, os.fsencode(own) + b"\n", len(known))

    def of(self, job_uuid: str) -> User:
        """The group of the job's directory. If there is none, the directory is made and gets a free one."""
        directory = self.checkpoints / job_uuid
        with mapped_errors(f"give job {job_uuid} a user"):
            uid = _group_of(directory)
            if not self.has(uid):
                with _locked(self.checkpoints):
                    uid = self._give(directory)
        return uid, uid

    def _give(self, directory: Path) -> int:
        uid = _group_of(directory)
        if self.has(uid):
            return uid
        uid = self._free(directory.name)
        with effect("task_users.give"):
            directory.mkdir(mode=0o700, exist_ok=True)
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fchown(fd, -1, uid)
                os.fchmod(fd, self.mode)
                os.fsync(fd)
            finally:
                os.close(fd)
        return uid

    def _free(self, job_uuid: str) -> int:
        """The first free uid, from a start that differs from job to job, so that numbers are reused late."""
        before = _owner_of(self.attempts / job_uuid)
        taken = self._taken(job_uuid)
        if self.has(before) and before not in taken and not _name_of(before):
            return before
        count = self.high - self.low
        first = zlib.crc32(job_uuid.encode()) % count
        known = 0
        for number in range(count):
            uid = self.low + 1 + (first + number) % count
            if uid in taken:
                continue
            name = _name_of(uid)
            if not name:
                return uid
            known += 1
            if known == MOST_KNOWN:
                raise NoRoom(
                    f"{self.low}-{self.high} is a range of this machine's users, as {name}: take another"
                )
        raise NoRoom(
            f"all {count} users from {self.low + 1} to {self.high} are taken by jobs that have processes or "
            "files on this node, or by users of this machine: give it a larger range, or delete files of "
            "old jobs"
        )

    def _taken(self, job_uuid: str) -> set[int]:
        """Uids that own a process, files or IPC objects here, or a job's directory."""
        living = set(map(fence.user_of, fence.pids()))
        own = {_group_of(each) for each in _entries(self.checkpoints)}
        own.update(_owner_of(each) for each in _entries(self.homes))
        for attempts in _entries(self.attempts):
            uid = _owner_of(attempts)
            if uid not in own | living and self.has(uid) and attempts.name != job_uuid:
                # Only the output of a job that is over holds this uid: the agent alone needs that.
                with effect("task_users.take_back"):
                    os.chown(attempts, 0, 0, follow_symlinks=False)
            elif attempts.name != job_uuid:
                own.add(uid)
        for directory in SHARED:
            own |= _owners_in(directory)
        for table in _entries(SYSTEM_V):
            own |= _owners_by(table)
        return own | living


def users_of(configured: str | None, field: str, checkpoints: Path, attempts: Path, homes: Path) -> TaskUsers:
    """Read the users that a `field` of the configuration names.

    Raises UserError if this agent cannot make files for them.
    """
    own = (os.geteuid(), os.getegid())
    span = range_of(configured or "")
    if span is not None:
        if own[0] != 0:
            raise UserError(f"{field} {configured}: only an agent that is root can give each job a user")
        return UserRange(*span, checkpoints, attempts, homes)
    if configured is None:
        return OneUser(1000, 1000) if own[0] == 0 else OneUser(*own)
    uid, gid = map(int, configured.split(":"))
    if own[0] != 0 and (uid, gid) != own:
        raise UserError(
            f"{field} {configured}: an agent that is not root can only use its own, {own[0]}:{own[1]}"
        )
    return OneUser(uid, gid)


def user_named(uid: int) -> str:
    """The name of the uid's user on this machine; empty if there is none.

    No list of users contains those of a directory service such as LDAP, so each number is looked up. Blocks.
    """
    with suppress(KeyError):
        return f"user {pwd.getpwuid(uid).pw_name}"
    return ""


def _name_of(number: int) -> str:
    """The name of the user or group with this number; empty if there is none."""
    with suppress(KeyError):
        return user_named(number) or f"group {grp.getgrgid(number).gr_name}"
    return ""


@contextmanager
def _locked(directory: Path) -> Iterator[int]:
    """The open file LOCK, locked against all other agents of this machine that share `directory`.

    Tasks cannot open it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def _lines(fd: int) -> list[bytes]:
    return os.pread(fd, _MOST_BYTES, 0).split(b"\n")[:-1]


def _entries(directory: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        return list(directory.iterdir())
    return []


def _owners_in(directory: Path) -> set[int]:
    """The owners of a directory's entries.

    Raises NoRoom beyond MOST_ENTRIES, as the rest may belong to a job.
    """
    found = set[int]()
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if number == MOST_ENTRIES:
                raise NoRoom(
                    f"{directory} has more than {MOST_ENTRIES} entries, of which each may hold a user: "
                    "remove old ones"
                )
            with suppress(FileNotFoundError):
                found.add(entry.stat(follow_symlinks=False).st_uid)
    return found


def _owners_by(table: Path) -> set[int]:
    """The owners and creators in a table of IPC objects: both may use and remove an object."""
    names, *objects = map(str.split, table.read_text().splitlines())
    columns = [names.index(each) for each in ("uid", "cuid")]
    return {int(each[column]) for each in objects for column in columns}


def _owner_of(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.lstat().st_uid
    return _NOBODY


def _group_of(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.lstat().st_gid
    return _NOBODY
