"""What tasks write: their output on disk, and the steps in it."""

from __future__ import annotations

import os
import re
import shutil
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.contract.boundaries import Sink
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.observed import TaskBeat

TURN_BYTES = 256 * 1024
LINE_BYTES = 4096
TAIL_BYTES = 4096
RATE_MS = 5_000
OUTPUT = "output.log"
STEP_FILE = "step"
BUDGET_BYTES = 2 << 30
_CONTROL = re.compile(r"[^\n\t\x20-\x7e\u00a0-\u2027\u202f-\u2065\u2070-\ufffd]")


@dataclass(slots=True)
class StepReader:
    """Reads one attempt's output a piece at a time. A line over 4 KiB is cut; behind by a turn, it skips."""

    directory: Path
    patterns: tuple[re.Pattern[bytes], ...]
    step: int = -1
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
        return self.step

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
        if size - self._offset > TURN_BYTES:
            self._offset, self._rest = size - TURN_BYTES, b""
        data = os.pread(self._fd, min(budget, size - self._offset), self._offset)
        if data:
            self._offset += len(data)
            return data
        # At the end: has the launcher begun a new file under this name?
        with suppress(FileNotFoundError):
            if path.stat().st_ino != os.fstat(self._fd).st_ino and self._open(path):
                return self._chunk(budget)
        return b""

    def _open(self, path: Path) -> bool:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        self.close()
        self._fd, self._offset, self._rest = fd, 0, b""
        return True

    def _take(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:LINE_BYTES]
        for line in lines:
            self._match(line[:LINE_BYTES])

    def _match(self, line: bytes) -> None:
        for pattern in self.patterns:
            found = pattern.search(line)
            if found is not None:
                with suppress(ValueError, IndexError):
                    self.step = max(self.step, int(found.group(1)))
                return

    def _take_hook(self) -> None:
        try:
            raw = (self.directory / STEP_FILE).read_bytes()[:64]
        except OSError:
            return
        with suppress(ValueError):
            self.step = max(self.step, int(raw))


@dataclass(slots=True)
class _Followed:
    reader: StepReader
    started_ms: int
    step_ms: int = -1
    first_step: int = -1
    first_ms: int = -1
    recent: deque[tuple[int, int]] = field(default_factory=deque)

    def look(self, now_ms: int) -> bool:
        before = self.reader.step
        step = self.reader.read()
        if step <= before:
            return False
        self.step_ms = now_ms
        self.recent.append((now_ms, step))
        while self.recent and now_ms - self.recent[0][0] > RATE_MS:
            self.recent.popleft()
        if self.first_step >= 0:
            return False
        self.first_step, self.first_ms = step, now_ms
        return True

    def rate(self) -> float:
        if len(self.recent) < 2:
            return 0.0
        (began, low), (ended, high) = self.recent[0], self.recent[-1]
        return 1000 * (high - low) / (ended - began) if ended > began else 0.0


class AttemptFiles:
    """`TaskFiles` below `root`, as `root/JOB_UUID/ATTEMPT/output.log`. Reads are bounded."""

    def __init__(self, root: Path, sink: Sink, budget_bytes: int = BUDGET_BYTES) -> None:
        self._root = root
        self._sink = sink
        self._budget_bytes = budget_bytes
        self._followed: dict[AttemptId, _Followed] = {}
        self._newest: dict[TaskId, tuple[AttemptId, Path]] = {}
        self._patterns: dict[tuple[str, ...], tuple[re.Pattern[bytes], ...]] = {}

    def directory(self, job_uuid: str, attempt: AttemptId) -> str:
        """Absolute path of an attempt's directory."""
        return str(self._root / job_uuid / attempt.dirname)

    def follow(self, job_uuid: str, attempt: AttemptId, patterns: tuple[str, ...], started_ms: int) -> None:
        """Read steps from this attempt's output from now on."""
        if attempt not in self._followed:
            known = self._newest.get(attempt.task)
            if known is None or known[0] <= attempt:
                self._newest[attempt.task] = (attempt, Path(self.directory(job_uuid, attempt)) / OUTPUT)
            reader = StepReader(Path(self.directory(job_uuid, attempt)), self._compiled(patterns))
            self._followed[attempt] = _Followed(reader, started_ms)

    def progress(self, now_ms: int) -> tuple[TaskBeat, ...]:
        """Where every followed attempt stands."""
        for followed in self._followed.values():
            followed.look(now_ms)
        return tuple(_beat(attempt, each, now_ms) for attempt, each in self._followed.items())

    def wrote(self, attempt: AttemptId, now_ms: int) -> bool:
        """Read it now; True when it brought the attempt's first step."""
        followed = self._followed.get(attempt)
        return followed is not None and followed.look(now_ms)

    def last_step(self, attempt: AttemptId) -> int:
        """The newest step, after reading to the end."""
        followed = self._followed.get(attempt)
        return followed.reader.read() if followed is not None else -1

    def tail(self, attempt: AttemptId) -> str:
        """The last lines of its output."""
        followed = self._followed.get(attempt)
        return read_tail(followed.reader.directory) if followed is not None else ""

    def unfollow(self, attempt: AttemptId) -> None:
        """Forget its progress, and make room if old directories take too much."""
        followed = self._followed.pop(attempt, None)
        if followed is not None:
            followed.reader.close()
            keep = {each.reader.directory for each in self._followed.values()}
            removed = make_room(self._root, keep, self._budget_bytes)
            if removed:
                self._sink.info("removed old output", directories=removed)

    def newest(self, task: TaskId) -> tuple[str, Path] | None:
        """The last attempt of a task here, and its output; None when this life has not seen any."""
        found = self._newest.get(task)
        return (str(found[0]), found[1]) if found is not None else None

    def _compiled(self, patterns: tuple[str, ...]) -> tuple[re.Pattern[bytes], ...]:
        if patterns not in self._patterns:
            self._patterns[patterns] = tuple(self._compile_all(patterns))
        return self._patterns[patterns]

    def _compile_all(self, patterns: tuple[str, ...]) -> Iterable[re.Pattern[bytes]]:
        for text in patterns:
            try:
                pattern = re.compile(text.encode())
            except re.error as error:
                self._sink.warning("step pattern is not valid", pattern=text, reason=str(error))
                continue
            if pattern.groups:
                yield pattern
            else:
                self._sink.warning("step pattern has no group", pattern=text)


def read_tail(directory: Path) -> str:
    """The last 4 KiB of output at most, safe to print."""
    try:
        with (directory / OUTPUT).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            raw = file.read(TAIL_BYTES)
    except OSError:
        return ""
    text = raw.decode(errors="replace")
    return (
        _CONTROL.sub("\N{MIDDLE DOT}", text.replace("\r", "\n"))
        .encode()[-TAIL_BYTES:]
        .decode(errors="ignore")
    )


def make_room(root: Path, keep: Iterable[Path], budget_bytes: int) -> int:
    """Remove the oldest attempts' directories beyond the budget; returns how many."""
    kept = set(keep)
    found = []
    for directory in root.glob("*/*"):
        with suppress(OSError):  # a launcher rotates, or another call removes, what is looked at
            size = sum(entry.stat().st_size for entry in directory.iterdir() if entry.is_file())
            found.append((directory.stat().st_mtime, size, directory))
    total = sum(size for _, size, _ in found)
    removed = 0
    for _, size, directory in sorted(found):
        if total <= budget_bytes:
            break
        if directory not in kept:
            shutil.rmtree(directory, ignore_errors=True)
            total -= size
            removed += 1
    return removed


def _beat(attempt: AttemptId, followed: _Followed, now_ms: int) -> TaskBeat:
    return TaskBeat(
        str(attempt),
        step=followed.reader.step,
        step_age_ms=now_ms - followed.step_ms if followed.step_ms >= 0 else -1,
        first_step=followed.first_step,
        first_step_age_ms=now_ms - followed.first_ms if followed.first_ms >= 0 else -1,
        rate=round(followed.rate(), 3),
    )
