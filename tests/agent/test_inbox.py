"""What waits in an agent's inbox is bounded."""

from __future__ import annotations

from tests.guarantees.test_daemons import Agent, registered, until


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
