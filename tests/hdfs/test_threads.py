"""Threads for calls that may hang: nobody waits longer than he wants, and nothing is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from recovery.stores.hdfs_threads import Threads, TooManyHang

WAIT_S = 10.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that hanging work waits for; set at the end, so that no thread stays."""
    made = threading.Event()
    yield made
    made.set()


async def test_results_and_errors_arrive_and_threads_are_used_again() -> None:
    threads = Threads(most=1)
    names = {await threads.run(lambda: threading.current_thread().ident, WAIT_S) for _ in range(20)}
    assert len(names) == 1

    def fail() -> None:
        raise KeyError("any error")

    for _ in range(3):
        with pytest.raises(KeyError, match="any error"):
            await threads.run(fail, WAIT_S)
    assert await threads.run(lambda: 5, WAIT_S) == 5


async def test_who_waits_in_vain_goes_on_and_the_result_is_undone(gate: threading.Event) -> None:
    threads, undone = Threads(), threading.Event()

    def hang() -> str:
        gate.wait(WAIT_S)
        return "made"

    def undo(made: str) -> None:
        assert made == "made"
        undone.set()

    with pytest.raises(TimeoutError):
        await threads.run(hang, 0.05, undo)
    waiting = asyncio.create_task(threads.run(hang, WAIT_S))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not undone.is_set()
    gate.set()
    assert await asyncio.to_thread(undone.wait, WAIT_S)
    await asyncio.to_thread(threads.wait_idle, WAIT_S)


async def test_there_are_never_more_than_so_many(gate: threading.Event) -> None:
    threads = Threads(most=2)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await threads.run(lambda: gate.wait(WAIT_S), 0.02)
    with pytest.raises(TooManyHang):
        await threads.run(lambda: 1, WAIT_S)
    gate.set()
    await asyncio.to_thread(threads.wait_idle, WAIT_S)
    assert await threads.run(lambda: 1, WAIT_S) == 1


async def test_work_that_gets_on_may_take_longer_than_its_limit(gate: threading.Event) -> None:
    threads, looks = Threads(), 0

    def progress() -> int:
        nonlocal looks
        looks += 1
        if looks == 3:
            gate.set()
        return looks

    assert await threads.run(lambda: gate.wait(WAIT_S), 0.05, progress=progress)
    assert looks == 3
    gate.clear()
    with pytest.raises(TimeoutError):
        await threads.run(lambda: gate.wait(WAIT_S), 0.05, progress=lambda: looks)
