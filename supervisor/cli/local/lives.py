"""The lives of an embedded cluster whose directory several machines share: one machine at a time has it.

The lock of the directory tells keepers of one machine apart; between machines not every file system knows it.
So each start of the cluster is a life with a number. Its file is made with O_EXCL, which of two machines at
most one succeeds in. Its keeper writes there every few seconds that it goes on. Another machine begins the
next life when the file says that this one has ended, or has not changed for TAKE_S. A keeper that cannot
write for STOP_S, or sees a later life, kills its cluster: etcd answers reads without any disk.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from supervisor.contract.errors import Conflict, Unreachable

BEAT_S, STOP_S, TAKE_S = 3.0, 60.0, 90.0
LOOK_S = 0.5
FIRST_DATA = "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One start of the cluster.

    Attributes:
        host, boot: the machine, and its boot id.
        data: the name of etcd's directory.
        beat: counts how often its keeper said that it goes on.
        ended: everything of it has ended.
    """

    number: int
    host: str
    boot: str
    data: str
    beat: int = 0
    ended: bool = False

    @property
    def is_here(self) -> bool:
        """Whether it is of this machine since its boot."""
        return self.boot == boot_id()


@dataclass(frozen=True, slots=True)
class Lives:
    """The files of all lives. Only the newest is kept."""

    directory: Path

    def newest(self) -> Life | None:
        """The newest life; None before the first. Raises OSError."""
        try:
            numbers = [int(each.name) for each in self.directory.iterdir() if each.name.isdigit()]
        except FileNotFoundError:
            return None
        if not numbers:
            return None
        newest = Life(number=max(numbers), host="another machine", boot="", data=FIRST_DATA)
        for number in sorted(numbers, reverse=True):
            try:
                found = Life(**json.loads((self.directory / str(number)).read_bytes()))
            except (ValueError, TypeError):
                continue  # it was made, and not written yet
            return found if number == newest.number else replace(newest, data=found.data)
        return newest

    def claim(self, take_s: float = TAKE_S) -> tuple[Life, Life | None]:
        """Begin the next life, and return it and the one before. The caller holds the lock of the directory.

        Raises Conflict if a cluster of another machine goes on, Unreachable where the directory is not there.
        """
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            before = self._last(take_s)
            number = before.number + 1 if before is not None else 1
            os.close(os.open(self.directory / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            data = before.data if before is not None else FIRST_DATA
            life = Life(number=number, host=socket.gethostname(), boot=boot_id(), data=data)
            self.write(life)
        except FileExistsError as error:
            raise Conflict(
                f"another machine has just started the cluster in {self.directory.parent}"
            ) from error
        except OSError as error:
            raise Unreachable(f"{error.filename}: {error.strerror}") from error
        return life, before

    def write(self, life: Life) -> None:
        """Write what there is to say of our own life; raises OSError."""
        path = self.directory / str(life.number)
        fresh = path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(json.dumps(asdict(life)).encode())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    def take_over(self, life: Life, before: Life | None, etcd: Path) -> Life:
        """Give a life etcd's data, which are in a directory of `etcd`.

        What another machine has written last may reach the disk after its end was waited for. So its files
        are copied, unless it has said that it has ended. Raises Unreachable.
        """
        if before is None:
            return life
        former = etcd / before.data
        try:
            if not (before.ended or before.is_here) and former.exists():
                began_s = now_s()
                life = replace(life, data=f"{FIRST_DATA}-{life.number}")
                shutil.rmtree(etcd / life.data, ignore_errors=True)
                shutil.copytree(former, etcd / life.data)
                if now_s() - began_s > STOP_S:
                    raise Unreachable(f"it takes too long to copy {former}; try again")
                self.write(life)
                shutil.rmtree(former, ignore_errors=True)
            (self.directory / str(before.number)).unlink(missing_ok=True)
        except OSError as error:
            raise Unreachable(f"{error.filename}: {error.strerror}") from error
        return life

    def _last(self, take_s: float) -> Life | None:
        """The newest life, once it is over."""
        began = time.monotonic()
        seen = self.newest()
        while True:
            if seen is None or seen.ended or seen.is_here or time.monotonic() - began > take_s:
                return seen
            time.sleep(LOOK_S)
            if (now := self.newest()) != seen and (now is None or not now.ended):
                raise Conflict(
                    f"the cluster in {self.directory.parent} runs on {seen.host}; use it, end it there, or "
                    "choose another --state"
                )
            seen = now


class Hold:
    """Keeps a life of the cluster, in two threads: one writes, and one ends the cluster when that fails.

    Args:
        end: kills the cluster at once, without any file.
    """

    def __init__(
        self,
        lives: Lives,
        life: Life,
        end: Callable[[], None],
        beat_s: float = BEAT_S,
        stop_s: float = STOP_S,
    ) -> None:
        self._lives = lives
        self._life = life
        self._end = end
        self._beat_s, self._stop_s = beat_s, stop_s
        self._good_s = now_s()
        self._succeeded = False
        self._over = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._beat, self._watch)]

    def start(self) -> None:
        """Begin to write, and to watch over it."""
        for each in self._threads:
            each.start()

    def close(self) -> None:
        """Write that this life has ended. Every process of it is gone."""
        self._over.set()
        for each in self._threads:
            each.join(self._stop_s)
        self._lives.write(replace(self._life, ended=True))

    def _beat(self) -> None:
        while not self._over.wait(self._beat_s):
            began_s = now_s()
            try:
                newest = self._lives.newest()
                if newest is None or newest.number != self._life.number:
                    self._succeeded = True
                    return
                self._life = replace(self._life, beat=self._life.beat + 1)
                self._lives.write(self._life)
            except OSError:
                continue
            self._good_s = began_s

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            if self._succeeded or now_s() - self._good_s > self._stop_s:
                self._over.set()
                self._end()


def boot_id() -> str:
    """The id of this machine's boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def now_s() -> float:
    """Seconds on a clock that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
