"""The formats of progress in output that are read by default.

They are TensorFlow 1's logging hooks, Keras' lines and progress bars, tqdm, absl, JSON lines, and loops that
print an epoch, a step, an iteration or a batch, with or without a total.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum

from supervisor.contract.bounds import STEPS

MOST_TEMPLATES = 64
_NUMBER = rb"((?>\d{1,3}(?:,\d{3})++(?!\d)|\d{1,15}+))(?![\w%']|\.\d)"
_GAP = rb"[\"']?[\s=:#/\[(]{0,4} {0,12}"
_NO_END = rb"(?<!until )(?<!until global )"
_GLOBAL = re.compile(rb"(?i)" + _NO_END + rb"\bglobal[\s_-]?step\b" + _GAP + _NUMBER)
_HOOK = re.compile(rb" = [^,]{1,40}, step = " + _NUMBER)
_LOCAL = re.compile(
    rb"(?i)" + _NO_END + rb"\b(?:train(?:ing)?[\s_-])?(?:step|iter|iteration)\b" + _GAP + _NUMBER
)
_BATCH = re.compile(rb"(?i)\bbatch\b" + _GAP + _NUMBER + rb"\s?(?:/|of)\s?\d")
_BATCH_ALONE = re.compile(rb"(?i)\bbatch\b" + _GAP + _NUMBER)
_EPOCH = re.compile(rb"(?i)\bepoch\b" + _GAP + _NUMBER)
_OF_EPOCH = re.compile(rb"\[\s*" + _NUMBER + rb"/\d+")
_BAR = re.compile(rb"^\s*" + _NUMBER + rb"/(?:\d+|Unknown)\s+(?:\[[=>. ]|\xe2\x94\x81|- |\d+m?s)")
_TQDM = re.compile(rb"(?:\||^)\s*(\d{1,15}+)(?:/\d+|it) \[\d+:\d\d(?![^\]]*B/s)")
_METRIC = re.compile(rb"(?i)(?:loss|acc|err|mse|mae|auc|reward|return|score|perplexity|ppl)\D{0,24}\d")
_ANNOUNCES = re.compile(rb"(?i)\b(?:start|begin|resum|restor|load|continu|initial|until)")
_FIGURES = b"0123456789.,-+\r"
_SKELETON_BYTES = 80


class Kind(IntEnum):
    """The kinds of numbers, in the order of preference."""

    PLACE = 0
    STEP = 1
    GLOBAL = 2
    TOLD = 3


@dataclass(frozen=True, slots=True)
class Count:
    """The count in one line: a number of its kind (-1: only the epoch), and the epoch in the line, or -1.

    `announced`: the line alone does not show that a step was made. It is the heading of an epoch, stands at
    0, or says from where training starts, and has no figure of what was trained, such as a loss.
    """

    kind: Kind
    number: int
    epoch: int = -1
    announced: bool = False


def count_of(line: bytes, *, in_epochs: bool = False) -> Count | None:
    """The count in a line; None without one. `in_epochs`: the program has printed an epoch before.

    A progress bar counts only then: a bar before the first epoch may belong to a download.
    """
    found = _found(line, in_epochs=in_epochs)
    if found is None or (found.number > 0 and not _ANNOUNCES.search(line)) or _METRIC.search(line):
        return found
    return replace(found, announced=True)


def _found(line: bytes, *, in_epochs: bool) -> Count | None:
    low = line.lower()
    epoch = _find(_EPOCH, line) if b"epoch" in low else -1
    if b"step" in low or b"iter" in low:
        number = _find(_GLOBAL, line)
        if number < 0 and epoch < 0 and not in_epochs:
            number = _find(_HOOK, line)
        if number >= 0:
            return Count(Kind.GLOBAL, number, epoch)
        number = _find(_LOCAL, line)
        if number >= 0:
            return Count(Kind.STEP, number, epoch)
    number = _find(_BATCH, line) if b"batch" in low else -1
    if number < 0 and epoch >= 0:
        number = max(_find(_OF_EPOCH, _EPOCH.sub(b"", line, count=1)), _find(_BATCH_ALONE, line))
    if number < 0 and b":" in line and b" [" in line:
        number = _find(_TQDM, line)
    if number < 0 and (in_epochs or epoch >= 0) and b"/" in line:
        number = _find(_BAR, line)
    return Count(Kind.PLACE, number, epoch) if number >= 0 or epoch >= 0 else None


def _find(pattern: re.Pattern[bytes], line: bytes) -> int:
    """The number in a line; -1 if there is none below STEPS."""
    found = pattern.search(line)
    number = int(found.group(1).replace(b",", b"")) if found is not None else -1
    return number if number < STEPS else -1


@dataclass(slots=True)
class _Template:
    """Lines that differ only in their figures: their first number, and the place in the last of them.

    Attributes:
        born: number of lines with progress before the first of these.
        is_made: one of them has shown a step that was made.
        begins_anew: its number has fallen back to its start, so it counts no global step.
        goes_on: its number has risen from one epoch into the next.
    """

    kind: Kind
    born: int
    first: int
    epoch: int
    number: int
    is_made: bool = False
    begins_anew: bool = False
    goes_on: bool = False


@dataclass(slots=True)
class Counts:
    """The counts in an attempt's output so far.

    A line shows progress if its place, (epoch, number), differs from that of the last line of the same words.
    So a number that falls begins anew, and a repeated one shows no progress. Neither does the first line of
    its words if it is announced, unless it begins a later epoch: the epoch before was made.

    Attributes:
        reports: number of lines with progress.
        said: the position in the program's own words, such as `epoch 2, step 10`; empty before any count.
    """

    reports: int = 0
    said: str = ""
    _kind: Kind = Kind.PLACE
    _epoch: int = -1
    _step: int = -1
    _first: int = -1
    _templates: OrderedDict[bytes, _Template] = field(default_factory=OrderedDict)

    @property
    def step(self) -> int:
        """The newest number that behaves like a global step; -1 if there is none."""
        return self._step if self.is_global else max((each.number for each in self._steps()), default=-1)

    @property
    def first(self) -> int:
        """The first number of this attempt that behaves like a global step; -1 if there is none."""
        if self.is_global:
            return self._first
        oldest = min(self._steps(), key=lambda each: each.born, default=None)
        return oldest.first if oldest is not None else -1

    @property
    def is_global(self) -> bool:
        """Whether the program itself calls that number global."""
        return self._kind >= Kind.GLOBAL

    @property
    def in_epochs(self) -> bool:
        """Whether the program has printed an epoch."""
        return self._epoch >= 0

    def take(self, count: Count, line: bytes = b"") -> bool:
        """Add the count of a line; returns whether it shows progress."""
        made = not count.announced or count.epoch > self._epoch >= 0
        if count.epoch >= 0:
            self._epoch = count.epoch
        key = bytes([count.kind]) + line.translate(None, _FIGURES)[:_SKELETON_BYTES]
        found = self._templates.get(key)
        if found is not None and (found.epoch, found.number) == (self._epoch, count.number):
            return False
        if found is None:
            while len(self._templates) >= MOST_TEMPLATES:
                self._templates.popitem(last=False)
            found = _Template(count.kind, self.reports, count.number, self._epoch, count.number)
            self._templates[key] = found
        else:
            self._follow(found, count)
            found.epoch, found.number = self._epoch, count.number
            made = True
        self._templates.move_to_end(key)
        self._say(count)
        if not made:
            return False
        if not found.is_made:
            found.is_made, found.born, found.first = True, self.reports, count.number
        self.reports += 1
        if count.kind >= max(self._kind, Kind.GLOBAL):
            if count.kind > self._kind:
                self._kind, self._first = count.kind, count.number
            self._step = count.number
        return True

    def _steps(self) -> Iterator[_Template]:
        """The templates whose numbers behave like a global step: they go on rising at a new epoch."""
        for each in self._templates.values():
            counts = each.kind is Kind.STEP and each.is_made and not each.begins_anew
            if counts and (each.goes_on or not self.in_epochs):
                yield each

    def _follow(self, found: _Template, count: Count) -> None:
        """Update a template by the next number of its lines."""
        if count.number > found.number:
            found.goes_on |= self._epoch > found.epoch >= 0
        elif count.number < found.number:
            found.begins_anew |= count.number <= found.first
            if not found.begins_anew:
                # It has restored an older checkpoint by itself: others tell of what was before.
                for each in self._templates.values():
                    each.number = min(each.number, count.number)

    def _say(self, count: Count) -> None:
        epoch = f"epoch {self._epoch}" if self.in_epochs else ""
        what = "batch" if count.kind is Kind.PLACE and epoch else "step"
        number = f"{what} {count.number}" if count.number >= 0 else ""
        self.said = ", ".join(filter(None, (epoch, number)))
