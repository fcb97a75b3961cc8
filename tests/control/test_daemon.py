"""The supervisor's loop: what ends it."""

from __future__ import annotations

import asyncio

import pytest

from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.clock import BootClock
from supervisor.adapters.memory import Fault, MemoryCoordination, MemoryStore
from supervisor.contract.errors import Refused
from supervisor.contract.timing import FAST
from supervisor.control.daemon import ControlDaemon, ControlSettings
from tests.support.sinks import ListSink


def leader_that_meets(error: Exception | None) -> ControlDaemon:
    """A supervisor whose first read to confirm its leadership raises `error`."""

    def fail_reads(call: str) -> Fault | None:
        if call == "get" and error is not None:
            raise error
        return None

    return ControlDaemon(
        ControlSettings("s0", "c", "unix:/s0", 1, FAST),
        MemoryCoordination(MemoryStore(), fault=fail_reads),
        lambda _uri: MemoryCheckpointStore(),
        BootClock(),
        ListSink(),
        lambda: "id",
    )


async def test_an_error_while_leading_ends_the_supervisor() -> None:
    daemon = leader_that_meets(Refused("the user may not read this"))
    async with asyncio.timeout(20):
        with pytest.raises(Refused, match="may not read"):
            await daemon.run()


async def test_a_bug_while_leading_ends_the_supervisor() -> None:
    daemon = leader_that_meets(ZeroDivisionError())
    async with asyncio.timeout(20):
        with pytest.raises(ExceptionGroup) as caught:
            await daemon.run()
    assert caught.group_contains(ZeroDivisionError)


async def test_a_bug_in_the_background_ends_the_supervisor() -> None:
    daemon = leader_that_meets(None)

    async def faulty() -> None:
        raise ZeroDivisionError

    daemon._begin(faulty())
    async with asyncio.timeout(20):
        with pytest.raises(ExceptionGroup) as caught:
            await daemon.run()
    assert caught.group_contains(ZeroDivisionError)
