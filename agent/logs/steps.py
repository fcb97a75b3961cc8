"""The progress of one attempt: its output is read a piece at a time, and reported in beats.

The step in a line is found by `patterns`, and in the known formats by `counts`.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.checkpoints.saves import SavesReader
from agent.host.processes import Usage
from agent.host.regular_files import open_regular, read_start
from agent.inside.processes import fence
from agent.logs.patterns import Matcher
from agent.logs.signs import Gauge, Novelty, Pulse
from recovery.policy.hangs import DATA, LEAST_WORK_MS, TRAINING
from supervisor.contract.ids import AttemptId
from supervisor.contract.observed import Pace, Saves, Sign, TaskBeat

TURN_BYTES = 256 * 1024
LINE_BYTES = 2048
MOST_LINES = 4096
"""Most lines of one piece of output, counted from its end. They take some 15 ms; all of 131,072 take 110."""
RATE_MS = 5_000
PACE_MS = 30_000
_PACE_LEAST_MS = 10_000
_PACE_GRAIN_MS = 1_000
_QUIET_MS = 1_000
_FULL_BYTES = 1 << 20
OUTPUT = "output.log"
STEP_FILE = "step"
MEASURE_MS = 5_000
_ENDS = re.compile(rb"[\r\n]+")
_STYLE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x08+")
STEPS_LEAST = SAVES_LEAST = 3
OUTPUT_LEAST, OUTPUT_OVER_MS = 10, 600_000
"""Showings and time until output is learnt. It is late because output at the start is no sign of training."""
CPU_FLOOR, CPU_CAP = 0.05, 0.5
"""In processors: an idle TensorFlow process uses up to a twentieth of one; half of one is always work."""
GPU_FLOOR, GPU_CAP = 5.0, 50.0
"""In per cent of all GPUs of the attempt together."""
FILES = "files"
FILES_PER_S = 256 * 1024
"""Bytes per second: a save to the slowest disk moves more, and logs and polls move less."""
SAVING_MS = 600_000
"""Milliseconds for which a save that TensorFlow has begun is a sign of life, even if no byte is seen to
move."""
WAITING_MS = 600_000
"""Milliseconds without a sign of training for which waits for data count as work, all of them together."""
UNKNOWN_PAUSE_MS = 600_000
"""Between the saves that a program makes by itself, if it does not say: TensorFlow's default."""


@dataclass(slots=True)
class StepReader:
    """Reads one attempt's output a piece at a time.

    A line over 2 KiB is cut. If it is behind by a rotation, it skips output.

    A carriage return ends a line, too: a progress bar writes its lines over each other.

    Attributes:
        wrote: there was output in the last reads; `is_new`: there was a line that does not only repeat
            another. The reader of both resets them.
        floods: a piece of the last read had more than MOST_LINES.
    """

    directory: Path
    matcher: Matcher
    wrote: bool = False
    is_new: bool = False
    floods: bool = False
    _novelty: Novelty = field(default_factory=Novelty)
    _fd: int = -1
    _offset: int = 0
    _rest: bytes = b""

    def read(self) -> int:
        """Read new output; returns the newest step, -1 before any."""
        budget, self.floods = TURN_BYTES, False
        while budget > 0:
            data = self._chunk(budget)
            if not data:
                break
            budget -= len(data)
            self._take(data)
        self._take_hook()
        return self.matcher.step

    def close(self) -> None:
        """Close the descriptor."""
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
        *lines, rest = _ENDS.split(self._rest + data)
        self._rest = rest[:LINE_BYTES]
        cut = [_plain(line[:LINE_BYTES]) for line in lines[-MOST_LINES:]]
        self.wrote = True
        self.floods |= len(lines) > MOST_LINES
        self.is_new |= self._novelty.take(cut)
        self.matcher.take(cut)

    def _take_hook(self) -> None:
        try:
            raw = read_start(self.directory / STEP_FILE, 64)
        except OSError:
            return
        with suppress(ValueError):
            self.matcher.reached(int(raw))


def reading(beat: TaskBeat, waited_ms: int) -> TaskBeat:
    """The beat of a task that was last seen to wait for its data `waited_ms` ago; -1: never.

    The wait is told, and counts as work for WAITING_MS since the task last showed that it trains. A program
    that tries again and again is seen to wait now and then alone.
    """
    others = tuple(each for each in beat.signs if each.name != FILES)
    if not others or not 0 <= waited_ms < LEAST_WORK_MS:
        return beat
    told = Sign(DATA, waited_ms)
    shown_ms = [each.age_ms for each in others if each.name in TRAINING] or [each.age_ms for each in others]
    if min(shown_ms) >= WAITING_MS:
        return replace(beat, signs=(*beat.signs, told))
    moved_ms = [each.age_ms for each in beat.signs if each.name == FILES]
    return replace(beat, signs=(*others, Sign(FILES, min([waited_ms, *moved_ms])), told))


@dataclass(slots=True)
class Followed:
    """An attempt whose output is read. Times are CLOCK_BOOTTIME; -1 before they are known.

    `pauses`: the pauses of its signs from earlier attempts of the task. `asked_ms`: its last ask to save.
    """

    reader: StepReader
    started_ms: int
    pid: int = 0
    start_ticks: int = 0
    pauses: Mapping[str, int] = field(default_factory=dict)
    first_ms: int = -1
    slowest_ms: int = -1
    wrote_ms: int = -1
    asked_ms: int = -1
    step: Pulse = field(init=False)
    output: Pulse = field(init=False)
    save: Pulse = field(init=False)
    gauges: tuple[Gauge, ...] = field(init=False)
    _saves: SavesReader = field(init=False)
    _reports_seen: int = 0
    _saves_seen: int = 0
    _again_seen: int = 0
    _used: tuple[int, Usage] | None = None
    _files_ms: int = -1
    _recent: deque[tuple[int, int]] = field(default_factory=deque)
    _reports: deque[tuple[int, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._saves = SavesReader(self.reader.directory)
        known = {name: self.pauses.get(name, -1) for name in ("step", "output", "save", "cpu", "gpu")}
        self.step = Pulse("step", STEPS_LEAST, pause_ms=known["step"])
        self.output = Pulse("output", OUTPUT_LEAST, OUTPUT_OVER_MS, known["output"])
        self.save = Pulse("save", SAVES_LEAST, pause_ms=known["save"])
        self.gauges = (
            Gauge("cpu", CPU_FLOOR, CPU_CAP, pause_ms=known["cpu"]),
            Gauge("gpu", GPU_FLOOR, GPU_CAP, pause_ms=known["gpu"]),
        )

    def saves(self) -> Saves:
        """Its saves so far."""
        return self._saves.read()

    def look(self, now_ms: int) -> bool:
        """Read new output; True if it holds the first step."""
        before = self.reader.matcher.step
        self.reader.read()
        self._count(now_ms)
        saves = self.saves()
        if self._saves.again > self._again_seen:
            # A parameter server was lost, and the program waited for it.
            self._again_seen = self._saves.again
            self.step.skips = self.output.skips = self.save.skips = True
        if saves.inside + saves.outside != self._saves_seen:
            self._saves_seen = saves.inside + saves.outside
            self._show(self.save, now_ms)
            self.save.pause_ms = max(self.save.pause_ms, _own_pause_ms(saves.pace))
        moved = self.reader.matcher.reports > self._reports_seen
        if self.reader.wrote:
            self.wrote_ms = now_ms
        if self.reader.is_new or moved:
            self._show(self.output, now_ms)
        self.reader.wrote = self.reader.is_new = False
        if not moved:
            return False
        self._reports_seen = self.reader.matcher.reports
        if 0 <= self.reader.matcher.step < before:
            # It has restored a checkpoint by itself, and waited for what it lost: no usual pause.
            self.step.skips = True
        if self.step.last_ms >= 0 and not self.step.skips:
            self.slowest_ms = max(self.slowest_ms, now_ms - self.step.last_ms)
        self._show(self.step, now_ms)
        self._note_rate(now_ms)
        if self.first_ms >= 0:
            return False
        self.first_ms = now_ms
        return True

    def measure(self, now_ms: int, usage: Usage | None, gpu: float | None) -> None:
        """Add the usage so far, and the utilisation of its GPUs; None: unknown.

        A task counts as working if it is ready to run but gets no processor, or if it reads or writes files
        or saves, which uses few processors and may take long on a slow disk.
        """
        cpu, gpus = self.gauges
        if usage is not None and self._used is not None and now_ms > self._used[0]:
            before_ms, before = self._used
            rate = 1000 * max(0.0, usage.cpu_s - before.cpu_s) / (now_ms - before_ms)
            cpu.measure(now_ms, rate, wanted=usage.runnable)
            if 1000 * (usage.moved_bytes - before.moved_bytes) >= FILES_PER_S * (now_ms - before_ms):
                self._files_ms = now_ms
        self._used = (now_ms, usage) if usage is not None else None
        if 0 <= self._saves.saving_ms(now_ms) < SAVING_MS:
            self._files_ms = now_ms
        if gpu is not None:
            gpus.measure(now_ms, gpu)

    @property
    def process(self) -> fence.Root | None:
        """Its main process; None while it is unknown."""
        return (self.pid, self.start_ticks) if self.pid else None

    def learnt(self) -> dict[str, int]:
        """The known longest pauses of its signs."""
        pulses = {each.name: each.pause_ms for each in (self.step, self.output, self.save) if each.is_learnt}
        return {
            **self.pauses,
            **pulses,
            **{each.name: each.pause_ms for each in self.gauges if each.pause_ms >= 0},
        }

    def beat(self, attempt: AttemptId, now_ms: int) -> TaskBeat:
        """Its part of a beat."""
        matcher, counts = self.reader.matcher, self.reader.matcher.counts
        age_ms = now_ms - self.step.last_ms if self.step.last_ms >= 0 else -1
        silent_ms = now_ms - self.wrote_ms if self.wrote_ms >= 0 else -1
        signs = self._signs(now_ms)
        if matcher.blind or (max(age_ms, silent_ms) > _QUIET_MS and _is_full(self.reader.directory)):
            # They cannot be seen any more: unknown is not gone.
            age_ms = silent_ms = -1
            signs = ()
        elif matcher.skipped:
            age_ms = -1
            signs = tuple(each for each in signs if each.name != self.step.name)
        return TaskBeat(
            str(attempt),
            step=counts.step,
            step_age_ms=age_ms,
            first_step=counts.first,
            first_step_age_ms=now_ms - self.first_ms if self.first_ms >= 0 else -1,
            rate=round(self._rate(), 3),
            slowest_ms=self.slowest_ms,
            nan=matcher.nan,
            pace=round(self._pace(now_ms), 3),
            stopped=self._is_stopped(),
            saves=self.saves(),
            signs=signs,
            silent_ms=silent_ms,
            is_local=counts.step >= 0 and not counts.is_global,
            said=counts.said,
        )

    def _signs(self, now_ms: int) -> tuple[Sign, ...]:
        found = [each.sign(now_ms) for each in (self.step, self.output, self.save)]
        found += [each.sign(now_ms) for each in self.gauges]
        if self._files_ms >= 0:
            found.append(Sign(FILES, now_ms - self._files_ms))
        return tuple(each for each in found if each is not None)

    def _show(self, pulse: Pulse, now_ms: int) -> None:
        pulse.show(now_ms)
        if pulse.is_learnt:
            for gauge in self.gauges:
                gauge.trains(now_ms)

    def _note_rate(self, now_ms: int) -> None:
        step = self.reader.matcher.step
        if step < 0 or (self._recent and step < self._recent[-1][1]):
            self._recent.clear()
        if step >= 0:
            self._recent.append((now_ms, step))
        while self._recent and now_ms - self._recent[0][0] > RATE_MS:
            self._recent.popleft()

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


def _own_pause_ms(pace: Pace) -> int:
    """How long a program pauses between saves by itself that is asked to save; -1: it is not asked.

    It saves so often because we ask: for a hang it is held to what is usual for it alone.
    """
    asked = pace.own_ms >= 0 and 0 <= pace.pays_ms <= pace.every_ms
    return (pace.own_ms or UNKNOWN_PAUSE_MS) if asked else -1


def _plain(line: bytes) -> bytes:
    """A line without colours and backspaces."""
    return _STYLE.sub(b"", line) if b"\x1b" in line or b"\x08" in line else line


def _is_full(directory: Path) -> bool:
    """Whether the disk is full, so that output is lost with its steps."""
    try:
        room = os.statvfs(directory)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < _FULL_BYTES
