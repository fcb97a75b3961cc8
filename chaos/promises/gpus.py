"""A GPU is in one exclusive task at most (rule 5: also when that task is frozen)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chaos.history.history import History
from chaos.history.lives import Life
from chaos.history.past import record
from chaos.history.records import Assignment, Report
from chaos.promises.violation import Broken


@dataclass(frozen=True, slots=True)
class Holding:
    """A process that may use GPUs of its node."""

    life: Life
    gpus: frozenset[str]
    shares: bool


def a_gpu_is_in_one_task(history: History) -> Iterator[Broken]:
    """A GPU is in one exclusive task at most."""
    held = _holdings(history)
    for index, one in enumerate(held):
        for other in held[index + 1 :]:
            both = one.gpus & other.gpus
            same = one.life.attempt == other.life.attempt or (one.shares and other.shares)
            if not both or same or one.life.node != other.life.node:
                continue
            begin_ms = max(one.life.born_ms, other.life.born_ms)
            if begin_ms < min(one.life.seen_ms, other.life.seen_ms):
                yield Broken(f"{one.life} and {other.life} have {', '.join(sorted(both))}", begin_ms)


def _holdings(history: History) -> list[Holding]:
    gpus: dict[str, frozenset[str]] = {}
    shares: dict[str, bool] = {}
    for moment in history.moments:
        for line in moment.put("attempts/"):
            report = record(Report, line.key, line.value)
            gpus[report.attempt_id] = gpus.get(report.attempt_id, frozenset()) | frozenset(report.gpus)
        for line in moment.put("assignments/"):
            wanted = record(Assignment, line.key, line.value)
            shares[wanted.attempt_id] = wanted.gpus_shared
    for step in history.steps:
        if step.kind == "start" and step.gpus:
            told = {each for each in step.gpus.split(",") if each.startswith("GPU-")}
            gpus[step.attempt] = gpus.get(step.attempt, frozenset()) | told
    return [
        Holding(life, gpus[life.attempt], shares.get(life.attempt, False))
        for life in history.lives
        if not life.launcher and gpus.get(life.attempt)
    ]
