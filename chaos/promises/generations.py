"""One generation of a job takes effect at a time (rules 4 to 6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chaos.history.history import History
from chaos.history.lines import parse
from chaos.history.lives import FOREVER, Life
from chaos.history.records import Cluster, Switch
from chaos.promises.violation import Broken

KILL_TIME_MS = {"fast": 1_000, "default": 2_000}
"""The longest time for a kill, by profile of timing."""

THAW_KILL_MS = 200
LOOKING_MS = 150
"""Tolerance of what is seen by looking at /proc: two looks, and the wait for a processor on a busy machine.
"""

BUSY_MS = 1_000
"""Tolerance of what takes seconds by the rules: a machine with fewer processors than programs."""


@dataclass(frozen=True, slots=True)
class Flip:
    """A generation came into force: surely before `at_ms`, surely not before `after_ms`."""

    job: str
    generation: int
    revision: int
    after_ms: float
    at_ms: float
    before: Switch
    switch: Switch
    d_ms: int
    kill_ms: int


def flips(history: History) -> list[Flip]:
    """The flips of the run's job during the recording, in order."""
    found = []
    for moment, state in history.walk():
        for line in moment.put("switches/"):
            job = line.key.split("/")[1]
            before = state.switch(job)
            after = switch_of(line.value)
            if before is None or before.job_uuid != after.job_uuid or after.generation <= before.generation:
                continue
            if job not in history.jobs() or not moment.live:
                continue
            cluster = state.get(Cluster, "cluster")
            kill_ms = KILL_TIME_MS.get(cluster.profile if cluster is not None else "", 2_000)
            found.append(
                Flip(
                    *(job, after.generation, moment.revision, moment.after_ms, moment.at_ms),
                    *(before, after, state.d_ms, kill_ms),
                )
            )
    return found


def switch_of(value: str) -> Switch:
    """The record in a change."""
    return parse(Switch, value)


def generation_of(attempt: str) -> int:
    """The generation of an attempt `JOB/ROLE:INDEX@GENERATION.NUMBER`; -1 for another text."""
    generation = attempt.rpartition("@")[2].partition(".")[0]
    return int(generation) if generation.isdigit() else -1


def one_generation_takes_effect(history: History) -> Iterator[Broken]:
    """One generation takes effect at a time; what was frozen has SIGKILL pending 200 ms after it thaws."""
    yield from _crossed_calls(history)
    for flip in flips(history):
        for life in history.lives:
            if life.launcher or not life.attempt.startswith(f"{flip.job}/"):
                continue
            if generation_of(life.attempt) == flip.before.generation:
                yield from _outlived(life, flip, history.run.patience)
                yield from _thawed(life, flip, history)


def _crossed_calls(history: History) -> Iterator[Broken]:
    """A server answers only who is of its own generation."""
    for line in history.steps:
        if line.kind == "accepted" and line.caller_generation not in (-1, line.generation):
            yield Broken(f"{line.attempt} accepted a call of {line.caller}", line.at_ms)


def _outlived(life: Life, flip: Flip, patience: float) -> Iterator[Broken]:
    """Executed, and not held or dying, for longer than a deadline can last that was given before the flip."""
    limit_ms = flip.d_ms + flip.kill_ms + BUSY_MS * patience
    executed_ms = sum(span.end_ms - span.begin_ms for span in life.runs(flip.at_ms, FOREVER))
    if executed_ms > limit_ms:
        yield Broken(
            f"{life} was executed for {executed_ms:.0f} ms after generation {flip.generation} came into "
            f"force; at most {limit_ms:.0f} ms",
            flip.at_ms + limit_ms,
            (f"flip at revision {flip.revision}",),
        )


def _thawed(life: Life, flip: Flip, history: History) -> Iterator[Broken]:
    patience, ended_ms = history.run.patience, history.ended_ms
    for held_ms, thawed_ms in life.thaws():
        if held_ms < flip.at_ms:
            continue
        pending_ms = thawed_ms + THAW_KILL_MS + LOOKING_MS * patience
        if pending_ms < min(life.killed_ms, life.seen_ms, ended_ms):
            yield Broken(
                f"{life} thawed after generation {flip.generation} came into force, and had no SIGKILL "
                f"pending {THAW_KILL_MS} ms later",
                thawed_ms,
            )
        gone_ms = thawed_ms + THAW_KILL_MS + flip.kill_ms + BUSY_MS * patience
        if gone_ms < min(life.seen_ms, ended_ms):
            yield Broken(f"{life} was still there {gone_ms - thawed_ms:.0f} ms after it thawed", gone_ms)
