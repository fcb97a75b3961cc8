"""Unexpected errors in an agent's effects, and in what it reads of one task, do not end it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path

import pytest

from agent.boundaries import Process
from agent.core.instructions import Follow, Recipe
from agent.logs.steps import Followed
from agent.logs.task_logs import AttemptFiles
from agent.retry_log import Tell, raise_it
from supervisor.contract import codec, keys
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.observed import Prepared, TaskBeat
from tests.agent.daemon import RECORD, Agent, Living, Machine, NoFiles, registered
from tests.support.sinks import ListSink
from tests.support.waiting import until


def test_output_that_cannot_be_followed_costs_the_beat_of_its_own_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = AttemptFiles(tmp_path, ListSink())
    bad, good = (AttemptId(TaskId(job, "worker", 0), 1, 1) for job in ("bad", "good"))
    for attempt in (bad, good):
        Path(files.directory("u", attempt)).mkdir(parents=True, exist_ok=True)
        files.follow(Follow(attempt, "u", (r"step (\d+)",), 0))
    look = Followed.look

    def faulty(self: Followed, now_ms: int) -> bool:
        if self is files._followed[bad]:
            raise OverflowError("int too large")
        return look(self, now_ms)

    monkeypatch.setattr(Followed, "look", faulty)
    errors: dict[object, str] = {}
    beats = files.progress(100, {}, lambda whose, error: errors.update({whose: str(error)}))
    assert str(good) in {beat.attempt for beat in beats}
    assert errors == {bad: "int too large"}


class Odd(Machine):
    """Cannot make a launcher, for a reason that nobody has thought of."""

    async def spawn(self, launcher_id: str, recipe: Recipe) -> Process:
        raise ZeroDivisionError("nobody expects this")


async def test_an_effect_that_meets_an_error_is_one_that_has_failed() -> None:
    agent = Agent()
    agent.machine = Odd(agent.disk)
    agent.prepare("p1")

    def told() -> Prepared | None:
        found = agent.store.read(keys.prepared(TaskId("job", "worker", 0), "p1"))
        return codec.decode(Prepared, found[0].value) if found else None

    async with registered(agent) as daemon:
        await until(lambda: (word := told()) is not None and bool(word.failure))
        assert daemon.state.me is not None
    word = told()
    assert word is not None
    assert "ZeroDivisionError: nobody expects this, at agent/" in word.failure
    said = [fields for level, _, fields in agent.sink.lines if level == "error"]
    assert [fields["what"] for fields in said] == ["Spawn"]


class Unreadable(NoFiles):
    """The files of one attempt raise at each look."""

    def __init__(self, attempt: AttemptId) -> None:
        self.attempt = attempt
        self.looks = 0

    def progress(
        self, now_ms: int, gpus: Mapping[AttemptId, float] | None = None, tell: Tell = raise_it
    ) -> tuple[TaskBeat, ...]:
        self.looks += 1
        tell(self.attempt, OverflowError("int too large"))
        return ()


async def test_an_error_that_comes_with_each_beat_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent()
    files = Unreadable(AttemptId(TaskId("job", "worker", 0), 1, 1))
    outside = replace(agent.outside(), files=files)
    monkeypatch.setattr(agent, "outside", partial(next, repeat(outside)))
    async with registered(agent):
        await until(lambda: files.looks > 3)
    assert [fields["error"] for level, _, fields in agent.sink.lines if level == "error"] == [
        "OverflowError: int too large, at an unknown place"
    ]


class Unfollowed(NoFiles):
    """Nothing can be followed."""

    def follow(self, follow: Follow) -> None:
        raise OverflowError("int too large")


async def test_an_error_about_what_is_adopted_fences_that_and_the_agent_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = Agent()
    agent.machine = Living(agent.disk)
    agent.disk.record = replace(RECORD, boot_id="boot")
    outside = replace(agent.outside(), files=Unfollowed())
    monkeypatch.setattr(agent, "outside", partial(next, repeat(outside)))
    agent.next_life = "life2"
    running = agent.daemon()
    task = asyncio.create_task(running.run())
    async with asyncio.timeout(20):
        await running.started.wait()
        await until(lambda: "life1-1" in agent.machine.fenced or task.done())
        await until(lambda: task.done() or all(each.end for each in running.state.attempts.values()))
    assert not task.done()
    (attempt,) = running.state.attempts.values()
    assert attempt.end is not None
    assert "OverflowError: int too large" in attempt.end.detail
    task.cancel()
    await asyncio.wait([task])
