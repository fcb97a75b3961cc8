"""The lives of an embedded cluster whose directory several machines share: one machine at a time has it.

The lock of the directory tells keepers of one machine apart, and its name has the boot of that machine:
between machines not every file system knows locks, and some keep those of a dead one.
So each start of the cluster is a life with a number. Its file appears whole, by link(2), in which one of two
machines succeeds at most. Its keeper writes there every few seconds that it goes on. Another machine begins
the next life when the file says that this one has ended, or has not changed for TAKE_S. A keeper that cannot
write for STOP_S, or sees a later life, kills its cluster: etcd answers reads without any disk.

Etcd's data belong to one life. A life that copies them says so when the copy is whole, and then looks for a
successor; a successor looks at its predecessor once it is there itself. So one of the two sees the other,
however long either stood still, and no directory is removed that the other reads.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path

from supervisor.adapters.files.private import publish, sync
from supervisor.contract.errors import Conflict, TfSupervisorError, Unreachable

BEAT_S, STOP_S, TAKE_S = 3.0, 60.0, 90.0
LOOK_S = 0.5
FIRST_DATA = "data"
_LOOKS = 3


def boot_id() -> str:
    """The id of this machine's boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def now_s() -> float:
    """Seconds on a clock that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One start of the cluster.

    Attributes:
        host, boot: the machine, and its boot id.
        data: the name of etcd's directory.
        source: the directory that it is a copy of; empty: it is no copy.
        ready: `data` is there and whole. Etcd has not run before.
        beat: counts how often its keeper said that it goes on.
        ended: everything of it has ended.
    """

    number: int
    host: str
    boot: str
    data: str
    source: str = ""
    ready: bool = False
    beat: int = 0
    ended: bool = False


_TYPES = [int, str, str, str, str, bool, int, bool]


@dataclass(frozen=True, slots=True)
class Claim:
    """A life that this machine has begun.

    Attributes:
        before: the life that it follows; None for the first.
        since_s: a moment before it began, on the clock of `now_s`.
    """

    life: Life
    before: Life | None
    since_s: float


@dataclass(frozen=True, slots=True)
class Lives:
    """The files of all lives. Only the newest counts.

    Attributes:
        boot: the boot of this machine.
    """

    directory: Path
    boot: str = field(default_factory=boot_id)

    def newest(self) -> Life | None:
        """The newest life; None before the first. Raises Unreachable."""
        for left in reversed(range(_LOOKS)):
            try:
                numbers = self._numbers()
                return self._read(max(numbers)) if numbers else None
            except OSError as error:
                # A file that another machine replaces meanwhile may be stale, once.
                if not left:
                    raise Unreachable(_what(error)) from error
        raise AssertionError

    def read(self, number: int) -> Life:
        """One life. Raises Unreachable."""
        with file_errors():
            return self._read(number)

    def is_here(self, life: Life) -> bool:
        """Whether a life is of this machine since its boot."""
        return life.boot == self.boot

    def claim(self, take_s: float = TAKE_S) -> Claim:
        """Begin the next life. The caller holds the lock of this machine.

        Raises Conflict if a cluster of another machine goes on, Unreachable where the directory is not there.
        """
        with file_errors():
            self.directory.mkdir(mode=0o700, exist_ok=True)
        before = self._last(take_s)
        since_s = now_s()
        claim = Claim(self._after(before), before, since_s)
        with file_errors(), self._fresh(claim.life) as (fresh, path):
            if not publish(fresh, path):
                raise self._too_late()
        self.check(claim.life, since_s)
        # From here on the former life sees this one. What it wrote before that is read now.
        if before is not None and (now := self.read(before.number)) != before:
            self.give_back(replace(claim, before=now))
            raise Conflict(f"the cluster in {self.directory.parent} went on meanwhile; try again")
        return claim

    def check(self, life: Life, since_s: float, stop_s: float = STOP_S) -> None:
        """Raise Conflict unless this life is the newest, is of this machine, and was so a moment ago."""
        newest = self.newest()
        if newest is None or newest.number != life.number or not self.is_here(newest):
            raise self._too_late()
        if now_s() - since_s > stop_s:
            raise Conflict(f"{self.directory.parent}, or this machine, is too slow; try again")

    def give_back(self, claim: Claim) -> None:
        """Let a life that has started nothing say what the one before it said. Raises Unreachable."""
        former = claim.before or replace(claim.life, ended=True)
        self.write(replace(former, number=claim.life.number))

    def write(self, life: Life) -> None:
        """Write what there is to say of our own life. Raises Unreachable."""
        with file_errors(), self._fresh(life) as (fresh, path):
            fresh.replace(path)

    def forget_before(self, life: Life) -> None:
        """Remove the files of former lives. Raises OSError."""
        for each in self._numbers():
            if each < life.number:
                (self.directory / str(each)).unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        try:
            return [int(each.name) for each in self.directory.iterdir() if each.name.isdecimal()]
        except FileNotFoundError:
            return []

    def _read(self, number: int) -> Life:
        path = self.directory / str(number)
        try:
            life = Life(**json.loads(path.read_bytes()))
            if (life.number, [type(each) for each in astuple(life)]) != (number, _TYPES):
                raise ValueError(life)
            return life
        except (ValueError, TypeError) as error:
            raise Unreachable(
                f"{path} is damaged, or of another version of tf-supervisor; bring it back, or choose "
                "another --state"
            ) from error

    @contextmanager
    def _fresh(self, life: Life) -> Iterator[tuple[Path, Path]]:
        """A whole file of a life under another name, and the path that it is for."""
        fresh = self.directory / f"{self.boot}.new"
        # A write that was cut off may have left a second name of a life's file; that file must stay as it is.
        fresh.unlink(missing_ok=True)
        with fresh.open("xb") as file:
            file.write(json.dumps(asdict(life)).encode())
            file.flush()
            os.fsync(file.fileno())
        try:
            yield fresh, self.directory / str(life.number)
        finally:
            fresh.unlink(missing_ok=True)

    def _after(self, before: Life | None) -> Life:
        """The life that follows another.

        What another machine has written last may reach the disk after its end was waited for. So etcd's
        files are copied, unless it has said that it has ended.
        """
        number = before.number + 1 if before is not None else 1
        life = Life(number=number, host=socket.gethostname(), boot=self.boot, data=FIRST_DATA)
        if before is None:
            return life
        if before.ready and not (before.ended or self.is_here(before)):
            return replace(life, data=f"{FIRST_DATA}-{number}", source=before.data)
        if before.ready or not before.source:
            return replace(life, data=before.data, ready=before.ready)
        return replace(life, data=f"{FIRST_DATA}-{number}", source=before.source)

    def _last(self, take_s: float) -> Life | None:
        """The newest life, once it is over."""
        began = time.monotonic()
        seen = self.newest()
        while True:
            if seen is None or seen.ended or self.is_here(seen) or time.monotonic() - began > take_s:
                return seen
            time.sleep(LOOK_S)
            if (now := self.newest()) != seen and (now is None or not now.ended):
                raise Conflict(
                    f"the cluster in {self.directory.parent} runs on {seen.host}; use it, end it there, or "
                    "choose another --state"
                )
            seen = now

    def _too_late(self) -> Conflict:
        return Conflict(f"another machine has just started the cluster in {self.directory.parent}")


class Hold:
    """Keeps a life of the cluster, in two threads: one writes, and one ends the cluster when that fails.

    Args:
        since_s: when it was last known to be ours, on the clock of `now_s`.
        end: kills the cluster at once, without any file.
        keep: writes the files of this life again that a start of another one has replaced.
    """

    def __init__(
        self,
        lives: Lives,
        life: Life,
        since_s: float,
        end: Callable[[], None],
        keep: Callable[[], None],
        beat_s: float = BEAT_S,
        stop_s: float = STOP_S,
    ) -> None:
        self._lives = lives
        self._life = life
        self._end, self._keep = end, keep
        self._beat_s, self._stop_s = beat_s, stop_s
        self._good_s = since_s
        self._succeeded = False
        self._over = threading.Event()
        self._writing = threading.Lock()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._beat, self._watch)]

    def start(self) -> None:
        """Begin to write, and to watch over it."""
        for each in self._threads:
            each.start()

    def take_over(self, etcd: Path) -> None:
        """Give the life its data, a directory of `etcd`, and remove what former lives have left there.

        Raises Unreachable, Conflict.
        """
        life, own = self._life, etcd / self._life.data
        with file_errors():
            if not life.ready:
                if life.source:
                    _copy(etcd / life.source, own)
                own.mkdir(mode=0o700, exist_ok=True)
                sync(etcd)
                self._say(ready=True)
            elif not own.is_dir():
                raise Unreachable(f"{own} is gone: bring etcd's data back, or choose another --state")
            # A successor that this does not see has seen that the data are here.
            self._lives.check(life, self._good_s, self._stop_s)
            for each in etcd.iterdir():
                if each != own and _number(each, life.number) < life.number:
                    shutil.rmtree(each, ignore_errors=True)
            self._lives.forget_before(life)

    def close(self) -> None:
        """Write that this life has ended. Every process of it is gone. Raises Unreachable."""
        self._over.set()
        for each in self._threads:
            each.join(self._stop_s)
        self._say(ended=True)

    def _say(self, *, ready: bool | None = None, ended: bool = False) -> None:
        with self._writing:
            life = self._life
            ready = life.ready if ready is None else ready
            self._life = replace(life, ready=ready, ended=ended, beat=life.beat + 1)
            self._lives.write(self._life)

    def _beat(self) -> None:
        while not self._over.wait(self._beat_s):
            began_s = now_s()
            try:
                newest = self._lives.newest()
                if newest is None or newest.number != self._life.number:
                    self._succeeded = True
                    return
                self._say()
            except TfSupervisorError:
                continue
            self._good_s = began_s
            with suppress(TfSupervisorError, OSError):
                self._keep()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            if self._succeeded or now_s() - self._good_s > self._stop_s:
                self._over.set()
                self._end()


def _number(data: Path, other: int) -> int:
    """The number of the life that has made a directory of etcd's data; `other` for what is none."""
    if data.name == FIRST_DATA:
        return 0
    number = data.name.removeprefix(f"{FIRST_DATA}-")
    return int(number) if number != data.name and number.isdigit() else other


def _copy(source: Path, to: Path) -> None:
    """Copy a directory, and return when its files are on the disk. Raises OSError."""
    shutil.copytree(source, to)
    for directory, _, files in os.walk(to, topdown=False):
        for each in files:
            sync(Path(directory, each))
        sync(Path(directory))


@contextmanager
def file_errors() -> Iterator[None]:
    """Raise Unreachable in place of OSError."""
    try:
        yield
    except OSError as error:
        raise Unreachable(_what(error)) from error


def _what(error: OSError) -> str:
    if not error.filename:
        return str(error)
    what = f"cannot use {os.fspath(error.filename)}: {error.strerror}"
    if isinstance(error, PermissionError):
        return f"{what}; give it to this user, with `chown` or `chmod`"
    wrong = isinstance(error, IsADirectoryError | NotADirectoryError | FileExistsError)
    return f"{what}; move away what is there in its place" if wrong else what
