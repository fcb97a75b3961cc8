"""The watch over GPUs as an agent runs it, and what it has posted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import psutil

from agent.core.events import Event, GpusSeen
from agent.core.gpus.health import GpuBook, Sight, fold
from agent.gpus.nvml_probe import NvmlGpus
from agent.settings import GpuSettings
from supervisor.contract.observed import GpuHealth
from tests.support.sinks import ListSink

DEADLINE_S = 30.0


class Watched:
    """The posts of the watch, and the book that the core would have made of them."""

    def __init__(self) -> None:
        self.sights: list[Sight] = []
        self.book = GpuBook()
        self.changed = asyncio.Event()

    def post(self, event: Event) -> None:
        assert isinstance(event, GpusSeen)
        self.sights.append(event.sight)
        self.book = fold(self.book, event.sight, time.monotonic_ns() // 1_000_000)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    @property
    def health(self) -> list[GpuHealth]:
        report = self.book.report("n1", "life1", "boot")
        return [gpu.health for gpu in report.gpus] if report is not None else []

    @property
    def problem(self) -> str:
        return self.book.problem


@asynccontextmanager
async def watching(settings: GpuSettings, absent: Callable[[], str] | None = None) -> AsyncIterator[Watched]:
    watched = Watched()
    task = asyncio.create_task(NvmlGpus(settings, ListSink(), absent).run(watched.post))
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert not children()


def children() -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # also a zombie, which may be another test's
            if "agent.gpus.nvml_child" in each.cmdline():
                found.append(each)
    return found
