"""The processor time and the file traffic of process trees, from one look at all processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agent.inside.processes import fence

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MOVED = (b"rchar", b"wchar", b"read_bytes", b"write_bytes")


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of a process tree so far.

    Attributes:
        cpu_s: processor time.
        runnable: one of its main threads runs, or could run.
        moved_bytes: bytes that it has read and written in files, pipes and disks, without network traffic; 0
            if unknown.
    """

    cpu_s: float
    runnable: bool
    moved_bytes: int = 0


def usage_of(roots: Iterable[fence.Root]) -> dict[fence.Root, Usage]:
    """Root -> usage of the root and its descendants; roots that are gone are left out."""
    table = fence.all_processes()
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found = {}
    for pid, start_ticks in roots:
        if pid not in table or table[pid].start_ticks != start_ticks:
            continue
        used, moved, runnable, left, seen = 0, 0, False, [pid], set[int]()
        while left:
            each = left.pop()
            if each not in seen:
                seen.add(each)
                used += table[each].used_ticks
                moved += _moved_bytes(each)
                runnable |= table[each].state == "R"
                left += children.get(each, ())
        found[pid, start_ticks] = Usage(used / TICKS_PER_S, runnable, moved)
    return found


def _moved_bytes(pid: int) -> int:
    """Bytes that a process has moved: by its system calls, and between memory and disks, as a write of
    gigabytes is one call.
    """
    try:
        raw = Path(f"/proc/{pid}/io").read_bytes()
        told = dict(line.split(b": ") for line in raw.splitlines())
        return sum(int(told[name]) for name in _MOVED)
    except (OSError, ValueError, KeyError):
        return 0
