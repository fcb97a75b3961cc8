"""Percentiles, goals and the description of the machine, in the form that the benchmarks print."""

from __future__ import annotations

import datetime as dt
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    """Durations in milliseconds. p99 of fewer than 100 samples is the largest one (nearest rank)."""

    n: int
    p50: float
    p99: float
    max: float


def figures(samples: Sequence[float]) -> Figures | None:
    """Figures of at least one sample."""
    if not samples:
        return None
    ordered = sorted(samples)
    return Figures(len(ordered), _rank(ordered, 0.50), _rank(ordered, 0.99), ordered[-1])


def row(samples: Sequence[float]) -> dict[str, float] | None:
    """The figures for JSON, two digits after the point; None without a sample."""
    found = figures(samples)
    return {name: round(value, 2) for name, value in asdict(found).items()} if found is not None else None


def medians(phases: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """p50 of each phase over the incidents that had it."""
    names = dict.fromkeys(name for entry in phases for name in entry)
    return {name: _rank(sorted(entry[name] for entry in phases if name in entry), 0.50) for name in names}


@dataclass(frozen=True, slots=True)
class Goal:
    """A promised bound and what was measured. `at_most` tells the direction."""

    what: str
    bound: float
    measured: float | None
    at_most: bool = True

    @property
    def met(self) -> bool:
        """Whether there is a measurement and it keeps the bound."""
        if self.measured is None:
            return False
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound

    def row(self) -> dict[str, object]:
        """For JSON."""
        return {"what": self.what, "goal": self.bound, "measured": self.measured, "met": self.met}


def machine() -> dict[str, object]:
    """The machine of the figures, and its load by other work at the start."""
    kernel = ".".join(platform.release().split(".")[:2])
    return {
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {kernel}",
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "load_1min_at_start": round(os.getloadavg()[0], 1),
    }


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
