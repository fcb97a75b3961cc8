"""Stopped agents in the simulated cluster: some nodes fence their tasks."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from agent.boundaries import Process
from chaos.sim.cluster.node import SimRuntime


class Keeper(Enum):
    """The nodes' fencing in a run. LATE: it comes late. LIES: they end nothing, and say that they did.

    `delay_s`: the time until it begins, in seconds of a fast cluster.
    """

    NONE = "none", (0.0, 0.0)
    WORKS = "works", (0.02, 0.4)
    LATE = "late", (1.0, 8.0)
    LIES = "lies", (0.02, 0.4)

    def __init__(self, _word: str, delay_s: tuple[float, float]) -> None:
        self.delay_s = delay_s


class LyingRuntime(SimRuntime):
    """A runtime that sees nothing of what runs."""

    async def living(self) -> Mapping[str, tuple[Process, ...]]:
        """Nothing, it says."""
        return {}

    async def fence(self, launcher_id: str, processes: tuple[Process, ...]) -> int:
        """All are dead, it says."""
        return 0
