"""Checkpoints that are not TensorFlow's own: the files of a save, and the moment at which it is finished.

Pure.

The job names them by patterns, in the order in which its program writes them. So a save is whole when no file
of an earlier pattern is newer than those of a later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recovery.families.watch_rule import IDLE, FileMark, Idle, Unfinished
from supervisor.contract.job.file_pattern import STEP, compile_pattern


@dataclass(frozen=True, slots=True)
class Save:
    """Files of one save, by name; `step` is in their names, None where the patterns have none."""

    step: int | None
    marks: tuple[FileMark, ...]


def judge_files(
    patterns: Sequence[str],
    before: Save | None,
    now: Save | None,
    taken: Save | None,
    *,
    final: bool,
) -> Save | Idle | Unfinished:
    """The result of the newest look.

    Args:
        patterns: the job's patterns.
        before: the save that the look before it gathered.
        now: the save that this look gathered.
        taken: the save that was taken last, or was there at the start.
        final: the writer is dead, so that one look is enough.
    """
    if now is None or now == taken:
        return IDLE
    if not final and before != now:
        return Unfinished(patterns[-1])
    return now


def gather(patterns: Sequence[str], marks: Sequence[FileMark]) -> Save | None:
    """The newest full save; None without one: a file is missing, or older than one before it."""
    groups = [_group(pattern, marks) for pattern in patterns]
    numbered = [group for pattern, group in zip(patterns, groups, strict=True) if STEP in pattern]
    steps: set[int | None] = set.intersection(*(set(group) for group in numbered)) if numbered else {None}
    for step in sorted(steps, key=lambda each: -1 if each is None else each, reverse=True):
        chosen = [group.get(step if step in group else None, ()) for group in groups]
        if all(chosen) and _in_order(chosen):
            return Save(step, tuple(sorted({mark for group in chosen for mark in group})))
    return None


def _group(pattern: str, marks: Sequence[FileMark]) -> dict[int | None, tuple[FileMark, ...]]:
    """The files that match, by the step in their names."""
    compiled = compile_pattern(pattern)
    found: dict[int | None, tuple[FileMark, ...]] = {}
    for mark in marks:
        match = compiled.fullmatch(mark.name)
        if match is not None:
            step = int(match.group(1)) if STEP in pattern else None
            found[step] = (*found.get(step, ()), mark)
    return found


def _in_order(groups: Sequence[Sequence[FileMark]]) -> bool:
    newest = [max(mark.mtime_ns for mark in group) for group in groups]
    return newest == sorted(newest)
