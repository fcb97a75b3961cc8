"""The scenarios by name: each fault alone, and faults together.

A seed makes the choices that a name leaves open.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from chaos.cluster import Shape
from chaos.faults import FAULTS
from chaos.faults.fault import Fault
from chaos.programs import Program

PAIR = "pair"


@dataclass(frozen=True, slots=True)
class Scenario:
    """`faults` are injected one shortly after the other and are in force together; empty: any `count`."""

    name: str
    text: str
    faults: tuple[str, ...] = ()
    count: int = 0

    def choose(self, rng: random.Random, available: Mapping[str, Fault]) -> tuple[Sequence[Fault], int]:
        """The faults of one run, and how many of them it is to have.

        Those named, even where they cannot be had; or all, in an order of chance: one that has nothing to be
        done to, as the one before it took that away, gives way to the next.
        """
        if self.faults:
            return [FAULTS[name] for name in self.faults], len(self.faults)
        apart = [name for name in sorted(available) if not available[name].alone]
        return [available[name] for name in rng.sample(apart, len(apart))], self.count

    def shape(self, usual: Shape) -> Shape:
        """The shape of a cluster for it."""
        changes = {name: value for fault in self.faults for name, value in FAULTS[fault].shape}
        return Shape(**{**_fields(usual), **changes})

    def fits(self, program: Program) -> bool:
        """Whether a job of this program can have it; what chance is to choose fits only one that has all."""
        if not (program.families or program.without):
            return True
        return bool(self.faults) and all(
            (not program.families or FAULTS[name].family.value in program.families)
            and name not in program.without
            for name in self.faults
        )

    def possible(self, available: Mapping[str, Fault]) -> bool:
        """Whether this cluster can have it."""
        return all(name in available for name in self.faults)


def _fields(shape: Shape) -> dict[str, Any]:
    return {field.name: getattr(shape, field.name) for field in fields(shape)}


def scenarios() -> dict[str, Scenario]:
    """All scenarios, by name."""
    single = [Scenario(fault.name, fault.text, (fault.name,)) for fault in FAULTS.values()]
    together = [Scenario(PAIR, "two random faults at once", count=2)]
    return {each.name: each for each in (*single, *together)}
