"""What both daemons do when their keeper tells them to end."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from supervisor.adapters import service


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_what_comes_last_is_done_while_the_work_still_runs(number: signal.Signals) -> None:
    story: list[str] = []
    serving = asyncio.Event()

    async def work() -> None:
        try:
            serving.set()
            await asyncio.Event().wait()
        finally:
            story.append("work ends")

    async def last() -> None:
        story.append("last begins")
        await asyncio.sleep(0)
        story.append("last ends")

    running = asyncio.create_task(service.until_told(work(), last))
    await serving.wait()
    os.kill(os.getpid(), number)
    assert await asyncio.wait_for(running, 10)
    assert story == ["last begins", "last ends", "work ends"]


async def test_work_that_ends_by_itself_is_not_followed_by_anything() -> None:
    async def work() -> None:
        raise RuntimeError("a bug")

    async def last() -> None:
        raise AssertionError("nobody asked")

    with pytest.raises(RuntimeError, match="a bug"):
        await service.until_told(work(), last)
