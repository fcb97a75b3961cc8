"""A fault as data, and how one lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chaos.sim.cluster.world import World

FATAL = "task_hang_for_good"
SCRIPTED = ("task_hang", FATAL)
"""Kinds that need a job that is watched closely enough to end within the run. A job that meets a FATAL one
fails of it, and keeps what hangs for inspection."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a schedule. `pick` chooses its victim among those that there are when it strikes."""

    at_s: float
    kind: str
    pick: int
    for_s: float


def later(world: World, fault: Fault, undo: Callable[[], None]) -> None:
    """The end of a fault."""
    world.loop.post(None, fault.for_s, undo)


def every(world: World, fault: Fault, period_s: float, strike: Callable[[], None]) -> None:
    """Again and again, until the fault or all trouble is over."""
    end_s = world.loop.time() + fault.for_s

    def again() -> None:
        if world.loop.time() <= end_s and not world.healed:
            strike()
            world.loop.post(None, period_s, again)

    again()
