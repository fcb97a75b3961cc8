"""What an agent needs of others: etcd."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

from supervisor.cli.checks.model import Check, Scene, Told, ok, warn

READS = 5
SLOW_MS = 100


def etcd(scene: Scene) -> Told:
    """Whether it answers reads that all its members agree on, and how soon."""
    return asyncio.run(_read(scene))


async def _read(scene: Scene) -> Told:
    from supervisor.adapters import service

    coordination = service.connect(scene.agent)
    try:
        times_ms = [await _timed(partial(coordination.get, "doctor")) for _ in range(READS)]
    finally:
        await coordination.close()
    slowest = max(times_ms[1:])
    detail = f"{', '.join(scene.agent.etcd.endpoints)}: reads within {slowest:.0f} ms"
    return warn(detail) if slowest > SLOW_MS else ok(detail)


async def _timed(call: Callable[[], Awaitable[object]]) -> float:
    began = time.monotonic()
    await call()
    return (time.monotonic() - began) * 1000


CHECKS = (Check("etcd", etcd, "is it up, do all members see each other, is its disk or the network slow?"),)
