"""Messages between agents and a mount process: files in `PARENT/.mounts/JOB_UUID/`, on the node's disk.

    g7.json   the wish: the live directory and its mount point. Without it the mount ends.
    g7.lock   held by the process that serves the mount, as long as it lives.
    g7.beat   written by its loop: the wish that it serves, and a sign of progress.
    g7.want   written by agents while they use the mount: without it the mount ends by itself.
    g7.failed the time at which a program last got EIO because the store did not answer.
    g7.ask    of a mount of data: when an agent last wanted to know whether its source can be read.
    g7.answer the answer to that.

Several agents of one machine that share PARENT share its mounts: the lock says whether one must be started.
They are not in `PARENT/JOB_UUID`, where the job's programs may write, even from a container: an agent opens
the store in a wish, and kills the process in a beat.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from recovery.io.files import mapped_errors, read_small
from supervisor.adapters.failpoints import effect
from supervisor.adapters.files.hadoop import HadoopSettings
from supervisor.contract import codec
from supervisor.contract.errors import IncompatibleRecord, NotFound

MOUNTS = ".mounts"
SPOOL = "spool"
_MOST_BYTES = 1 << 16
_HADOOP = HadoopSettings()


@dataclass(frozen=True, slots=True)
class MountWish:
    """One generation's mount.

    Attributes:
        uri: the job's store.
        live: the directory in the store that it shows.
        directory: the mount point, an absolute path.
        call_ms: limit for one call to the store; then it fails with EIO.
        flush_ms: limit for closing a file of any size.
        user: (uid, gid) of the owner of all its files, who alone may use it, beside root; None: our own.
        data: it shows the directory of `uri` itself, to be read alone. `uri` may name a user of HDFS then.
    """

    job: str
    job_uuid: str
    generation: int
    uri: str
    live: str
    directory: str
    call_ms: int = 45_000
    flush_ms: int = 600_000
    hadoop: HadoopSettings = _HADOOP
    user: tuple[int, int] | None = None
    data: bool = False


@dataclass(frozen=True, slots=True)
class MountBeat:
    """A sign of life. `at_ms` is on CLOCK_BOOTTIME; `ready`: the kernel has mounted it.

    `stalled`: a program waits for the store, and has for a while.
    """

    pid: int
    start_ticks: int
    at_ms: int
    live: str
    ready: bool
    stalled: bool = False


class Trouble(Enum):
    """The kinds of reasons why a source cannot be read."""

    NONE = "none"
    ABSENT = "absent"
    REFUSED = "refused"
    AWAY = "away"


@dataclass(frozen=True, slots=True)
class MountAnswer:
    """Whether the source of a mount of data can be read: the answer to the question of `asked_ms`."""

    asked_ms: int
    trouble: Trouble = Trouble.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MountTime:
    """The time of the last event of a kind, on CLOCK_BOOTTIME."""

    at_ms: int


class MountFiles:
    """The files of one generation's mount; `parent` is its job's directory. All methods block."""

    def __init__(self, parent: Path, generation: int) -> None:
        self.home = mounts_home(parent)
        self._stem = f"g{generation}"
        self.wish_path = self.home / f"{self._stem}.json"
        self.log_path = self.home / f"{self._stem}.log"
        self.spool = self.home / SPOOL

    def read_wish(self) -> MountWish | None:
        """The wish; None if nothing should be mounted."""
        return _read(self.wish_path, MountWish)

    def read_beat(self) -> MountBeat | None:
        """The last sign of life of any process; None before the first."""
        return _read(self._path("beat"), MountBeat)

    def write_wish(self, wish: MountWish) -> None:
        """Replace it."""
        with mapped_errors(f"write {self.wish_path}"), effect("mount.make_spool"):
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.spool.mkdir(exist_ok=True)
        _write(self.wish_path, codec.encode(wish))

    def write_beat(self, beat: MountBeat) -> None:
        """Replace it."""
        _write(self._path("beat"), codec.encode(beat))

    def write_wanted(self, now_ms: int) -> None:
        """Note that an agent uses the mount."""
        _write(self._path("want"), codec.encode(MountTime(now_ms)))

    def wanted_ms(self) -> int | None:
        """The time at which an agent last used the mount; None before the first."""
        return self._time("want")

    def write_failed(self, now_ms: int) -> None:
        """Note that a program gets an error because of the store."""
        _write(self._path("failed"), codec.encode(MountTime(now_ms)))

    def failed_ms(self) -> int | None:
        """The time at which a program last got an error because of the store; None before the first."""
        return self._time("failed")

    def write_ask(self, now_ms: int) -> None:
        """Ask whether the source can be read."""
        _write(self._path("ask"), codec.encode(MountTime(now_ms)))

    def asked_ms(self) -> int | None:
        """The time of the last question whether the source can be read; None before the first."""
        return self._time("ask")

    def write_answer(self, answer: MountAnswer) -> None:
        """Answer it."""
        _write(self._path("answer"), codec.encode(answer))

    def read_answer(self) -> MountAnswer | None:
        """The last answer; None before the first."""
        return _read(self._path("answer"), MountAnswer)

    def served(self) -> bool:
        """Whether a process holds the lock."""
        with self.lock() as mine:
            return not mine

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Try to take the lock for the block; yields whether it is ours."""
        path = self._path("lock")
        with mapped_errors(f"lock {path}"):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with mapped_errors(f"lock {path}"):
                mine = _locked(fd)
            yield mine
        finally:
            os.close(fd)

    def forget_wish(self) -> None:
        """Remove the wish, so that no agent starts the mount."""
        with mapped_errors(f"forget {self.wish_path}"), effect("mount.forget_wish"):
            self.wish_path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove all files of the mount."""
        with mapped_errors(f"forget {self.wish_path}"):
            for name in ("json", "beat", "want", "failed", "ask", "answer", "log", "lock"):
                with effect("mount.forget"):
                    self._path(name).unlink(missing_ok=True)

    def _time(self, kind: str) -> int | None:
        found = _read(self._path(kind), MountTime)
        return found.at_ms if found is not None else None

    def _path(self, kind: str) -> Path:
        return self.home / f"{self._stem}.{kind}"


def mounts_home(parent: Path) -> Path:
    """The directory of the files of all mounts of a job; `parent` is the job's directory."""
    return parent.parent / MOUNTS / parent.name


def wished(parent: Path) -> tuple[MountWish, ...]:
    """All wishes for mounts below `parent`, including those of agents that are gone. Blocking."""
    found = []
    for path in sorted(mounts_home(parent).glob("g*.json")):
        wish = _read(path, MountWish)
        if wish is not None:
            found.append(wish)
    return tuple(found)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: Path, kind: type[codec.T]) -> codec.T | None:
    try:
        with mapped_errors(f"read {path}"):
            raw = read_small(path, _MOST_BYTES)
        return codec.decode(kind, raw)
    except (NotFound, IncompatibleRecord):
        return None


def _write(path: Path, raw: bytes) -> None:
    with mapped_errors(f"write {path}"):
        temporary = path.with_name(f".{path.name}-{os.getpid()}")
        with effect(f"mount.write_{path.suffix[1:]}"):
            temporary.write_bytes(raw)
            temporary.replace(path)


def start_ticks(pid: int) -> int:
    """The start time of a process in ticks since boot; -1 if it is gone or a zombie."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return -1
    return -1 if fields[0] in {b"Z", b"X"} else int(fields[19])


def stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat of a process or thread, from its state on.

    Raises OSError if it is gone.
    """
    raw = Path(f"/proc/{pid}/stat").read_bytes()
    # The command name is in parentheses and may itself hold spaces and parentheses.
    return raw[raw.rindex(b")") + 2 :].split()
