"""Commands that ask once, while the leader changes."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Self, cast

import pytest

from supervisor.cli.jobs.look import _events
from supervisor.cli.jobs.tail import _Printer, _tail
from supervisor.cli.options import Globals
from supervisor.cli.outage import Asking
from supervisor.cli.target import Target
from supervisor.contract.errors import Unreachable
from supervisor.contract.views.jobs import (
    EventBatch,
    EventsRequest,
    EventView,
    OutputPlace,
    TailChunk,
    TailRequest,
)


@dataclass
class Changing:
    """A cluster whose leader goes away once. `asked`: the places after which more is asked for."""

    asked: list[object] = field(default_factory=list)

    def client(self, deadline_s: float) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def tail(self, request: TailRequest) -> AsyncGenerator[TailChunk, None]:
        self.asked.append(request.after)
        number = len(self.asked)
        place = OutputPlace("a/w:0@1.1", number)
        yield TailChunk(place, base64.b64encode(b"line %d\n" % number).decode(), "n1")
        if number == 1:
            raise Unreachable("the connection broke")

    async def events(self, request: EventsRequest) -> AsyncGenerator[EventBatch, None]:
        self.asked.append(request.after)
        if len(self.asked) == 1:
            raise Unreachable("the connection broke")
        yield EventBatch((EventView(1, 1, "started", "a", "it runs"),), 1)


async def test_tail_goes_on_from_where_it_broke(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Changing()
    printer = _Printer(Globals(), raw=False)
    await _tail(cast(Target, cluster), TailRequest("a/w:0", False, 100), printer)
    assert capsys.readouterr().out == "line 1\nline 2\n"
    assert cluster.asked == [OutputPlace(), OutputPlace("a/w:0@1.1", 1)]


async def test_events_are_shown_once_although_the_leader_changed(capsys: pytest.CaptureFixture[str]) -> None:
    await _events(cast(Target, Changing()), Globals(output="json"), EventsRequest("", False, 100))
    assert len(json.loads(capsys.readouterr().out)["events"]) == 1


async def test_a_command_that_asks_once_waits_a_while_for_a_leader(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A change of leader takes about a second; nobody is told before, and nobody waits for ever."""
    loop = asyncio.get_running_loop()
    asking = Asking()
    asking.failed(Unreachable("once"))
    assert not capsys.readouterr().err
    deadline = loop.time() + 20
    while not (said := capsys.readouterr().err):
        assert loop.time() < deadline
        await asyncio.sleep(0.01)
    assert said == "waiting for a leader of the cluster, for at most 10 s\n"
    asking._until = loop.time()
    with pytest.raises(Unreachable, match="twice"):
        asking.failed(Unreachable("twice"))
    asking.over()
    asking.failed(Unreachable("an answer begins the time anew"))
