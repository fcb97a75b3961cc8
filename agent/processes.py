"""Processor time of process trees, from one look at all processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from agent.inside import fence

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time that a process tree has used, and whether one of its main threads runs or could run."""

    cpu_s: float
    runnable: bool


def usage_of(roots: Iterable[fence.Root]) -> dict[fence.Root, Usage]:
    """What each root and its descendants have used; roots that are gone are left out."""
    table = fence.all_processes()
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found = {}
    for pid, start_ticks in roots:
        if pid not in table or table[pid].start_ticks != start_ticks:
            continue
        used, runnable, left, seen = 0, False, [pid], set[int]()
        while left:
            each = left.pop()
            if each not in seen:
                seen.add(each)
                used += table[each].used_ticks
                runnable |= table[each].state == "R"
                left += children.get(each, ())
        found[pid, start_ticks] = Usage(used / TICKS_PER_S, runnable)
    return found
