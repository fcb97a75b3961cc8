"""Carries messages between the seats, etcd and the store, with the faults of the present weather."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence

from chaos.sim.cluster.loop import PROCESS, VirtualLoop
from chaos.sim.cluster.seat import Seat, Weather
from recovery.stores.memory import Moment
from supervisor.adapters.etcd.memory import Fault
from supervisor.contract.errors import StoreUnreachable
from supervisor.contract.observed import Beat


class Network:
    """Delays, losses and repetitions, drawn from the run's randomness.

    `troubled_s`: when the store was last slow or silent.
    """

    def __init__(
        self, loop: VirtualLoop, rng: random.Random, weather: Weather, supervisors: Sequence[Seat]
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._weather = weather
        self._supervisors = supervisors
        self.store_changed: list[Callable[[], None]] = []
        self.troubled_s = -math.inf

    def carry(self, node: str, beat: Beat) -> None:
        """A node's beat, to every supervisor that it reaches."""
        weather, rng = self._weather, self._rng
        if node in weather.cut_from_supervisors or _sender_is_dead():
            return
        for seat in self._supervisors:
            if seat.name in weather.cut_from_supervisors:
                continue
            copies = 2 if rng.random() < weather.twice else 1
            for _ in range(0 if rng.random() < weather.lost else copies):
                delay_s = rng.uniform(0.0002, 0.003)
                if rng.random() < weather.slow:
                    delay_s += rng.uniform(0.0, weather.slow_s)
                self._deliver(seat, delay_s, beat)

    def _deliver(self, seat: Seat, delay_s: float, beat: Beat) -> None:
        process, control = seat.process, seat.control
        if process is not None and control is not None:
            self._loop.post(process, delay_s, lambda: control.on_beat(beat))

    def etcd_delay(self, step: str) -> float:
        """Seconds that a message from or to etcd takes."""
        weather, rng = self._weather, self._rng
        delay_s = rng.uniform(0.0002, 0.002)
        if step == "watch" and weather.watch_lag_s:
            delay_s += rng.uniform(0.0, weather.watch_lag_s)
        if weather.slow and rng.random() < weather.slow:
            delay_s += rng.uniform(0.0, weather.slow_s)
        return delay_s

    def etcd_fault(self, _call: str) -> Fault | None:
        """The fault of a call of etcd: a lost request, a lost reply, or None."""
        if self._weather.etcd_fault and self._rng.random() < self._weather.etcd_fault:
            return self._rng.choice((Fault.LOST_REQUEST, Fault.LOST_REPLY))
        return None

    async def store_hook(self, operation: str, path: str, moment: Moment) -> None:
        """Delay an operation of the checkpoint store, or raise StoreUnreachable, as the weather has it."""
        weather, rng = self._weather, self._rng
        if _sender_is_dead():
            await asyncio.Event().wait()
        if weather.store_fault or weather.store_lag_s:
            self.troubled_s = self._loop.time()
        if moment is Moment.BEFORE:
            await asyncio.sleep(rng.uniform(0.0005, weather.store_s + weather.store_lag_s))
        if weather.store_fault and rng.random() < weather.store_fault / 3:
            raise StoreUnreachable(f"{operation} {path}: no answer")
        if moment is Moment.AFTER:
            for callback in self.store_changed:
                callback()


def _sender_is_dead() -> bool:
    """It was killed in the middle of a step that went on to here."""
    process = PROCESS.get()
    return process is not None and not process.alive
