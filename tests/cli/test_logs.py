"""`logs`: lines of several tasks by their times, whatever a program prints and however it comes."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Self, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.cli.jobs.logs import _logs, _Printer, _since, _Wanted
from supervisor.cli.jobs.merged_lines import MAX_LINE_BYTES, Line, LineCutter, merged
from supervisor.cli.jobs.tail import End
from supervisor.cli.options import Globals
from supervisor.cli.target import Target
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import NotFound, UserError
from supervisor.contract.views.jobs import (
    LINES_WITHIN,
    ClusterStatus,
    JobView,
    OutputPlace,
    TailChunk,
    TailRequest,
    TaskView,
)


def chunk(data: bytes, *times: int, attempt: str = "a/w:0@1.1") -> TailChunk:
    return TailChunk(OutputPlace(attempt), base64.b64encode(data).decode(), "n0", times=times)


def cut(*chunks: TailChunk) -> list[tuple[int, bytes]]:
    cutter = LineCutter("a/w:0")
    lines = [line for each in chunks for line in cutter.feed(each)] + list(cutter.finish())
    return [(line.at_ms, line.text) for line in lines]


def test_a_line_has_the_time_at_which_it_began() -> None:
    assert cut(chunk(b"one\nt", 0, 10), chunk(b"wo\n\nthree\r", 0, 20, 4, 30), chunk(b"\nfour", 0, 40)) == [
        (10, b"one"),
        (10, b"two"),
        (20, b""),
        (30, b"three"),
        (40, b"four"),
    ]


def test_the_time_of_a_task_never_falls() -> None:
    assert cut(chunk(b"one\ntwo\n", 0, 50, 4, 10)) == [(50, b"one"), (50, b"two")]


def test_a_new_attempt_and_a_sign_of_life_end_a_line() -> None:
    lines = cut(chunk(b"dies here", 0, 1), chunk(b"next\nwaits", 0, 2, attempt="a/w:0@1.2"), chunk(b""))
    assert lines == [(1, b"dies here"), (2, b"next"), (2, b"waits")]


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_no_byte_is_lost_but_ends_of_lines(pieces: list[bytes]) -> None:
    found = b"".join(text for _, text in cut(*map(chunk, filter(None, pieces))))
    assert found.translate(None, b"\r\n") == b"".join(pieces).translate(None, b"\r\n")


def test_a_line_without_an_end_is_bounded() -> None:
    cutter = LineCutter("a/w:0")
    shown = [line for _ in range(100) for line in cutter.feed(chunk(b"\x00" * 100_000))]
    assert max(len(line.text) for line in shown) <= MAX_LINE_BYTES
    assert len(cutter._rest) <= MAX_LINE_BYTES
    assert sum(len(line.text) for line in shown) + len(cutter._rest) == 10_000_000


async def test_streams_are_merged_by_time_and_each_stays_in_its_order() -> None:
    async def stream(task: str, *times: int) -> AsyncIterator[Line]:
        for at_ms in times:
            await asyncio.sleep(0)
            yield Line(task, "", "", at_ms, b"")

    found = [
        (line.at_ms, line.task)
        async for line in merged([stream("a", 1, 4, 4), stream("b"), stream("c", 2, 3, 9)])
    ]
    assert found == [(1, "a"), (2, "c"), (3, "c"), (4, "a"), (4, "a"), (9, "c")]


class Cluster:
    """Two tasks that have printed; `follow` brings one more line of each."""

    def client(self, deadline_s: float) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def status(self, job: str) -> ClusterStatus:
        tasks = tuple(
            TaskView(f"a/{role}:0", role, 0, "n0", "running", 1, 1, "", 1, 0.0) for role in ("ps", "worker")
        )
        running = (job, "u", "async", JobPhase.RUNNING, 1, 1, 0.0, None, None, 0, 0, 0, 3, "", "", 0)
        return ClusterStatus("c", "fast", 4_000, (), (JobView(*running, tasks),))

    async def tail(self, request: TailRequest) -> AsyncGenerator[TailChunk, None]:
        attempt = f"{request.task}@1.1"
        if request.follow:
            yield chunk(b"later\n", 0, 9_000, attempt=attempt)
            raise asyncio.CancelledError
        worker = "worker" in request.task
        yield TailChunk(OutputPlace(attempt), "", note="n0 is away" if worker else "")
        data, times = (b"w \x1b[2J\n", (0, 2_000)) if worker else (b"p1\np2\n", (0, 1_000, 3, 3_000))
        yield chunk(data, *times, attempt=attempt)


WANTED = _Wanted("a", frozenset(), frozenset())
REQUEST = TailRequest("", merged=True)


async def test_lines_have_the_names_of_their_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    target = cast(Target, Cluster())
    await _logs(target, WANTED, REQUEST, _Printer(Globals(), timestamps=False), follow=False)
    shown = capsys.readouterr()
    assert shown.out == "ps:0     | p1\nworker:0 | w \\x1b[2J\nps:0     | p2\n"
    assert shown.err == "logs: a/worker:0: n0 is away\n"


async def test_the_last_lines_are_those_of_the_merged_output(capsys: pytest.CaptureFixture[str]) -> None:
    target, request = cast(Target, Cluster()), End(2, None).of(REQUEST)
    await _logs(target, WANTED, request, _Printer(Globals(), timestamps=False), follow=False)
    assert capsys.readouterr().out == "worker:0 | w \\x1b[2J\nps:0     | p2\n"


def test_lines_and_bytes_are_the_end_of_a_request() -> None:
    ends = [(None, None), (None, 7), (3, None), (3, 7), (0, None)]
    found = [(each.last_bytes, each.last_lines) for each in (End(*end).of(REQUEST) for end in ends)]
    assert found == [(8192, 0), (7, 0), (LINES_WITHIN, 3), (7, 3), (0, 0)]


async def test_programs_get_one_document_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    target = cast(Target, Cluster())
    wanted = _Wanted("a", frozenset({"ps"}), frozenset())
    await _logs(target, wanted, REQUEST, _Printer(Globals(output="json"), timestamps=False), follow=False)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == {"task": "a/ps:0", "attempt": "a/ps:0@1.1", "node": "n0", "at_ms": 3_000, "text": "p2"}


@pytest.mark.parametrize(
    ("roles", "tasks", "said"),
    [({"chief"}, set(), "no role 'chief'; it has ps, worker"), (set(), {"a/ps:9"}, "no task a/ps:9")],
)
async def test_what_is_none_is_named(roles: set[str], tasks: set[str], said: str) -> None:
    wanted = _Wanted("a", frozenset(roles), frozenset(tasks))
    with pytest.raises(NotFound, match=said):
        await _logs(
            *(cast(Target, Cluster()), wanted, REQUEST, _Printer(Globals(), timestamps=False)), follow=False
        )


def test_since_takes_a_duration() -> None:
    assert _since("") == 0
    assert 0 < _since("1h") < _since("1m")
    with pytest.raises(UserError, match="--since 'yesterday' is not a duration"):
        _since("yesterday")
