"""What every engine does, in words of `supervisor.engines.engine`. Each engine's test module runs these."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from supervisor.contract.errors import Conflict, Refused
from supervisor.engines import pools
from supervisor.engines.engine import Engine, Pool, PoolAgent, State
from tests.engines.pool_shell import wait_long

# Says that it has come, then what it is told; goes at once at SIGTERM, and after its last word at SIGUSR2.
PROGRAM = """
import pathlib, signal, sys
place, ident = sys.argv[sys.argv.index("--place") + 1], sys.argv[sys.argv.index("--id") + 1]
told = pathlib.Path(sys.argv[1]) / ident
def note(number, _frame):
    told.write_text(told.read_text() + " " + signal.Signals(number).name)
    raise SystemExit
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, note)
new = told.with_suffix(".new")
new.write_text(place)
new.replace(told)
while True:
    signal.pause()
"""


class EngineSuite:
    """The contract. A subclass has a fixture `engine` with three places of one agent each."""

    memory_mib = 0

    @pytest.fixture
    def pool(self, tmp_path: Path) -> Pool:
        return noting(tmp_path, self.memory_mib)

    def test_a_pool_has_agents_at_places_of_their_own_until_it_ends(
        self, engine: Engine, pool: Pool, tmp_path: Path
    ) -> None:
        pools.start(engine, pool, 3)
        there = running(engine, 3)
        assert len({each.id for each in there}) == 3
        assert len({each.place for each in there}) == 3
        assert notes(tmp_path, there) == {each.id: each.place for each in there}
        assert pools.end(engine, "digits", 30) == 3
        assert pools.live(engine) == []
        assert {each.split()[1] for each in notes(tmp_path, there).values()} == {"SIGUSR2"}
        assert pools.end(engine, "digits", 30) == 0

    def test_an_agent_without_room_waits_and_says_why(
        self, engine: Engine, pool: Pool, tmp_path: Path
    ) -> None:
        pools.start(engine, pool, 4)
        there = running(engine, 3)
        (waiting,) = (each for each in pools.live(engine) if each.state is State.WAITING)
        wait_long(
            lambda: any(each.reason for each in pools.live(engine) if each.id == waiting.id), "it says why"
        )
        assert waiting.place == ""
        notes(tmp_path, there)
        # The one that leaves makes room for the one that waits.
        engine.notify([there[0].id])
        wait_long(
            lambda: waiting.id in {each.id for each in pools.live(engine) if each.state is State.RUNNING},
            "it has its turn",
        )
        pools.end(engine, "digits", 30)

    def test_a_pool_is_ended_at_once(self, engine: Engine, pool: Pool, tmp_path: Path) -> None:
        pools.start(engine, pool, 2)
        there = running(engine, 2)
        notes(tmp_path, there)
        pools.end(engine, "digits", 0)
        assert {each.split()[1] for each in notes(tmp_path, there).values()} == {"SIGTERM"}

    def test_a_pool_grows_and_shrinks_by_those_that_came_last(
        self, engine: Engine, pool: Pool, tmp_path: Path
    ) -> None:
        pools.start(engine, pool, 1)
        first = running(engine, 1)[0].id
        pools.scale(engine, "digits", 3)
        running(engine, 3)
        pools.scale(engine, "digits", 4)
        # The one that waits goes before those that run.
        pools.scale(engine, "digits", 3)
        wait_long(lambda: len(pools.live(engine)) == 3, "only the waiting one is gone")
        running(engine, 3)
        notes(tmp_path, running(engine, 3))
        pools.scale(engine, "digits", 1)
        wait_long(lambda: len(pools.live(engine)) == 1, "two have left")
        assert running(engine, 1)[0].id == first
        pools.end(engine, "digits", 30)

    @pytest.mark.parametrize("wanted", [(3, 3), (3, 1)])
    def test_clients_that_scale_at_once_leave_the_number_of_one(
        self, engine: Engine, pool: Pool, wanted: tuple[int, int]
    ) -> None:
        pools.start(engine, pool, 2)
        running(engine, 2)
        both = threading.Barrier(2, timeout=60)

        class Meeting:
            """The engine, of which both clients have read the pool before either changes it."""

            def __init__(self) -> None:
                self.met = False

            def __getattr__(self, name: str) -> object:
                return getattr(engine, name)

            def notify(self, ids: Sequence[str]) -> None:
                if not self.met:
                    both.wait()
                    self.met = True
                engine.notify(ids)

        with ThreadPoolExecutor() as clients:
            list(clients.map(lambda many: pools.scale(cast(Engine, Meeting()), "digits", many), wanted))
        there = [each for each in pools.live(engine) if each.state is not State.LEAVING]
        assert len(there) in wanted
        wait_long(lambda: len(pools.live(engine)) == len(there), "those that came last have left")
        running(engine, len(there))
        pools.end(engine, "digits", 0)

    def test_a_queue_has_a_name_of_its_own(self, engine: Engine) -> None:
        assert re.fullmatch(self.origin(), engine.origin())

    def test_two_pools_do_not_meet(self, engine: Engine, pool: Pool) -> None:
        other = replace(pool, name="digits-2")
        pools.start(engine, pool, 1)
        pools.start(engine, other, 1)
        running(engine, 2)
        assert {each.pool for each in engine.agents("digits-2")} == {"digits-2"}
        pools.end(engine, "digits", 0)
        assert [each.pool for each in pools.live(engine)] == ["digits-2"]
        pools.end(engine, "digits-2", 0)

    def test_a_name_is_taken_once(self, engine: Engine, pool: Pool) -> None:
        pools.start(engine, pool, 1)
        with pytest.raises(Conflict, match="there is a pool digits with 1 agents; `pool scale digits N`"):
            pools.start(engine, pool, 1)
        assert len(pools.live(engine)) == 1
        pools.end(engine, "digits", 0)

    def test_a_queue_that_is_not_there_is_refused_in_the_engines_words(
        self, engine: Engine, pool: Pool
    ) -> None:
        with pytest.raises(Refused) as told:
            pools.start(engine, replace(pool, queue="nowhere"), 1)
        assert self.no_such_queue() in str(told.value)
        assert pools.live(engine) == []

    def origin(self) -> str:
        """The engine, its cluster and this user, as a regular expression."""
        raise NotImplementedError

    def no_such_queue(self) -> str:
        """What the engine says of a queue that is not there."""
        raise NotImplementedError


def noting(directory: Path, memory_mib: int = 0) -> Pool:
    """The pool `digits`, whose agents note what they hear in a directory."""
    program = directory / "agent.py"
    program.write_text(PROGRAM)
    command = ("python3", str(program), str(directory))
    return Pool(name="digits", command=command, directory=str(directory), memory_mib=memory_mib)


def running(engine: Engine, many: int) -> list[PoolAgent]:
    """The agents that run, once they are so many."""
    found: list[PoolAgent] = []

    def look() -> bool:
        found[:] = [each for each in pools.live(engine) if each.state is State.RUNNING]
        return len(found) == many

    wait_long(look, f"{many} agents run")
    return found


def notes(directory: Path, agents: list[PoolAgent]) -> dict[str, str]:
    """What each agent has written, once each has begun: its place, and the signal that it got."""
    wait_long(lambda: all((directory / each.id).is_file() for each in agents), "each has begun")
    return {each.id: (directory / each.id).read_text() for each in agents}
