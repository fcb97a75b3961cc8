"""Several awaited pieces of work at a time, with one outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

T = TypeVar("T")


async def in_parallel(work: Callable[[T], Awaitable[None]], items: Collection[T], at_once: int) -> None:
    """Do `work` for each item, `at_once` of them at a time, begun in order.

    The first failure cancels all the others, and is raised unchanged once they have ended. Unlike in a task
    group, work that was cancelled by itself is a failure too.
    """
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    tasks = [asyncio.ensure_future(worker()) for _ in range(min(at_once, len(items)))]
    try:
        while running := [task for task in tasks if not task.done()]:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
