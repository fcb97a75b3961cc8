"""Cut a failing schedule down to the faults that it takes: delta debugging over the schedule's numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaos.sim.run import Result, run_swarm
from chaos.sim.swarm import Length

MOST_RUNS = 80


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A shorter schedule that breaks the same promise. `runs`: how many it took to find it."""

    only: tuple[int, ...]
    result: Result
    runs: int


def promise_of(result: Result) -> str:
    """The first promise that a run broke, or its error; empty for a run that passed."""
    if result.violations:
        return result.violations[0].split("]")[0]
    return result.error.split(":")[0]


def shrink(seed: int, length: Length, say: Callable[[str], None]) -> Shrunk | None:
    """The shortest schedule found that breaks what the seed's own breaks; None if that breaks nothing."""
    first = run_swarm(seed, length)
    wanted = promise_of(first)
    if not wanted:
        return None
    tried: dict[tuple[int, ...], Result] = {}

    def fails(only: tuple[int, ...]) -> bool:
        if only not in tried:
            if len(tried) >= MOST_RUNS:
                return False
            tried[only] = run_swarm(seed, length, only=only)
            kept = ", ".join(map(str, only)) or "none"
            say(f"faults {kept}: {promise_of(tried[only]) or 'all promises kept'}")
        return promise_of(tried[only]) == wanted

    everything = tuple(range(1, len(first.schedule) + 1))
    only = minimise(everything, fails)
    return Shrunk(only, tried.get(only, first), len(tried) + 1)


def minimise(items: Sequence[int], fails: Callable[[tuple[int, ...]], bool]) -> tuple[int, ...]:
    """Drop what is not needed for `fails` to hold, in halves first, then in smaller and smaller pieces."""
    left = tuple(items)
    pieces = 2
    while left:
        size = max(1, len(left) // pieces)
        without = [left[:start] + left[start + size :] for start in range(0, len(left), size)]
        smaller = next((each for each in without if fails(each)), None)
        if smaller is not None:
            left, pieces = smaller, max(2, pieces - 1)
        elif size == 1:
            break
        else:
            pieces *= 2
    return left
