"""Strikes at every effect that seeds lead to: each seed is run as it is, then again, and a daemon dies there.

A seed replays exactly, so that whoever came to a failpoint comes to it again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Aim:
    """A failpoint, and the how many-th time that a daemon of the run comes to it."""

    point: str
    hit: int = 1

    def __str__(self) -> str:
        return f"{self.point}:{self.hit}"

    @classmethod
    def parse(cls, text: str) -> Aim:
        """`leader.flip.before:2`. Raises ValueError."""
        point, _, hit = text.rpartition(":")
        if not point or not hit.isdigit() or not int(hit):
            raise ValueError(f"{text!r} is no aim: write leader.flip.before:1")
        return cls(point, int(hit))


def aims(reached: Mapping[int, Mapping[str, int]], times: int) -> list[tuple[int, Aim]]:
    """The aims: each point `times` times, in different seeds as far as there are so many.

    `reached`: how often a daemon came to each point, by seed. The rarest points choose their seeds first, and
    each those that have been chosen least.
    """
    seeds: dict[str, list[int]] = {}
    for seed, points in sorted(reached.items()):
        for point in points:
            seeds.setdefault(point, []).append(seed)
    chosen = dict.fromkeys(reached, 0)
    found = []
    for point in sorted(seeds, key=lambda each: (len(seeds[each]), each)):
        for seed in sorted(seeds[point], key=lambda each: (chosen[each], each))[:times]:
            chosen[seed] += 1
            hit = random.Random(f"{seed} {point}").randint(1, reached[seed][point])
            found.append((seed, Aim(point, hit)))
    return found
