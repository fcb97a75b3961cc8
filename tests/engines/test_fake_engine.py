"""The engine of the tests holds the contract of all engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.contract.errors import Conflict, UserError
from supervisor.engines import pools
from supervisor.engines.engine import Pool
from tests.engines.fake_engine import FakeEngine
from tests.engines.suite import EngineSuite, notes, running
from tests.support.waiting import wait_until


class TestFakeEngine(EngineSuite):
    @pytest.fixture
    def engine(self) -> Iterator[FakeEngine]:
        found = FakeEngine()
        yield found
        found.close()

    def origin(self) -> str:
        return "fake:main:alice"

    def no_such_queue(self) -> str:
        return "there is no queue nowhere"

    def test_of_two_pools_that_start_at_once_the_later_gives_way(
        self, engine: FakeEngine, pool: Pool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start = engine.start

        def start_second(wanted: Pool, agents: int) -> list[str]:
            start(wanted, 2)
            return start(wanted, agents)

        monkeypatch.setattr(engine, "start", start_second)
        with pytest.raises(Conflict, match="with 2 agents"):
            pools.start(engine, pool, 3)
        wait_until(lambda: [each.id for each in pools.live(engine)] == ["1_0", "1_1"], "it has gone")

    def test_an_agent_that_missed_its_word_is_told_again(
        self, engine: FakeEngine, pool: Pool, tmp_path: Path
    ) -> None:
        pools.start(engine, pool, 2)
        notes(tmp_path, running(engine, 2))
        engine.jobs[1].leaving = True
        pools.scale(engine, "digits", 1)
        wait_until(lambda: [each.id for each in pools.live(engine)] == ["1_0"], "it has gone")
        pools.end(engine, "digits", 0)

    @pytest.mark.parametrize("agents", [0, -1, 1001])
    def test_a_number_of_agents_has_bounds(self, engine: FakeEngine, pool: Pool, agents: int) -> None:
        with pytest.raises(UserError, match="give a number from 1 to 1000"):
            pools.start(engine, pool, agents)
