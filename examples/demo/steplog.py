"""The outside stopwatch: the files that the training program itself writes after each of its steps.

With `STEP_LOG=DIR` each process of `examples/digits_async/train.py` appends to a file of its own,
`DIR/ROLE-INDEX.NUMBER`, a line `monotonic_ns global_step` after each step. Nothing of the supervisor is
involved, so a time between a kill and a line is what a user would see.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one process: `ns` on CLOCK_MONOTONIC, `step` the global step after it, `file` whose."""

    ns: int
    step: int
    file: int


@dataclass(slots=True)
class _File:
    task: str
    number: int
    offset: int = 0


@dataclass(slots=True)
class StepLog:
    """Every step written so far, by task (`worker:0`), oldest first."""

    directory: Path
    steps: dict[str, list[Step]] = field(default_factory=dict)
    _files: dict[str, _File] = field(default_factory=dict)

    def read(self) -> None:
        """Take in what was written since the last call; lines still being written wait for the next."""
        if not self.directory.is_dir():
            return
        for path in sorted(self.directory.iterdir()):
            file = self._files.get(path.name)
            if file is None:
                task, _, number = path.name.rpartition(".")
                role, _, index = task.rpartition("-")
                file = self._files[path.name] = _File(f"{role}:{index}", int(number))
            with path.open("rb") as stream:
                stream.seek(file.offset)
                text = stream.read()
            whole = text[: text.rfind(b"\n") + 1]
            file.offset += len(whole)
            steps = self.steps.setdefault(file.task, [])
            known = len(steps)
            for line in whole.splitlines():
                ns, step = line.split()
                steps.append(Step(int(ns), int(step), file.number))
            # Each file is in order: only two processes of one task that overlap need sorting.
            if 0 < known < len(steps) and steps[known].ns < steps[known - 1].ns:
                steps.sort(key=_ns)

    def processes(self, task: str = "") -> frozenset[int]:
        """Every process that has stepped, by its file's number: of one task, or of all."""
        return frozenset(
            file.number for file in self._files.values() if task in ("", file.task) and file.offset
        )

    def newest(self, task: str = "") -> Step | None:
        """The latest step."""
        return max((steps[-1] for steps in self._of(task)), key=_ns, default=None)

    def first_after(self, ns: int, task: str = "", *, not_of: Collection[int] = ()) -> Step | None:
        """The first step after `ns`, of a process that is not among `not_of`."""
        found = (
            next(
                (
                    step
                    for step in islice(steps, bisect_right(steps, ns, key=_ns), None)
                    if step.file not in not_of
                ),
                None,
            )
            for steps in self._of(task)
        )
        return min((step for step in found if step is not None), key=_ns, default=None)

    def longest_gap_ns(self, since_ns: int, task: str = "") -> int:
        """The longest time without a step that ended after `since_ns`."""
        longest = 0
        for steps in self._of(task):
            recent = steps[max(0, bisect_right(steps, since_ns, key=_ns) - 1) :]
            gaps = (after.ns - before.ns for before, after in pairwise(recent))
            longest = max(longest, max(gaps, default=0))
        return longest

    def _of(self, task: str) -> list[list[Step]]:
        return [steps for name, steps in self.steps.items() if steps and task in ("", name)]


def _ns(step: Step) -> int:
    return step.ns
