"""Rule 11 in the simulated world: the calls between agents and supervisors, disks of promises, and the truth.

The truth is kept by the network, not by the daemons: when a request was sent whose answer promised something.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent.boundaries import Post
from agent.core.events import Promised
from chaos.sim.cluster.loop import SimProcess, VirtualLoop
from chaos.sim.cluster.machine import NodeClock
from chaos.sim.cluster.seat import Seat, Weather
from supervisor.contract.promise import PromiseRequest, Word
from supervisor.control.loop.etcd_identity import Mark


@dataclass(slots=True, eq=False)
class WordDisk:
    """The parts of a supervisor's host that survive its process: its files, and the number of the boot."""

    name: str
    boots: int = 1
    word: Word | None = None
    mark: Mark | None = None


class SimWordFile:
    """`WordFile`: a crash leaves the old one or the new one."""

    def __init__(self, disk: WordDisk, rng: random.Random) -> None:
        self._disk = disk
        self._rng = rng

    def boot_id(self) -> str:
        """Changes whenever the host boots."""
        return f"{self._disk.name}-boot-{self._disk.boots}"

    def read(self) -> Word | None:
        """The record that the last process left; None without one."""
        return self._disk.word

    async def save(self, word: Word) -> None:
        """Replace it."""
        await asyncio.sleep(self._rng.uniform(0.0002, 0.01))
        await asyncio.to_thread(setattr, self._disk, "word", word)
        await asyncio.sleep(self._rng.uniform(0.0, 0.003))


class SimMarkFile:
    """`MarkFile`, on the same disk."""

    def __init__(self, disk: WordDisk, rng: random.Random) -> None:
        self._disk = disk
        self._rng = rng

    def read(self) -> Mark | None:
        """The record that the last process left; None without one."""
        return self._disk.mark

    async def save(self, mark: Mark) -> None:
        """Replace it."""
        await asyncio.sleep(self._rng.uniform(0.0002, 0.01))
        await asyncio.to_thread(setattr, self._disk, "mark", mark)


@dataclass(slots=True)
class Vows:
    """Carries requests for promises and their answers, and remembers what was really promised.

    Attributes:
        supervisors: all of them.
        promise_s: V; 0: nobody promises.
        given_s: by node, then supervisor: when the newest request was sent that was answered with a promise.
        disks: by supervisor.
        count: promises that were given.
    """

    loop: VirtualLoop
    rng: random.Random
    weather: Weather
    supervisors: Sequence[Seat]
    say: Callable[[str], None]
    promise_s: float
    given_s: dict[str, dict[str, float]] = field(default_factory=dict)
    disks: dict[str, WordDisk] = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        self.disks = {seat.name: WordDisk(seat.name) for seat in self.supervisors}

    def reboot(self, seat: Seat) -> None:
        """A supervisor's host boots: its file is there, its clock begins anew."""
        self.disks[seat.name].boots += 1
        offset_ms = -int(self.loop.time() * 1000)
        seat.clock = NodeClock(self.loop, offset_ms, 1.0, 1_700_000_000_000)

    def until_s(self, node: str) -> float:
        """The true time until which the tasks of a node may run by promises alone."""
        given = self.given_s.get(node, {})
        names = [seat.name for seat in self.supervisors]
        if not self.promise_s or any(name not in given for name in names):
            return 0.0
        return min(given[name] for name in names) + self.promise_s

    def asker(self, node: str, process: SimProcess) -> Callable[[PromiseRequest, int, Post], None]:
        """The function by which the agent of a node asks."""

        def ask(request: PromiseRequest, sent_ms: int, post: Post) -> None:
            for seat in self.supervisors:
                self._ask_one(node, process, seat, request, sent_ms, post)

        return ask

    def _ask_one(
        self,
        node: str,
        process: SimProcess,
        seat: Seat,
        request: PromiseRequest,
        sent_ms: int,
        post: Post,
    ) -> None:
        sent_s, delay_s = self.loop.time(), self._delay_s(node, seat)
        control, there = seat.control, seat.process
        if delay_s is None or control is None or there is None:
            return

        async def serve() -> None:
            answer = await control.on_promise(request)
            if answer.for_ms:
                self.count += 1
                self.given_s.setdefault(node, {})[answer.supervisor] = sent_s
                self.say(f"{seat.name} promises {node} (asked {request.serial})")
            back_s = self._delay_s(node, seat)
            if back_s is not None:
                event = Promised(answer.supervisor, answer.serial, sent_ms, answer.for_ms, answer.refused)
                self.loop.post(process, back_s + self.weather.word_lag_s, lambda: post(event))

        self.loop.post(there, delay_s, lambda: self.loop.spawn(there, serve()))

    def _delay_s(self, node: str, seat: Seat) -> float | None:
        """The time that a message is on its way; None if it never arrives."""
        weather, rng = self.weather, self.rng
        if {node, seat.name} & weather.cut_from_supervisors or rng.random() < weather.lost:
            return None
        slow = rng.random() < weather.slow
        return rng.uniform(0.0002, 0.003) + (rng.uniform(0.0, weather.slow_s) if slow else 0.0)
