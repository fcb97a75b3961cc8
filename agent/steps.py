"""How one attempt gets on: its output read a piece at a time, and what the beats say of it."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agent.inside import fence
from agent.patterns import Matcher
from agent.regular import open_regular, read_start
from agent.saves import SavesReader
from supervisor.contract.ids import AttemptId
from supervisor.contract.observed import Saves, TaskBeat

TURN_BYTES = 256 * 1024
LINE_BYTES = 2048
RATE_MS = 5_000
PACE_MS = 30_000
_PACE_LEAST_MS = 10_000
_PACE_GRAIN_MS = 1_000
_QUIET_MS = 1_000
_FULL_BYTES = 1 << 20
OUTPUT = "output.log"
STEP_FILE = "step"


@dataclass(slots=True)
class StepReader:
    """Reads one attempt's output a piece at a time. A line over 2 KiB is cut; behind by a turn, it skips."""

    directory: Path
    matcher: Matcher
    _fd: int = -1
    _offset: int = 0
    _rest: bytes = b""

    def read(self) -> int:
        """Take in what is new; returns the newest step, -1 before any."""
        budget = TURN_BYTES
        while budget > 0:
            data = self._chunk(budget)
            if not data:
                break
            budget -= len(data)
            self._take(data)
        self._take_hook()
        return self.matcher.step

    def close(self) -> None:
        """Give back the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _chunk(self, budget: int) -> bytes:
        path = self.directory / OUTPUT
        if self._fd < 0 and not self._open(path):
            return b""
        size = os.fstat(self._fd).st_size
        if size < self._offset:
            # The program has cut it: it is its own user's.
            self._offset, self._rest = 0, b""
        if size - self._offset > TURN_BYTES:
            self._offset, self._rest = size - TURN_BYTES, b""
        data = os.pread(self._fd, min(budget, size - self._offset), self._offset)
        if data:
            self._offset += len(data)
            return data
        # At the end: has the launcher begun a new file under this name?
        with suppress(OSError):
            if path.lstat().st_ino != os.fstat(self._fd).st_ino and self._open(path):
                return self._chunk(budget)
        return b""

    def _open(self, path: Path) -> bool:
        try:
            fd = open_regular(path)
        except OSError:
            return False
        self.close()
        self._fd, self._offset, self._rest = fd, 0, b""
        return True

    def _take(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:LINE_BYTES]
        self.matcher.take([line[:LINE_BYTES] for line in lines])

    def _take_hook(self) -> None:
        try:
            raw = read_start(self.directory / STEP_FILE, 64)
        except OSError:
            return
        with suppress(ValueError):
            self.matcher.reached(int(raw))


@dataclass(slots=True)
class Followed:
    """An attempt whose output is read. Times are CLOCK_BOOTTIME, -1 before they are known."""

    reader: StepReader
    started_ms: int
    pid: int = 0
    start_ticks: int = 0
    step_ms: int = -1
    first_step: int = -1
    first_ms: int = -1
    slowest_ms: int = -1
    _saves: SavesReader = field(init=False)
    _seen: int = -1
    _recent: deque[tuple[int, int]] = field(default_factory=deque)
    _reports: deque[tuple[int, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._saves = SavesReader(self.reader.directory)

    def saves(self) -> Saves:
        """Where it has saved so far."""
        return self._saves.read()

    def look(self, now_ms: int) -> bool:
        """Read what is new; True when it brought the first step."""
        step = self.reader.read()
        self._count(now_ms)
        if step <= self._seen:
            return False
        self._seen = step
        if self.step_ms >= 0:
            self.slowest_ms = max(self.slowest_ms, now_ms - self.step_ms)
        self.step_ms = now_ms
        self._recent.append((now_ms, step))
        while self._recent and now_ms - self._recent[0][0] > RATE_MS:
            self._recent.popleft()
        if self.first_step >= 0:
            return False
        self.first_step, self.first_ms = step, now_ms
        return True

    def beat(self, attempt: AttemptId, now_ms: int) -> TaskBeat:
        """What the leader is told of it."""
        matcher = self.reader.matcher
        age_ms = now_ms - self.step_ms if self.step_ms >= 0 else -1
        if matcher.blind or (age_ms > _QUIET_MS and _is_full(self.reader.directory)):
            age_ms = -1  # its steps cannot be seen any more: unknown is not gone
        return TaskBeat(
            str(attempt),
            step=matcher.step,
            step_age_ms=age_ms,
            first_step=self.first_step,
            first_step_age_ms=now_ms - self.first_ms if self.first_ms >= 0 else -1,
            rate=round(self._rate(), 3),
            slowest_ms=self.slowest_ms,
            nan=matcher.nan,
            pace=round(self._pace(now_ms), 3),
            stopped=self._is_stopped(),
            saves=self.saves(),
        )

    def _rate(self) -> float:
        if len(self._recent) < 2:
            return 0.0
        (began, low), (ended, high) = self._recent[0], self._recent[-1]
        return 1000 * (high - low) / (ended - began) if ended > began else 0.0

    def _count(self, now_ms: int) -> None:
        reports = self.reader.matcher.reports
        if reports and (not self._reports or now_ms - self._reports[-1][0] >= _PACE_GRAIN_MS):
            self._reports.append((now_ms, reports))
        while len(self._reports) > 1 and now_ms - self._reports[0][0] > PACE_MS:
            self._reports.popleft()

    def _pace(self, now_ms: int) -> float:
        if not self._reports or now_ms - self._reports[0][0] < _PACE_LEAST_MS:
            return -1.0
        began, reports = self._reports[0]
        return 1000 * (self.reader.matcher.reports - reports) / (now_ms - began)

    def _is_stopped(self) -> bool:
        process = fence.read_process(self.pid) if self.pid else None
        return process is not None and process.start_ticks == self.start_ticks and process.state in "Tt"


def _is_full(directory: Path) -> bool:
    """A full disk swallows output, and its steps."""
    try:
        room = os.statvfs(directory)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < _FULL_BYTES
