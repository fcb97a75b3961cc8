"""Waiting for a condition, with a deadline after which the test fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

DEADLINE_S = 60.0


async def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """Let the loop run until the condition holds."""
    async with asyncio.timeout(within_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


def wait_until(condition: Callable[[], bool], what: str = "") -> None:
    """Block until the condition holds; `what` names it where it does not in time."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
