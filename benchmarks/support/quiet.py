"""Waiting for a moment in which the machine has time for what is measured, when others work on it too."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

LOOK_S = 0.5


@dataclass(slots=True)
class Quiet:
    """Before a kill: wait, for at most `patience_s`, until `idle_share` of all cores was idle for a moment.

    It says nothing about what starts after the kill. `idle` is reported with the figures.
    """

    patience_s: float
    idle_share: float = 0.3
    idle: list[float] = field(default_factory=list)

    async def wait(self) -> None:
        """Return at the first such moment, or when patience is over."""
        deadline = time.monotonic() + self.patience_s
        while True:
            before = _ticks()
            await asyncio.sleep(LOOK_S)
            after = _ticks()
            share = (after[0] - before[0]) / max(1, after[1] - before[1])
            if share >= self.idle_share or time.monotonic() > deadline:
                self.idle.append(round(share, 2))
                return


def _ticks() -> tuple[int, int]:
    """Idle and all ticks of all cores since boot."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return numbers[3] + numbers[4], sum(numbers)
