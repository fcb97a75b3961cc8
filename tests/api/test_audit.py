"""The audit log over real TLS: lines for requests received, completed and refused, and no secret in them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.adapters import audit
from supervisor.adapters.audit import AuditLog, FileLines, JournalLines, open_audit
from supervisor.adapters.files.config.daemon import AuditConfig
from supervisor.contract.errors import UserError
from supervisor.contract.observed import LINK_PROTOCOL, Beat
from supervisor.contract.views.jobs import ExecRequest, SignalRequest, SubmitRequest
from supervisor.wire.audit import Auditor
from tests.api.doors import JOB, NO_TASK, REQUESTS, Doors, ask
from tests.api.services import FakeSubmissionService
from tests.support.builders import job_spec
from tests.support.sinks import ListSink

SECRET = "hunter2-hunter2"
Line = dict[str, object]


class Broken:
    """Lines go nowhere: `what` happens instead."""

    def __init__(self, what: Callable[[], None]) -> None:
        self._what = what

    def write(self, line: bytes, *, durable: bool) -> None:
        self._what()

    def close(self) -> None:
        pass


def full() -> None:
    raise OSError(28, "No space left on device")


@pytest.fixture
async def doors(tmp_path: Path) -> AsyncIterator[Doors]:
    async with AsyncExitStack() as stack:
        made = Doors(tmp_path, stack)
        made.log = AuditLog(FileLines(tmp_path / "audit.jsonl"), ListSink(), required=True)
        await made.open()
        yield made


def lines(doors: Doors) -> list[Line]:
    """All that was noted; the log ends."""
    assert doors.log is not None
    doors.log.close()
    return [json.loads(line) for line in (doors.root / "audit.jsonl").read_text().splitlines()]


async def test_a_request_has_a_line_when_it_is_received_and_one_when_it_is_completed(doors: Doors) -> None:
    channels = await doors.caller("user:olga")
    for method in ("Control.Stop", "Control.Status", "Control.Events", "Control.Cordon"):
        assert await ask(channels, method, REQUESTS[method]) == "ok"
    assert await ask(channels, "Control.Signal", REQUESTS["Control.Signal"]) == "NotFound"
    noted = lines(doors)
    assert [(line["method"], line["stage"], line["on"], line.get("result")) for line in noted] == [
        ("Control.Stop", "received", {"job": JOB}, None),
        ("Control.Stop", "completed", {"job": JOB}, "ok"),
        ("Control.Status", "received", {}, None),
        ("Control.Status", "completed", {}, "ok"),
        ("Control.Events", "received", {"job": JOB}, None),
        ("Control.Events", "completed", {"job": JOB}, "ok"),
        ("Control.Cordon", "received", {"node": "n1"}, None),
        ("Control.Cordon", "completed", {"node": "n1"}, "ok"),
        ("Control.Signal", "received", {"task": NO_TASK, "number": "15"}, None),
        ("Control.Signal", "completed", {"task": NO_TASK, "number": "15"}, "NotFound"),
    ]
    for received, completed in zip(noted[::2], noted[1::2], strict=True):
        assert received["id"] == completed["id"]
        assert (received["by"], received["role"], received["daemon"]) == (
            "user:olga",
            "operator",
            "supervisor:s0",
        )
        assert str(received["from"]).startswith("ipv4:127.0.0.1:")


async def test_a_refused_request_has_one_line_that_says_why(doors: Doors) -> None:
    channels = await doors.caller("user:bob")
    assert await ask(channels, "Control.Stop", REQUESTS["Control.Stop"]) == "Refused"
    assert await ask(await doors.caller(""), "Control.Status", REQUESTS["Control.Status"]) == "Refused"
    assert await ask(await doors.caller("agent:n2"), "Node.Exec", REQUESTS["Node.Exec"]) == "Refused"
    stop, status, command = lines(doors)
    assert (stop["stage"], stop["by"], stop["result"]) == ("refused", "user:bob", "Refused")
    assert "belongs to user:alice" in str(stop["reason"])
    assert (status["stage"], status["by"]) == ("refused", "")
    assert "no identity" in str(status["reason"])
    assert (command["by"], command["daemon"]) == ("agent:n2", "agent:n1")


async def test_a_beat_has_no_line_and_a_refused_one_has_one_line_a_minute(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = await doors.caller("agent:n1"), await doors.caller("agent:n2")
    beat = Beat(LINK_PROTOCOL, "n1", "i1", 1)
    for _ in range(3):
        assert await ask(own, "Link.Beats", beat) == "ok"
        assert await ask(other, "Link.Beats", beat) == "Refused"
    monkeypatch.setattr("supervisor.wire.audit.AGAIN_S", 0.0)
    assert await ask(other, "Link.Beats", beat) == "Refused"
    first, second = lines(doors)
    assert [(line["by"], line["method"], line["stage"]) for line in (first, second)] == [
        ("agent:n2", "Link.Beats", "refused")
    ] * 2
    assert (first.get("repeated"), second.get("repeated")) == (None, 2)


async def test_what_is_read_again_is_noted_once_a_minute(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    olga, vera = await doors.caller("user:olga"), await doors.caller("user:vera")
    for _ in range(3):
        for channels in (olga, vera):
            assert await ask(channels, "Control.Status", REQUESTS["Control.Status"]) == "ok"
        assert await ask(olga, "Control.Events", REQUESTS["Control.Events"]) == "ok"
        assert await ask(olga, "Control.Cordon", REQUESTS["Control.Cordon"]) == "ok"
    monkeypatch.setattr("supervisor.wire.audit.AGAIN_S", 0.0)
    assert await ask(olga, "Control.Status", REQUESTS["Control.Status"]) == "ok"
    noted = [(line["by"], line["method"], line.get("repeated")) for line in lines(doors)]
    assert Counter(noted) == {
        ("user:olga", "Control.Status", None): 3,
        ("user:olga", "Control.Status", 4): 1,
        ("user:vera", "Control.Status", None): 2,
        ("user:olga", "Control.Events", None): 2,
        ("user:olga", "Control.Cordon", None): 6,
    }


def test_who_reads_ever_other_things_is_noted_so_many_times_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.wire.audit.MOST_READS", 2)
    auditor = Auditor("supervisor:s0")
    assert [auditor.read("user:mallory", f"job-{at}") for at in range(5)] == [0, 0, None, None, None]
    assert auditor.read("user:bob", "job-0") == 0
    monkeypatch.setattr("supervisor.wire.audit.AGAIN_S", 0.0)
    assert auditor.read("user:mallory", "job-5") == 3


async def test_a_caller_without_a_role_does_not_fill_the_disk_with_its_refusals(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody, unnamed, bob = [await doors.caller(each) for each in ("user:nobody", "", "user:bob")]
    adam = await doors.caller("user:adam")
    for policy in doors.policies:
        policy.denied = frozenset({"user:adam"})
    for _ in range(3):
        for channels in (nobody, unnamed, bob, adam):
            assert await ask(channels, "Control.Stop", REQUESTS["Control.Stop"]) == "Refused"
    monkeypatch.setattr("supervisor.wire.audit.AGAIN_S", 0.0)
    assert await ask(nobody, "Control.Stop", REQUESTS["Control.Stop"]) == "Refused"
    noted = [(line["by"], line.get("repeated")) for line in lines(doors)]
    one_has_a_role = [("user:bob", None)] * 3
    assert sorted(noted, key=str) == sorted(
        [("", None), ("user:adam", None), ("user:nobody", None), ("user:nobody", 2), *one_has_a_role], key=str
    )


class Waiting:
    """A disk that writes a line of a change when it is told to."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def write(self, line: bytes, *, durable: bool) -> None:
        if durable:
            self.begun.set()
            assert self.go.wait(30)
        self.lines.append(json.loads(line))

    def close(self) -> None:
        pass


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[tuple[Doors, Waiting]]:
    async with AsyncExitStack() as stack:
        doors, disk = Doors(tmp_path, stack), Waiting()
        stack.callback(disk.go.set)
        doors.log = AuditLog(disk, ListSink(), required=True)
        await doors.open()
        yield doors, disk


async def test_a_name_that_becomes_anothers_job_while_the_line_is_written_is_not_touched(
    slow: tuple[Doors, Waiting],
) -> None:
    doors, disk = slow
    with_job = doors.job_service.picture
    assert with_job is not None
    doors.job_service.picture = replace(with_job, jobs={})
    bob = await doors.caller("user:bob")
    asked = asyncio.create_task(ask(bob, "Control.Delete", REQUESTS["Control.Delete"]))
    await asyncio.to_thread(disk.begun.wait, 30)
    doors.job_service.picture = with_job
    disk.go.set()
    assert await asked == "Refused"
    assert doors.job_service.asked == []
    assert doors.log is not None
    doors.log.close()
    assert [line["stage"] for line in disk.lines] == ["received", "refused"]


async def test_what_a_caller_asked_that_went_away_before_its_line_was_written_is_noted_as_cancelled(
    slow: tuple[Doors, Waiting], monkeypatch: pytest.MonkeyPatch
) -> None:
    doors, disk = slow
    assert doors.log is not None
    note, completed = doors.log.note, asyncio.Event()

    def notice(line: bytes, *, durable: bool = False) -> Future[None]:
        if b"completed" in line:
            completed.set()
        return note(line, durable=durable)

    monkeypatch.setattr(doors.log, "note", notice)
    adam = await doors.caller("user:adam")
    asked = asyncio.create_task(ask(adam, "Control.Stop", REQUESTS["Control.Stop"]))
    await asyncio.to_thread(disk.begun.wait, 30)
    asked.cancel()
    async with asyncio.timeout(4):
        await completed.wait()
    disk.go.set()
    doors.log.close()
    assert [(line["stage"], line.get("result")) for line in disk.lines] == [
        ("received", None),
        ("completed", "cancelled"),
    ]
    assert doors.job_service.asked == []


async def test_whoever_asks_cannot_write_another_name_into_its_line(doors: Doors) -> None:
    forged = SignalRequest(NO_TASK, 15, by="user:adam")
    assert await ask(await doors.caller("user:alice"), "Control.Signal", forged) == "NotFound"
    assert await ask(await doors.caller("supervisor:s1"), "Node.Signal", forged) == "NotFound"
    at_supervisor, _, at_agent, _ = lines(doors)
    assert (at_supervisor["by"], at_supervisor["on"]) == ("user:alice", {"task": NO_TASK, "number": "15"})
    assert at_agent["on"] == {"task": NO_TASK, "number": "15", "by": "user:adam"}


async def test_no_line_holds_a_secret(doors: Doors) -> None:
    channels = await doors.caller("user:adam")
    spec = job_spec({"worker": 1}, name="new")
    role = replace(spec.roles[0], command=("login", SECRET), env={"TOKEN": SECRET})
    submit = SubmitRequest(replace(spec, roles=(role,)))
    error = UserError(f"what {SECRET} says is wrong")
    doors.job_service.submissions = FakeSubmissionService(error=error)
    assert await ask(channels, "Control.Submit", submit) == "UserError"
    command = ExecRequest(NO_TASK, ("login", SECRET), 1_000)
    assert await ask(channels, "Control.Exec", command) == "NotFound"
    noted = lines(doors)
    assert [line["on"] for line in noted[::2]] == [
        {"job": "new", "mode": "new"},
        {"task": NO_TASK, "program": "login"},
    ]
    assert SECRET not in json.dumps(noted)


async def test_a_change_that_cannot_be_noted_is_refused_where_lines_are_required(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        doors, sink = Doors(tmp_path, stack), ListSink()
        doors.log = AuditLog(Broken(full), sink, required=True)
        await doors.open()
        channels = await doors.caller("user:adam")
        assert await ask(channels, "Control.Stop", REQUESTS["Control.Stop"]) == "Refused"
        assert doors.job_service.asked == []
        assert await ask(channels, "Control.Status", REQUESTS["Control.Status"]) == "ok"
        agent = await doors.caller("agent:n1")
        assert await ask(agent, "Link.Beats", REQUESTS["Link.Beats"]) == "ok"
        doors.log.close()
        assert [event for level, event, _ in sink.lines if level == "error"] == [
            "the audit log cannot be written"
        ]


async def test_a_change_that_cannot_be_noted_is_made_where_lines_are_not_required(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        doors = Doors(tmp_path, stack)
        doors.log = AuditLog(Broken(full), ListSink())
        await doors.open()
        channels = await doors.caller("user:adam")
        assert await ask(channels, "Control.Stop", REQUESTS["Control.Stop"]) == "ok"
        doors.log.close()


async def test_a_disk_that_hangs_holds_up_a_change_for_a_while_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(audit, "DEADLINE_S", 0.2)
    async with AsyncExitStack() as stack:
        stack.callback(answers.set)
        doors = Doors(tmp_path, stack)
        doors.log = AuditLog(Broken(lambda: void(answers.wait(20))), ListSink(), required=True)
        await doors.open()
        channels = await doors.caller("user:adam")
        change = asyncio.create_task(ask(channels, "Control.Stop", REQUESTS["Control.Stop"]))
        assert await ask(channels, "Control.Status", REQUESTS["Control.Status"]) == "ok"
        assert await change == "Refused"
        assert doors.job_service.asked == []


def void(_: object) -> None:
    pass


def test_a_file_is_appended_to_and_made_anew_where_it_was_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "a" / "audit.jsonl"
    path.parent.mkdir()
    path.write_bytes(b"before\n")
    written = FileLines(path)
    written.write(b"one", durable=True)
    path.rename(tmp_path / "audit.1")
    written.write(b"two", durable=False)
    written.close()
    assert (tmp_path / "audit.1").read_bytes() == b"before\none\n"
    assert path.read_bytes() == b"two\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_follows_a_torn_line_is_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write, calls = tmp_path / "audit.jsonl", os.write, iter((3, 0))

    def tear(fd: int, data: bytes) -> int:
        room = next(calls, len(data))
        if not room:
            full()
        return write(fd, data[:room])

    written = FileLines(path)
    monkeypatch.setattr(os, "write", tear)
    with pytest.raises(OSError, match="No space"):
        written.write(b"first", durable=False)
    written.write(b"second", durable=False)
    written.close()
    assert path.read_bytes() == b"fir\nsecond\n"


def test_a_file_that_cannot_be_opened_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        FileLines(tmp_path / "file" / "audit.jsonl")


def test_a_daemon_starts_on_a_full_disk_and_writes_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sink, opens = tmp_path / "new" / "audit.jsonl", ListSink(), os.open
    monkeypatch.setattr(os, "open", lambda *_: full())
    log = open_audit(AuditConfig(file=str(path), required=True), sink)
    assert log is not None
    assert [event for level, event, _ in sink.lines if level == "error"] == [
        "the audit log cannot be written"
    ]
    with pytest.raises(OSError, match="No space"):
        log.note(b"lost").result(10)
    monkeypatch.setattr(os, "open", opens)
    log.note(b"kept").result(10)
    log.close()
    assert path.read_bytes() == b"kept\n"
    assert "the audit log is written again" in [event for _, event, _ in sink.lines]


def test_a_pipe_that_nobody_reads_does_not_hold_up_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="cannot be written"):
        FileLines(tmp_path / "pipe")


def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.touch(0o640)
    FileLines(path).close()
    assert path.stat().st_mode & 0o777 == 0o640


def test_journald_gets_a_line_in_one_datagram(tmp_path: Path) -> None:
    address = str(tmp_path / "journal")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(address)
        journal.settimeout(10)
        sent = JournalLines(address)
        sent.write(b'{"id": "1"}', durable=True)
        sent.close()
        fields = journal.recv(4096).decode().splitlines()
    assert fields == ['MESSAGE={"id": "1"}', "SYSLOG_IDENTIFIER=tfsup-audit", "PRIORITY=6"]
    sent = JournalLines(str(tmp_path / "nothing"))
    with pytest.raises(OSError, match="No such file"):
        sent.write(b"x", durable=False)
    sent.close()
