"""The fence devices of the simulated cluster: honest ones, of which some are slow, and some do not work."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from enum import Enum

from supervisor.contract.boundaries import PowerSwitch
from supervisor.contract.errors import Refused

QUICK_S, LATE_S = (0.05, 0.4), (1.0, 5.0)
"""The time that a device takes, in seconds of a fast cluster."""


class Device(Enum):
    """The power devices of a run. LATE: they switch off when nobody expects it any more."""

    NONE = "none"
    WORKS = "works"
    LATE = "late"
    BROKEN = "broken"
    LIES = "lies"


class SimPower(PowerSwitch):
    """The devices as one supervisor uses them. `power_off` switches a node's machine off."""

    def __init__(
        self, kind: Device, after_ms: int, pace: float, rng: random.Random, power_off: Callable[[str], None]
    ) -> None:
        self._kind = kind
        self._pace = pace
        self._rng = rng
        self._power_off = power_off
        self.after_ms = after_ms

    def device(self, node: str, labels: Mapping[str, str]) -> str:
        """The same for every node."""
        return "" if self._kind is Device.NONE else f"fence_{self._kind.value}"

    async def switch_off(self, node: str, labels: Mapping[str, str]) -> None:
        """Raises Refused where it does not work."""
        span_s = LATE_S if self._kind is Device.LATE else QUICK_S
        await asyncio.sleep(self._pace * self._rng.uniform(*span_s))
        if self._kind is Device.BROKEN:
            raise Refused("`action=off` has ended with code 1")
        if self._kind is not Device.LIES:
            self._power_off(node)
