"""The pauses of a program that trains and saves, while its checkpoints are taken and committed.

The program (`benchmarks.saving train`) never waits for us: what can hold it up is the disk and the processors
that we use. So it runs twice, alone and watched. Compared is the longest pause between two of its steps in
the time after each save in which that was being taken.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.support.figures import figures
from benchmarks.support.transfers import Ours
from recovery.commit.outbox import TakenCheckpoint, generation_directory
from recovery.stores.open import Stores
from supervisor.contract.checkpoint import Verify
from supervisor.contract.errors import StoreUnreachable

TENSORS = 8
SAVES = 3
LOOK_S = 0.1
LINE_BYTES = 1 << 20
LAST_COMMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Span:
    """From and to, in nanoseconds of CLOCK_MONOTONIC."""

    began: int
    ended: int


@dataclass(slots=True)
class Run:
    """The steps and saves of a program, and the taking and committing of its checkpoints."""

    steps: list[Span] = field(default_factory=list)
    saves: list[Span] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    commits: list[Span] = field(default_factory=list)

    def hear(self, line: str) -> None:
        """A line of the program's output."""
        said = json.loads(line)
        span = Span(said["ns"], said["ns"] + round(said["ms"] * 1e6))
        (self.steps if said["what"] == "step" else self.saves).append(span)

    def taking_ns(self) -> list[int]:
        """The time from the end of each save until it was out of the program's reach."""
        found = []
        for save, following in zip(self.saves, [*self.saves[1:], None], strict=True):
            until = following.began if following is not None else sys.maxsize
            taken = [ns for ns in self.taken if save.ended <= ns < until]
            found += [taken[0] - save.ended] if taken else []
        return found

    def pauses_ms(self, window_ns: int) -> list[float]:
        """The longest time without the end of a step in the window after each save."""
        return [_longest_ms(self.steps, Span(save.ended, save.ended + window_ns)) for save in self.saves]

    def step_ms(self, spans: Sequence[Span] | None = None) -> float | None:
        """Median duration of the steps that ended in these spans; of all without spans."""
        inside = [
            step
            for step in self.steps
            if spans is None or any(span.began <= step.ended <= span.ended for span in spans)
        ]
        found = figures([(step.ended - step.began) / 1e6 for step in inside])
        return round(found.p50, 2) if found is not None else None


@dataclass(frozen=True, slots=True)
class Blocking:
    """`blocked_ms`: by how much the median pause is longer than alone. Steps are medians."""

    blocked_ms: float
    pause_alone_ms: list[float]
    pause_watched_ms: list[float]
    taking_ms: list[float]
    save_alone_ms: list[float]
    save_watched_ms: list[float]
    commit_s: list[float]
    step_alone_ms: float | None
    step_in_commits_ms: float | None
    step_between_ms: float | None

    def row(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


async def measure_blocking(
    uri: str, home: Path, mib: int, between_s: float, say: Callable[[str], None]
) -> Blocking:
    """Run the program twice. Raises StoreUnreachable when it fails, or nothing of it is committed."""
    alone = await _alone(home, mib, between_s)
    say(f"alone: saves take {_rounded(_ms(alone.saves))} ms")
    watched = await _watched(uri, home, mib, between_s)
    say(f"watched: saves take {_rounded(_ms(watched.saves))} ms, commits {_rounded(_ms(watched.commits))} ms")
    return compare(alone, watched)


def compare(alone: Run, watched: Run) -> Blocking:
    """The cost of watching. Raises StoreUnreachable when nothing was taken."""
    taking = watched.taking_ns()
    if not taking:
        raise StoreUnreachable("none of the program's checkpoints was taken")
    window = max(taking)
    before, after = alone.pauses_ms(window), watched.pauses_ms(window)
    quiet = [
        Span(one.ended, other.began)
        for one, other in zip(watched.commits, watched.saves[1:], strict=False)
        if one.ended < other.began
    ]
    return Blocking(
        blocked_ms=round(max(0.0, median(after) - median(before)), 1),
        pause_alone_ms=_rounded(before),
        pause_watched_ms=_rounded(after),
        taking_ms=_rounded([ns / 1e6 for ns in taking]),
        save_alone_ms=_rounded(_ms(alone.saves)),
        save_watched_ms=_rounded(_ms(watched.saves)),
        commit_s=[round(ms / 1000, 2) for ms in _ms(watched.commits)],
        step_alone_ms=alone.step_ms(),
        step_in_commits_ms=watched.step_ms(watched.commits),
        step_between_ms=watched.step_ms(quiet),
    )


async def _alone(home: Path, mib: int, between_s: float) -> Run:
    run = Run()
    directory = home / "alone"
    try:
        await _train(directory, mib, between_s, run)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return run


async def _watched(uri: str, home: Path, mib: int, between_s: float) -> Run:
    run, stores = Run(), Stores()
    ours = Ours(uri, stores, home)
    try:
        await ours.store.prepare()
        watching = asyncio.create_task(_watch(ours, run))
        await _train(generation_directory(ours.parent, 1), mib, between_s, run)
        async with asyncio.timeout(LAST_COMMIT_S):
            while len(run.commits) < len(run.taken):
                await asyncio.wait([watching], timeout=LOOK_S)
                if watching.done():
                    break
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    finally:
        await stores.close()
        shutil.rmtree(home, ignore_errors=True)
    return run


async def _watch(ours: Ours, run: Run) -> None:
    """As an agent does: look ten times a second, commit one after the other."""
    watcher, offered = ours.watcher(), asyncio.Queue[TakenCheckpoint]()

    async def commit() -> None:
        while True:
            taken = await offered.get()
            began = time.monotonic_ns()
            record = await ours.commit(taken, Verify.CRC)
            run.commits.append(Span(began, time.monotonic_ns()))
            await ours.store.delete_tree(record.path)

    async with asyncio.TaskGroup() as group:
        group.create_task(commit())
        while True:
            found = await watcher.look()
            if isinstance(found, TakenCheckpoint):
                run.taken.append(time.monotonic_ns())
                offered.put_nowait(found)
            await asyncio.sleep(LOOK_S)


async def _train(directory: Path, mib: int, between_s: float, run: Run) -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.saving", "train", str(directory)),
        *("--tensors", str(TENSORS), "--mib", str(mib)),
        *("--saves", str(SAVES), "--between-s", str(between_s)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES,
    )
    assert program.stdout is not None
    try:
        async for line in program.stdout:
            run.hear(line.decode())
        if await program.wait() != 0:
            raise StoreUnreachable("the program that saves has failed; its words are above")
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()


def _longest_ms(steps: Sequence[Span], window: Span) -> float:
    ends = [step.ended for step in steps if window.began <= step.ended]
    marks = [window.began]
    for end in ends:
        marks.append(end)
        if end > window.ended:
            break
    return max((later - earlier for earlier, later in pairwise(marks)), default=0) / 1e6


def _ms(spans: Sequence[Span]) -> list[float]:
    return [(span.ended - span.began) / 1e6 for span in spans]


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 1) for value in values]
