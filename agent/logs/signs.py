"""Signs of life of one attempt, and for how long each of them usually pauses.

A pulse is shown now and then: a line of new output, a step. A gauge is measured all the time: processor time,
the utilisation of GPUs. It shows life while it is not far below what is usual as long as training goes on.
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
    """A sign that is shown now and then. Times are CLOCK_BOOTTIME, -1 before the first.

    `least` showings over at least `over_ms` make it learnt. A pause that an earlier attempt of the task has
    shown is known from the start; but a pulse with `over_ms` is learnt anew, as it pauses otherwise then.
    """

    name: str
    least: int
    over_ms: int = 0
    pause_ms: int = -1
    last_ms: int = -1
    _known: bool = False
    _count: int = 0
    _first_ms: int = -1

    def __post_init__(self) -> None:
        self._known = self.pause_ms >= 0 and not self.over_ms

    def show(self, now_ms: int) -> None:
        """It is shown now."""
        if self.last_ms < 0:
            self._first_ms = now_ms
        else:
            self.pause_ms = max(self.pause_ms, now_ms - self.last_ms)
        self._count += 1
        self.last_ms = now_ms

    @property
    def is_learnt(self) -> bool:
        """Whether its pauses tell how long it may be flat."""
        return self._known or (self._count >= self.least and self.last_ms - self._first_ms >= self.over_ms)

    def sign(self, now_ms: int) -> Sign | None:
        """For how long it has been flat; None before it was shown."""
        if self.last_ms < 0:
            return None
        return Sign(self.name, now_ms - self.last_ms, self.pause_ms if self.is_learnt else -1)


@dataclass(slots=True)
class Gauge:
    """A sign that is measured all the time, in a unit of its own.

    It is shown while at least a quarter of what is usual is used, but never less than `floor`; `cap` is a
    sign of life in any case. Usual is what nine in ten measurements reach, of those after which training was
    seen to go on: what is measured during a hang is never learnt. Where the usual is so low that it cannot
    be told from idling, the gauge tells nothing.
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
        """So much has been used since the last measurement. `wanted`: more would be, were there more."""
        self._pending.append(used)
        least = self._least if self._least >= 0 else 2 * self.floor
        if used >= least or wanted or self.last_ms < 0:
            self._longest_ms = max(self._longest_ms, now_ms - self.last_ms if self.last_ms >= 0 else 0)
            self.last_ms = now_ms

    def trains(self, now_ms: int) -> None:
        """Training has been seen to go on: what was measured up to now is usual."""
        if not self._pending:
            return
        self._usual.extend(self._pending)
        self._pending.clear()
        self.pause_ms = max(self.pause_ms, self._longest_ms, now_ms - self.last_ms)
        if len(self._usual) >= GAUGE_LEAST:
            low = sorted(self._usual)[len(self._usual) // 10]
            self._least = min(max(low / 4, self.floor), self.cap) if low >= 2 * self.floor else 0.0

    def sign(self, now_ms: int) -> Sign | None:
        """For how long it has been flat; None if it tells nothing."""
        if self.last_ms < 0 or self._least == 0.0:
            return None
        return Sign(self.name, now_ms - self.last_ms, self.pause_ms)


@dataclass(slots=True)
class Novelty:
    """Tells new output from output that repeats itself.

    Time stamps and durations never make a line new, nor does any figure in a line that speaks of waiting or
    of another try. Of a piece of output the last lines are looked at.
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
