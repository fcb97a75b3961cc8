"""An agent measures the time that kills take on its node, and keeps it back (decision 0046)."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from agent.core.events import BeatSeen, Event, Heard, KillRehearsed
from agent.core.instructions import Note
from agent.host import kill_times
from agent.host.kill_times import RehearsedKills, rehearse
from supervisor.contract.errors import Refused
from supervisor.contract.timing import DEFAULT, FAST, Timing
from tests.agent.core import Core, only
from tests.support.sinks import ListSink


@pytest.mark.parametrize(("kill_ms", "kept_ms"), [(0, 1000), (500, 1000), (501, 1002), (5000, 2900)])
def test_twice_the_longest_kill_is_kept_back_but_never_all_of_d(kill_ms: int, kept_ms: int) -> None:
    core = Core().running()
    core.feed(KillRehearsed(kill_ms))
    core.feed(Heard(core.now_ms))
    core.feed(BeatSeen(core.now_ms))
    assert core.state.reserve_ms == kept_ms + FAST.drift_ms
    assert core.granted_ms(5) == FAST.d_ms - kept_ms - FAST.drift_ms


@pytest.mark.parametrize("timing", [FAST, DEFAULT])
def test_a_profile_leaves_room_for_more_than_its_own_kill_time(timing: Timing) -> None:
    assert timing.kill_time_ms < timing.most_kill_time_ms(timing.d_ms) < timing.d_ms


@pytest.mark.parametrize(
    ("kill_ms", "told"),
    [
        (500, None),
        (550, "ended earlier than elsewhere"),
        (551, "a change of etcd's leader"),
        (1450, "a change of etcd's leader"),
        (1451, "nothing new starts: a kill takes 1451 ms here, so that D = 4000 ms leaves no time to train"),
    ],
)
def test_an_agent_tells_of_slow_kills_and_what_follows(kill_ms: int, told: str | None) -> None:
    core = Core()
    notes = only(Note, core.feed(KillRehearsed(kill_ms)))
    assert len(notes) == (told is not None)
    assert all(str(told) in note.fields["effect"] for note in notes)


def test_a_node_whose_kills_are_too_slow_for_d_starts_nothing_until_they_are_not() -> None:
    core = Core()
    core.feed(KillRehearsed(1451))
    assert "leaves no time to train" in core.state.blocked(core.now_ms)
    core.feed(KillRehearsed(40))
    assert not core.state.blocked(core.now_ms)
    assert core.state.reserve_ms == FAST.reserve_ms


async def test_a_rehearsal_kills_real_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill_times, "MIB", 4)
    sessions = Path("/proc/self/autogroup")
    before = sessions.read_text() if sessions.exists() else ""
    assert 0 <= await rehearse(10, None) < 12_000
    assert before == (sessions.read_text() if sessions.exists() else "")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
async def test_a_rehearsal_has_the_rights_of_the_tasks_launchers() -> None:
    assert await rehearse(10, (65_534, 65_534)) >= 0


async def test_one_that_fails_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, events = ListSink(), list[Event]()
    monkeypatch.setattr(kill_times, "FIRST_S", 0.0)
    monkeypatch.setattr(kill_times, "AGAIN_S", 0.01)
    answers: list[int | str] = ["no process", "no process", 7, "no memory"]
    done = asyncio.Event()

    async def answer(_nice: int, _user: tuple[int, int] | None) -> int:
        if not answers:
            done.set()
            await asyncio.Event().wait()
        found = answers.pop(0)
        if isinstance(found, str):
            raise Refused(found)
        return found

    monkeypatch.setattr(kill_times, "rehearse", answer)
    running = asyncio.create_task(RehearsedKills(10, None, sink).run(events.append))
    await asyncio.wait_for(done.wait(), 30)
    running.cancel()
    assert events == [KillRehearsed(7)]
    assert [fields["reason"] for _, _, fields in sink.lines] == ["no process", "no memory"]


async def test_an_interpreter_that_cannot_be_started_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/none")
    with pytest.raises(Refused, match="cannot start the measurement"):
        await rehearse(10, None)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Refused, match="ended with code 1"):
        await rehearse(10, None)
