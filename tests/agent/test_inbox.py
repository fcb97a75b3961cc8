"""The inbox of an agent: its bounds, and the steps in which it is taken."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat

import pytest

from agent import daemon as daemon_module
from agent.core.events import Event, LauncherSaid, Tick
from agent.core.instructions import Follow, Instruction
from agent.core.state import AgentState
from agent.core.step import step
from agent.daemon import MOST_AT_ONCE
from agent.inside import protocol
from supervisor.contract.ids import AttemptId
from tests.agent.daemon import RECORD, Agent, Living, NoFiles, registered
from tests.support.waiting import until


async def test_of_what_etcd_shows_one_word_waits_the_newest() -> None:
    agent = Agent()
    agent.prepare("p1")
    async with registered(agent) as daemon:
        await until(lambda: daemon.state.view is not None and daemon._inbox.empty())
        for _ in range(1000):
            daemon._observe()
        assert daemon._inbox.qsize() <= 1
        await until(daemon._inbox.empty)
        assert daemon.state.view is not None
        assert len(daemon.state.view.assignments) == 1


async def test_what_waits_is_taken_in_steps_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, sizes = Agent(), list[int]()

    def counted(
        state: AgentState, events: Sequence[Event], now_ms: int
    ) -> tuple[AgentState, tuple[Instruction, ...]]:
        sizes.append(len(events))
        return step(state, events, now_ms)

    monkeypatch.setattr(daemon_module, "step", counted)
    async with registered(agent) as daemon:
        await until(daemon._inbox.empty)
        sizes.clear()
        for _ in range(3 * MOST_AT_ONCE):
            daemon.post(Tick())
        await until(daemon._inbox.empty)
    assert sizes[:3] == [MOST_AT_ONCE] * 3


class Read(NoFiles):
    """Tells in which order it was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def follow(self, follow: Follow) -> None:
        self.calls.append("follow")

    def wrote(self, attempt: AttemptId, now_ms: int) -> bool:
        self.calls.append("wrote")
        return False


async def test_output_of_an_attempt_that_has_just_begun_is_read_once_it_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent, files = Agent(), Read()
    agent.machine = Living(agent.disk)
    agent.disk.record = replace(RECORD, boot_id="boot")
    outside = replace(agent.outside(), files=files)
    monkeypatch.setattr(agent, "outside", partial(next, repeat(outside)))
    agent.next_life = "life2"
    daemon = agent.daemon()
    running = asyncio.create_task(daemon.run())
    async with asyncio.timeout(20):
        await daemon.started.wait()
        files.calls.clear()
        (attempt,) = map(str, daemon.state.attempts)
        for message in (
            protocol.Started(attempt, 12, 13, 1, warm=True),
            protocol.Output(attempt, 1, 1),
        ):
            daemon.post(LauncherSaid("life1-1", message))
        await until(lambda: len(files.calls) > 1)
    assert files.calls[:2] == ["follow", "wrote"]
    running.cancel()
    await asyncio.wait([running])
