"""Signs of life of one attempt, and their usual pauses.

A pulse is a single event: a line of new output, a step. A gauge is measured continuously: processor time, the
utilisation of GPUs. It shows life while it is not far below its usual value during training.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from supervisor.contract.observed import Sign

GAUGE_KEPT = 720
GAUGE_LEAST = 12
_LOOKED_AT = 16
_FORMS = 256
_TIME = re.compile(
    rb"\d{4}-\d\d-\d\d"
    rb"|\b\d{1,4}:\d\d(?::\d\d)?(?:[.,]\d+)?"
    rb"|\b[IWEF]\d{4}\b"
    rb"|\b1\d{9}(?:\.\d+)?\b"
    rb"|0x[0-9a-fA-F]+"
    rb"|\b(?:elapsed|eta|ETA|time)\W{1,3}\d+(?:\.\d+)?"
    rb"|\b\d+(?:\.\d+)?\s?(?:[mun]?s|secs?|seconds?|mins?|minutes?|h|hours?|milliseconds?)\b"
)
_WAITS = re.compile(
    rb"(?i)wait|retr(?:y|ie)|attempt|tries|tried|reconnect|not ready|unavailable|time[d -]*out|heartbeat"
    rb"|health|still |alive|pending|idle|poll|blocked|keepalive|refused"
)
_FIGURES = b"0123456789.,"


@dataclass(slots=True)
class Pulse:
    """A sign of single events. Times are CLOCK_BOOTTIME; -1 before the first.

    It is learnt after `least` showings over at least `over_ms`. A pause from an earlier attempt of the task
    is known from the start, except for a pulse with `over_ms`, which is learnt anew because its pauses differ
    at a start. `skips`: the pause that lasts now is not usual, and is not learnt.
    """

    name: str
    least: int
    over_ms: int = 0
    pause_ms: int = -1
    last_ms: int = -1
    skips: bool = False
    _known: bool = False
    _count: int = 0
    _first_ms: int = -1

    def __post_init__(self) -> None:
        self._known = self.pause_ms >= 0 and not self.over_ms

    def show(self, now_ms: int) -> None:
        """Note a showing now."""
        if self.last_ms < 0:
            self._first_ms = now_ms
        elif not self.skips:
            self.pause_ms = max(self.pause_ms, now_ms - self.last_ms)
        self.skips = False
        self._count += 1
        self.last_ms = now_ms

    @property
    def is_learnt(self) -> bool:
        """Whether its pauses are learnt."""
        known = self._count >= self.least and self.last_ms - self._first_ms >= self.over_ms
        return self._known or (known and self.pause_ms >= 0)

    def sign(self, now_ms: int) -> Sign | None:
        """The sign with its age; None before its first showing."""
        if self.last_ms < 0:
            return None
        return Sign(self.name, now_ms - self.last_ms, self.pause_ms if self.is_learnt else -1)


@dataclass(slots=True)
class Gauge:
    """A sign that is measured continuously, in a unit of its own.

    It shows life at a quarter of its usual value or more, but never below `floor`, and always at `cap`. The
    usual value is the one that nine in ten measurements reach, of those after which training was seen to go
    on, so measurements during a hang are never learnt. If the usual value is too low to differ from idling,
    the gauge gives no sign.
    """

    name: str
    floor: float
    cap: float
    last_ms: int = -1
    pause_ms: int = -1
    _usual: deque[float] = field(default_factory=lambda: deque(maxlen=GAUGE_KEPT))
    _pending: deque[float] = field(default_factory=lambda: deque(maxlen=GAUGE_KEPT))
    _longest_ms: int = 0
    _least: float = -1.0

    def measure(self, now_ms: int, used: float, *, wanted: bool = False) -> None:
        """Add the usage since the last measurement. `wanted`: the process would use more if it could."""
        self._pending.append(used)
        least = self._least if self._least >= 0 else 2 * self.floor
        if used >= least or wanted or self.last_ms < 0:
            self._longest_ms = max(self._longest_ms, now_ms - self.last_ms if self.last_ms >= 0 else 0)
            self.last_ms = now_ms

    def trains(self, now_ms: int) -> None:
        """Note that training goes on: the measurements up to now are usual ones."""
        if not self._pending:
            return
        self._usual.extend(self._pending)
        self._pending.clear()
        self.pause_ms = max(self.pause_ms, self._longest_ms, now_ms - self.last_ms)
        if len(self._usual) >= GAUGE_LEAST:
            low = sorted(self._usual)[len(self._usual) // 10]
            self._least = min(max(low / 4, self.floor), self.cap) if low >= 2 * self.floor else 0.0

    def sign(self, now_ms: int) -> Sign | None:
        """The sign with its age; None if it gives none."""
        if self.last_ms < 0 or self._least == 0.0:
            return None
        return Sign(self.name, now_ms - self.last_ms, self.pause_ms)


@dataclass(slots=True)
class Novelty:
    """Distinguishes new output from output that repeats itself.

    Time stamps and durations never make a line new, nor do figures in a line about waiting or a retry. Only
    the last lines of a piece of output are compared.
    """

    _forms: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def take(self, lines: Sequence[bytes]) -> bool:
        """Whether any of these lines is new."""
        found = [self._is_new(line) for line in lines[-_LOOKED_AT:]]
        return any(found)

    def _is_new(self, line: bytes) -> bool:
        form = _TIME.sub(b"#", line)
        if _WAITS.search(form):
            form = form.translate(None, _FIGURES)
        form = form.strip()
        if not form:
            return False
        key = hash(form)
        if key in self._forms:
            self._forms.move_to_end(key)
            return False
        self._forms[key] = None
        if len(self._forms) > _FORMS:
            self._forms.popitem(last=False)
        return True
