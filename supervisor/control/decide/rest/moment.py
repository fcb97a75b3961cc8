"""Times that note until when the answers hold that rules get from them. Pure.

The rules of the leader ask many questions about time: whether a task has been silent for ten seconds, or
whether a cordon is over. Each question is a comparison. A `Moment` takes the place of the present time, and
of what is computed from it. At each comparison it tells in how many milliseconds the answer will change. So
no rule has to say when it must be asked again, and none can forget to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

Note = Callable[[float], None]
"""Called with the milliseconds for which an answer holds."""

_NOT_FOLLOWED = (
    *("__mul__", "__rmul__", "__floordiv__", "__rfloordiv__", "__truediv__", "__rtruediv__"),
    *("__mod__", "__rmod__", "__divmod__", "__rdivmod__", "__pow__", "__rpow__", "__lshift__", "__rshift__"),
    *("__and__", "__or__", "__xor__", "__abs__", "__invert__", "__round__", "__trunc__", "__floor__"),
    *("__ceil__", "__int__", "__float__", "__index__", "__str__", "__repr__", "__format__"),
)


class Moment(int):
    """A number that changes by `slope` each millisecond.

    To a rule it is an int. Where it does not follow what is made of it (a division, a text, a key), the
    result is a plain one, and holds for no time at all. A float on the left of it is not noticed: the times
    of rules are whole milliseconds.
    """

    note: Note
    slope: int

    def __new__(cls, value: int, note: Note, slope: int = 1) -> Self:
        """`value`: the number now."""
        made = super().__new__(cls, value)
        made.note, made.slope = note, slope
        return made

    def __add__(self, other: int) -> int:
        return self._made(int.__add__(self, other), self.slope + self._slope_of(other))

    __radd__ = __add__

    def __sub__(self, other: int) -> int:
        return self._made(int.__sub__(self, other), self.slope - self._slope_of(other))

    def __rsub__(self, other: int) -> int:
        return self._made(int.__rsub__(self, other), self._slope_of(other) - self.slope)

    def __neg__(self) -> int:
        return self._made(int.__neg__(self), -self.slope)

    def __ge__(self, other: float) -> bool:
        return self._is_ahead(other, 1)

    def __le__(self, other: float) -> bool:
        return self._is_ahead(other, -1)

    def __lt__(self, other: float) -> bool:
        return not self._is_ahead(other, 1)

    def __gt__(self, other: float) -> bool:
        return not self._is_ahead(other, -1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and self._is_ahead(other, 1) and self._is_ahead(other, -1)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        self.note(0)
        return int.__hash__(self)

    def _made(self, value: int, slope: int) -> int:
        """NotImplemented where `value` is: the other number has a way of its own, without this one's time."""
        if value is NotImplemented:
            self.note(0)
        return Moment(value, self.note, slope) if slope and isinstance(value, int) else value

    def _slope_of(self, other: float) -> int:
        if not isinstance(other, Moment):
            return 0
        if other.note != self.note:
            self.note(0)  # each of the two may jump by itself
        return other.slope

    def _is_ahead(self, other: float, sign: int) -> bool:
        """Whether it is at least `other`, or at most, by the sign."""
        slope = sign * (self.slope - self._slope_of(other))
        ahead: float = int.__sub__(self, other) if isinstance(other, int) else int.__float__(self) - other
        ahead *= sign
        if slope > 0 and -math.inf < ahead < 0:
            self.note(math.ceil(-ahead / slope))
        if slope < 0 and 0 <= ahead < math.inf:
            self.note(math.floor(ahead / -slope) + 1)
        return ahead >= 0


def _not_followed(name: str) -> Callable[..., Any]:
    of_int = getattr(int, name)

    def method(self: Moment, *others: object) -> object:
        self.note(0)
        return of_int(self, *others)

    return method


for _name in _NOT_FOLLOWED:
    setattr(Moment, _name, _not_followed(_name))
