"""How far a job is, from what its training tasks call a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reached:
    """Where one attempt is.

    Attributes:
        number: of the attempt within its generation; from 2 on it was started again while others ran on.
        first, step: the first and the newest number that it has called a step; -1 without any.
        is_local: the program does not say that they are global.
    """

    number: int
    first: int
    step: int
    is_local: bool = False


def global_step(told: Iterable[Reached], base_step: int) -> int:
    """The newest global step of the attempts of one generation; -1 where none is known.

    A number that is called global is believed. Others must behave like one: every attempt goes on from the
    base, of `base_step`, and one that was started again goes on from where its peers are, instead of
    beginning where they began.
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
