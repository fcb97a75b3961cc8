"""The global step of a job, derived from the step numbers that its training tasks print."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reached:
    """The steps of one attempt.

    Attributes:
        number: the attempt's number within its generation; from 2 on it was restarted while others ran on.
        first, step: the first and the newest step number that it has printed; -1 without any.
        is_local: the program does not call these numbers global.
    """

    number: int
    first: int
    step: int
    is_local: bool = False


def global_step(told: Iterable[Reached], base_step: int) -> int:
    """The newest global step of the attempts of one generation; -1 where none is known.

    A number that the program calls global is taken as it is. Other numbers must behave like global ones:
    every first attempt goes on from `base_step`, the step of the base, and a restarted attempt goes on from
    the step of its peers, and does not begin where they began.
    """
    known = [each for each in told if each.step >= 0]
    sure = [each for each in known if not each.is_local]
    if sure:
        return max(each.step for each in sure)
    began = [each.first for each in known if each.number == 1]
    ahead = [each.step for each in known if each.number == 1]
    for each in known:
        if each.first < base_step:
            return -1
        if each.number > 1 and began and each.first <= max(began) < max(ahead):
            return -1
    return max((each.step for each in known), default=-1)
