"""Processor time of process trees, from one look at all processes."""

from __future__ import annotations

import os
from collections.abc import Iterable

from agent.inside import fence

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds(roots: Iterable[fence.Root]) -> dict[fence.Root, float]:
    """Processor time that each root and its descendants have used; roots that are gone are left out."""
    table = fence.all_processes()
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found = {}
    for pid, start_ticks in roots:
        if pid not in table or table[pid].start_ticks != start_ticks:
            continue
        used, left, seen = 0, [pid], set[int]()
        while left:
            each = left.pop()
            if each not in seen:
                seen.add(each)
                used += table[each].used_ticks
                left += children.get(each, ())
        found[pid, start_ticks] = used / TICKS_PER_S
    return found
