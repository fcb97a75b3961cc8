"""A deadline, given on our clock, around awaited work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from supervisor.contract.boundaries import Clock
from supervisor.contract.errors import StoreUnreachable


@asynccontextmanager
async def until(clock: Clock, deadline_ms: int, doing: str) -> AsyncIterator[None]:
    """Cancel what is inside at `deadline_ms` of `clock`; raise StoreUnreachable: its outcome is unknown."""
    scope = asyncio.timeout((deadline_ms - clock.now_ms()) / 1000)
    try:
        async with scope:
            yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise StoreUnreachable(f"{doing} did not end by its deadline") from error
