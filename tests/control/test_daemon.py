"""The supervisor's loop: what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.clock import BootClock
from supervisor.adapters.memory import Fault, MemoryCoordination, MemoryStore
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Put
from supervisor.contract.desired import Cordon
from supervisor.contract.errors import Refused
from supervisor.contract.timing import FAST
from supervisor.control.daemon import ControlDaemon, ControlSettings
from supervisor.control.snapshot import Snapshot
from tests.support.sinks import ListSink


def leader_that_meets(error: Exception | None, store: MemoryStore | None = None) -> ControlDaemon:
    """A supervisor whose first read to confirm its leadership raises `error`."""

    def fail_reads(call: str) -> Fault | None:
        if call == "get" and error is not None:
            raise error
        return None

    return ControlDaemon(
        ControlSettings("s0", "c", "unix:/s0", 1, FAST),
        MemoryCoordination(store or MemoryStore(), fault=fail_reads),
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


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about")


async def test_a_picture_serves_for_a_tick_unless_etcd_holds_something_else() -> None:
    store = MemoryStore()
    daemon = leader_that_meets(None, store)

    def shown() -> Snapshot | None:
        return daemon.desk.snapshot()

    running = asyncio.create_task(daemon.run())
    try:
        await until(lambda: shown() is not None)
        await until(lambda: shown() is shown())
        cordon = Put(keys.cordon("n0"), codec.encode(Cordon("n0", "for repair")))
        assert store.commit([], [cordon], []).succeeded
        await until(lambda: (snap := shown()) is not None and "n0" in snap.nodes)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
