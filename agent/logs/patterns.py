"""Steps and NaN losses in a task's output. The time for a job's own patterns is bounded.

A pattern is the user's, and a careless one needs hours for one line. `re` holds the interpreter's lock
while it matches, so that a thread would not help; but it looks for signals, so that a timer does
(docs/decisions/0011-patterns-on-a-timer.md).
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from weakref import WeakSet

from agent.logs.counts import Count, Counts, Kind, count_of
from supervisor.contract.boundaries import Logger
from supervisor.contract.bounds import MAX_STEP_PATTERNS, STEPS
from supervisor.contract.errors import UserError
from supervisor.contract.job.spec import DEFAULT_STEP_PATTERNS
from supervisor.contract.job.step_pattern import compile_step_pattern

LIMIT_MS = 50
STRIKES = 3
SHARE, BURST_MS = 0.05, 400
"""Share of a processor for the jobs' own patterns of all attempts, and a burst. Each attempt gets an equal
part."""
MOST_SHARE, MOST_AT_ONCE_MS = 0.2, 100
"""Largest share of all attempts together, and longest time at once, while each has a part of its burst
left."""
_SLOW_LINE_MS = LIMIT_MS // 2
_NAN = re.compile(
    rb"(?i)loss[^\w\n]{0,8}(?:[a-z_][\w.]{0,20}\()?[-+]?(?:nan|inf|infinity)\b|NanLossDuringTraining"
)


class _TooSlow(Exception):
    """The timer ran out while lines were matched."""


class _Timer:
    """A timer of this process's own processor time, with the kernel's part, so that a busy machine does not
    slow a pattern down.
    """

    armed = False

    @classmethod
    def ring(cls, _number: int, _frame: FrameType | None) -> None:
        if cls.armed:
            raise _TooSlow

    @classmethod
    @contextmanager
    def limit(cls) -> Iterator[None]:
        """Raise _TooSlow in the block when it has used LIMIT_MS."""
        if signal.getsignal(signal.SIGPROF) != cls.ring:
            signal.signal(signal.SIGPROF, cls.ring)
        try:
            cls.armed = True
            signal.setitimer(signal.ITIMER_PROF, LIMIT_MS / 1000)
            yield
        finally:
            # First: once this is done the timer may ring when it likes.
            cls.armed = False
            signal.setitimer(signal.ITIMER_PROF, 0)


class _Allowance:
    """An allowance of time: a share of the time that passes, and a burst."""

    def __init__(self) -> None:
        self._spent_ms = 0.0
        self._at_ms = 0.0

    def is_left(self, now_ms: float, share: float, burst_ms: float) -> bool:
        """Whether a part of the allowance is left."""
        passed_ms, self._at_ms = now_ms - self._at_ms, now_ms
        self._spent_ms = max(0.0, self._spent_ms - share * passed_ms)
        return self._spent_ms < burst_ms

    def spend(self, spent_ms: float, now_ms: float) -> None:
        """Subtract spent time, which may be more than was left.

        The allowance does not grow during that time.
        """
        self._spent_ms += spent_ms
        self._at_ms = now_ms

    def renew(self) -> None:
        """Restore the full allowance."""
        self._spent_ms = 0.0


class Budget:
    """The time for the jobs' own patterns of all attempts of one agent."""

    def __init__(self) -> None:
        self.all = _Allowance()
        self.among: WeakSet[Matcher] = WeakSet()


class Matcher:
    """Searches lines for counts and for a NaN loss.

    The default patterns stand for the formats of `agent.logs.counts`; other patterns replace them.

    Attributes:
        counts: the counts so far.
        nan: a loss was printed as NaN or infinite; only if the job asks for that.
        blind: each pattern took too long and was given up, so steps are unknown from now on.
        skipped: lines were skipped since the last step that was read, so its age is unknown.

    `budget`: the time that it shares with the other matchers of its agent.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        sink: Logger,
        *,
        watch_nan: bool = False,
        budget: Budget | None = None,
    ) -> None:
        self.counts = Counts()
        self.nan = False
        self.skipped = False
        self._sink = sink
        self._built_in = tuple(patterns) == DEFAULT_STEP_PATTERNS
        self._patterns = [] if self._built_in else _compiled(patterns, sink)
        self.blind = not self._built_in and not self._patterns
        self._strikes = [0] * len(self._patterns)
        self._watch_nan = watch_nan
        self._at = 0
        self._began_ms = 0.0
        self._own = _Allowance()
        self._budget = budget or Budget()
        if self._patterns:
            self._budget.among.add(self)

    @property
    def step(self) -> int:
        """The newest step; -1 while none is known."""
        return self.counts.step

    @property
    def reports(self) -> int:
        """The number of lines with progress."""
        return self.counts.reports

    def take(self, lines: Sequence[bytes]) -> None:
        """Search some lines. If they take too long, the rest of them is skipped.

        Lines are skipped too while the job's own patterns have used up their part of the time.
        """
        assert threading.current_thread() is threading.main_thread(), "only there a signal interrupts a match"
        if not self._may_spend(time.monotonic() * 1000):
            self.skipped = True
            return
        began_s = time.thread_time()
        try:
            with _Timer.limit():
                for line in lines:
                    self._look(line)
        except (_TooSlow, MemoryError, RecursionError) as error:
            self.skipped = True
            self._strike(at_once=not isinstance(error, _TooSlow))
        if not self._built_in:
            spent_ms = 1000 * (time.thread_time() - began_s)
            for allowance in (self._own, self._budget.all):
                allowance.spend(spent_ms, time.monotonic() * 1000)

    def _may_spend(self, now_ms: float) -> bool:
        if self._built_in:
            return True
        among = max(1, len(self._budget.among))
        is_own_left = self._own.is_left(now_ms, SHARE / among, BURST_MS / among)
        return self._budget.all.is_left(now_ms, MOST_SHARE, MOST_AT_ONCE_MS) and is_own_left

    def reached(self, step: int) -> None:
        """Set the step that the task reported by its step file."""
        if 0 <= step < STEPS:
            self.counts.take(Count(Kind.TOLD, step))

    def _look(self, line: bytes) -> None:
        if self._watch_nan and not self.nan:
            self.nan = _NAN.search(line) is not None
        count = count_of(line, in_epochs=self.counts.in_epochs) if self._built_in else self._count(line)
        if count is not None:
            self.counts.take(count, line)
            self.skipped = False

    def _count(self, line: bytes) -> Count | None:
        """The count by the first of the job's own patterns that matches."""
        self._began_ms = time.thread_time() * 1000
        for at, pattern in enumerate(self._patterns):
            self._at = at
            found = pattern.search(line)
            if found is not None:
                with suppress(ValueError, IndexError, TypeError, AttributeError):
                    step = int(found.group(1).replace(b",", b""))
                    return Count(Kind.STEP, step) if 0 <= step < STEPS else None
                return None
        return None

    def _strike(self, *, at_once: bool = False) -> None:
        """Give up the interrupted pattern if it takes too long repeatedly, or if it uses all memory
        (`at_once`).
        """
        took_ms = time.thread_time() * 1000 - self._began_ms
        if not self._patterns or (took_ms < _SLOW_LINE_MS and not at_once):
            return
        self._strikes[self._at] += 1
        if self._strikes[self._at] < STRIKES:
            return
        given_up = self._patterns.pop(self._at)
        del self._strikes[self._at]
        self.blind = not self._patterns
        if self.blind:
            self._budget.among.discard(self)
        self._own.renew()
        text = given_up.pattern.decode(errors="replace")
        self._sink.warning(
            f"step pattern is given up: it took more than {_SLOW_LINE_MS} ms, or all memory, for a line "
            f"{STRIKES} times; "
            "write it without nested repetition",
            pattern=text,
        )


def _compiled(patterns: Sequence[str], sink: Logger) -> list[re.Pattern[bytes]]:
    found = []
    for text in patterns[:MAX_STEP_PATTERNS]:
        try:
            pattern = compile_step_pattern(text)
        except UserError as error:
            sink.warning("step pattern is not valid", pattern=text[:200], reason=str(error))
            continue
        if pattern.groups:
            found.append(pattern)
        else:
            sink.warning("step pattern has no group", pattern=text[:200])
    return found
