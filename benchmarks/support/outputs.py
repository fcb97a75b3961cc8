"""The stopwatch for programs of any style: when does a line with a step arrive in a task's output?

Both a supervised task and one in a shell loop write to a file of their own for each process; the files are
looked at every 20 ms, so that a time is at most that much late, and nothing of the supervisor is involved.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from itertools import pairwise
from pathlib import Path

POLL_S = 0.02
IN_FLIGHT_NS = 250_000_000
"""A line that a task prints so soon after the kill may have been computed before it."""

STEPS_AGAIN = 2
"""So many lines make a process one that steps: a single one may be the last before it hangs."""

_STEP = re.compile(rb"^step \d+", re.MULTILINE)
_RUN = re.compile(r"([^/]+)\.([0-9]+)-(?:g[0-9]+\.[0-9]+/output|[0-9]+)\.log")


@dataclass(frozen=True, slots=True)
class Seen:
    """A line with a step: when it was seen (CLOCK_MONOTONIC), and the process, by its file."""

    ns: int
    run: str


@dataclass(frozen=True, slots=True)
class Kill:
    """`runs`: the processes that there had been before it; `renewed`: the tasks that must get new ones."""

    ns: int
    runs: frozenset[str]
    renewed: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sample:
    """One kill. `first_ms`: to the first new step of the killed trainer, or of any if it was none;
    `all_ms`: until every trainer steps again. `pause_ms`: the longest time in which none made a step.
    """

    first_ms: float
    all_ms: float
    pause_ms: float = 0.0


@dataclass(slots=True)
class Outputs:
    """The output files below `directory` that match `pattern`, `ROLE.INDEX-gN.N/output.log` or
    `ROLE.INDEX-N.log`: by task (`worker:0`) its processes, oldest first, and its steps since `mark`.
    """

    directory: Path
    pattern: str
    runs: dict[str, list[str]] = field(default_factory=dict)
    steps: dict[str, list[Seen]] = field(default_factory=dict)
    _files: dict[str, tuple[str, FileIO]] = field(default_factory=dict)
    _rest: dict[str, bytes] = field(default_factory=dict)

    def read(self) -> None:
        """Take in what was written since the last call; a line that is still being written waits."""
        for path in self.directory.glob(self.pattern):
            run = str(path)
            found = None if run in self._files else _RUN.search(run)
            if found is not None:
                task = f"{found[1]}:{found[2]}"
                self._files[run] = (task, FileIO(path))
                self.runs.setdefault(task, []).append(run)
        for run, (task, file) in self._files.items():
            whole, end, rest = (self._rest.get(run, b"") + file.readall()).rpartition(b"\n")
            self._rest[run] = rest
            lines = len(_STEP.findall(whole + end))
            if lines:
                seen = Seen(time.monotonic_ns(), run)
                self.steps.setdefault(task, []).extend([seen] * lines)

    def mark(self) -> None:
        """Forget all steps, not the processes."""
        self.steps.clear()

    def close(self) -> None:
        """Close the files."""
        for _, file in self._files.values():
            file.close()


def stepping(outputs: Outputs, tasks: Collection[str], lines: int) -> bool:
    """Whether the newest process of each task has printed so many steps since the mark."""
    return all(
        task in outputs.runs
        and sum(seen.run == outputs.runs[task][-1] for seen in outputs.steps.get(task, ())) >= lines
        for task in tasks
    )


def sample(
    runs: Mapping[str, Sequence[str]],
    steps: Mapping[str, Sequence[Seen]],
    trainers: Collection[str],
    victim: str,
    kill: Kill,
) -> Sample | None:
    """The sample of a kill, without the pause, once all trainers step again; None before.

    Args:
        runs: the processes of each task, oldest first.
        steps: the steps of each task since the kill, oldest first.
        trainers: the tasks that print steps.
        victim: the killed task.
        kill: when, and what there was before.
    """
    again = [_again_ns(runs[task], steps.get(task, ()), task, kill) for task in trainers]
    known = [ns for ns in again if ns is not None]
    if len(known) < len(again):
        return None
    watched = (victim,) if victim in trainers else trainers
    firsts = [_first_ns(runs[task], steps[task], task, kill) for task in watched]
    first = min(ns for ns in firsts if ns is not None)
    return Sample((first - kill.ns) / 1e6, (max(known) - kill.ns) / 1e6)


def longest_pause_ms(steps: Mapping[str, Sequence[Seen]], kill: Kill) -> float:
    """The longest time since the kill without a step of any task, old process or new."""
    moments = sorted([kill.ns, *(seen.ns for own in steps.values() for seen in own)])
    return max((after - before for before, after in pairwise(moments)), default=0) / 1e6


def _again_ns(runs: Sequence[str], steps: Sequence[Seen], task: str, kill: Kill) -> int | None:
    """The first step of the process that goes on in the end, once it has made a second one."""
    if _replaced(runs, task, kill):
        own = [seen.ns for seen in steps if seen.run == runs[-1] and seen.run not in kill.runs]
    else:
        own = [seen.ns for seen in steps if seen.ns > kill.ns + IN_FLIGHT_NS]
    return own[0] if len(own) >= STEPS_AGAIN else None


def _first_ns(runs: Sequence[str], steps: Sequence[Seen], task: str, kill: Kill) -> int | None:
    """The first new step, also of a process that did not last."""
    if _replaced(runs, task, kill):
        return next((seen.ns for seen in steps if seen.run not in kill.runs), None)
    return next((seen.ns for seen in steps if seen.ns > kill.ns + IN_FLIGHT_NS), None)


def _replaced(runs: Sequence[str], task: str, kill: Kill) -> bool:
    return task in kill.renewed or runs[-1] not in kill.runs
