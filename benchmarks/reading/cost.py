"""The rate of a reading, and the processor time of the processes that have a part in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

MB = 1e6


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading. `cpu_s_per_gib`: seconds of processor time for each GiB, by the kind of process."""

    mb_per_s: float
    cpu_s_per_gib: dict[str, float]


def measured(work: Callable[[], int], processes: Mapping[str, tuple[int, ...]]) -> Reading:
    """Do `work`, which returns the number of bytes that it read. `processes`: process ids by kind."""
    before = {kind: _used_s(pids) for kind, pids in processes.items()}
    began = time.monotonic()
    size = work()
    took_s = time.monotonic() - began
    spent = {kind: _used_s(pids) - before[kind] for kind, pids in processes.items()}
    return Reading(size / MB / took_s, {kind: each / size * (1 << 30) for kind, each in spent.items()})


def _used_s(pids: tuple[int, ...]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return float(sum(each.user + each.system for each in times))
