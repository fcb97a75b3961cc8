"""Many agents at one etcd: what breaks for all of them at once comes back one after the other."""

from __future__ import annotations

import asyncio
from collections import Counter

from agent.settings import AgentSettings
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import Fault, MemoryCoordination, MemoryStore
from supervisor.adapters.etcd.mirror import FIRST_WAIT_MS, Mirror
from supervisor.contract import keys
from supervisor.contract.observed import NodeResources
from supervisor.contract.timing import DEFAULT
from tests.support.sinks import ListSink
from tests.support.virtual import in_virtual_time

AGENTS = 1000
WINDOW_S = 0.05


def settings(node: str) -> AgentSettings:
    """The settings of an agent of the default profile."""
    return AgentSettings(node, "h", "h:1", 20000, 20100, "/locks", DEFAULT, NodeResources(1.0, 1))


@in_virtual_time
async def test_a_thousand_watches_come_back_spread_over_a_second() -> None:
    """Without `apart_ms` all of them come in the same window."""
    loop, store = asyncio.get_running_loop(), MemoryStore()
    opened: list[float] = []

    def note(call: str) -> Fault | None:
        if call == "watch.open":
            opened.append(loop.time())
        return None

    mirrors = []
    for number in range(AGENTS):
        each = settings(f"gpu-{number}")
        client = MemoryCoordination(store, fault=note)
        prefix = keys.assignments_of(each.node)
        mirrors.append(Mirror(client, prefix, lambda _: None, BootClock(), ListSink(), each.apart_ms))
    running = [asyncio.create_task(mirror.run()) for mirror in mirrors]
    await asyncio.sleep(1)
    assert len(opened) == AGENTS
    opened.clear()
    broke = loop.time()
    store.break_watches()
    await asyncio.sleep(2)
    assert len(opened) == AGENTS
    assert max(opened) - broke <= (DEFAULT.rpc_deadline_ms // 2 + FIRST_WAIT_MS) / 1000 + WINDOW_S
    windows = Counter(int((at - broke) / WINDOW_S) for at in opened)
    assert max(windows.values()) < AGENTS // 10, windows
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def test_an_agent_waits_as_long_each_time() -> None:
    """A run can be played again."""
    assert settings("gpu-1").apart_ms == settings("gpu-1").apart_ms != settings("gpu-2").apart_ms
    assert all(settings(f"n{each}").apart_ms < DEFAULT.d_ms // 10 for each in range(100))
