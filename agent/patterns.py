"""Steps and NaN losses in a task's output, by the job's own patterns, which are never let run for long.

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

from supervisor.contract.boundaries import Sink

LIMIT_MS = 50
STRIKES = 3
_SLOW_LINE_MS = LIMIT_MS // 2
_NAN = re.compile(
    rb"(?i)loss[^\w\n]{0,8}(?:[a-z_][\w.]{0,20}\()?[-+]?(?:nan|inf|infinity)\b|NanLossDuringTraining"
)


class _TooSlow(Exception):
    """The timer rang while lines were matched."""


class _Timer:
    """Of this process's own processor time: how busy the machine is makes no pattern slow."""

    armed = False

    @classmethod
    def ring(cls, _number: int, _frame: FrameType | None) -> None:
        if cls.armed:
            raise _TooSlow

    @classmethod
    @contextmanager
    def limit(cls) -> Iterator[None]:
        """Raise _TooSlow in the block when it has used LIMIT_MS."""
        if signal.getsignal(signal.SIGVTALRM) != cls.ring:
            signal.signal(signal.SIGVTALRM, cls.ring)
        try:
            cls.armed = True
            signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_MS / 1000)
            yield
        finally:
            # First: once this is done the timer may ring when it likes.
            cls.armed = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


class Matcher:
    """Looks at lines; remembers the newest step, how often there was a newer one, and a NaN loss.

    Attributes:
        step: -1 before the first.
        reports: lines that brought a newer step.
        nan: a loss was printed as NaN or infinite; looked for only if asked.
        blind: no pattern is left, as each took too long: steps are unknown from here on.
    """

    def __init__(self, patterns: Sequence[str], sink: Sink, *, watch_nan: bool = False) -> None:
        self.step = -1
        self.reports = 0
        self.nan = False
        self.blind = False
        self._sink = sink
        self._patterns = _compiled(patterns, sink)
        self._strikes = [0] * len(self._patterns)
        self._watch_nan = watch_nan
        self._at = 0
        self._began_ms = 0.0

    def take(self, lines: Sequence[bytes]) -> None:
        """Look at some lines; when they take too long, the rest of them is skipped."""
        assert threading.current_thread() is threading.main_thread(), "only there a signal interrupts a match"
        try:
            with _Timer.limit():
                for line in lines:
                    self._look(line)
        except _TooSlow:
            self._strike()

    def reached(self, step: int) -> None:
        """The task said so itself."""
        if step > self.step:
            self.step = step
            self.reports += 1

    def _look(self, line: bytes) -> None:
        if self._watch_nan and not self.nan:
            self.nan = _NAN.search(line) is not None
        self._began_ms = time.monotonic() * 1000
        for at, pattern in enumerate(self._patterns):
            self._at = at
            found = pattern.search(line)
            if found is not None:
                with suppress(ValueError, IndexError, TypeError):
                    self.reached(int(found.group(1)))
                return

    def _strike(self) -> None:
        """The pattern that the timer found at work is given up when single lines take it too long."""
        if not self._patterns or time.monotonic() * 1000 - self._began_ms < _SLOW_LINE_MS:
            return
        self._strikes[self._at] += 1
        if self._strikes[self._at] < STRIKES:
            return
        given_up = self._patterns.pop(self._at)
        del self._strikes[self._at]
        self.blind = not self._patterns
        text = given_up.pattern.decode(errors="replace")
        self._sink.warning(
            f"step pattern is given up: it took more than {_SLOW_LINE_MS} ms for a line {STRIKES} times; "
            "write it without nested repetition",
            pattern=text,
        )


def _compiled(patterns: Sequence[str], sink: Sink) -> list[re.Pattern[bytes]]:
    found = []
    for text in patterns:
        try:
            pattern = re.compile(text.encode())
        except re.error as error:
            sink.warning("step pattern is not valid", pattern=text, reason=str(error))
            continue
        if pattern.groups:
            found.append(pattern)
        else:
            sink.warning("step pattern has no group", pattern=text)
    return found
