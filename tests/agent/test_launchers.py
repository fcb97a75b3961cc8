"""The node's socket: what a connection's end tells."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from agent import launchers as module
from agent.core.events import Event, LauncherSaid
from agent.inside import protocol
from agent.launchers import SocketLaunchers
from tests.support.sinks import ListSink
from tests.support.waiting import until

HELLO = protocol.Hello(protocol.PROTOCOL, "L", "job", 5, 5, "boot", warm=True)


async def test_a_bug_in_a_connection_ends_it_and_is_told(tmp_path: Path) -> None:
    def post(_event: Event) -> None:
        raise ZeroDivisionError

    sink = ListSink()
    launchers = SocketLaunchers(tmp_path / "s", sink)
    await launchers.open(post)
    try:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(protocol.encode(HELLO))
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()
    finally:
        await launchers.close()
    assert (
        "error",
        "an unexpected error ended a launcher's connection",
        {"error": "ZeroDivisionError()"},
    ) in sink.lines


async def test_who_says_nothing_keeps_no_launcher_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELLO_S", 600.0)
    said: asyncio.Queue[Event] = asyncio.Queue()
    launchers = SocketLaunchers(tmp_path / "s", ListSink())
    await launchers.open(said.put_nowait)
    connections = []
    try:
        async with asyncio.timeout(60):
            silent = (asyncio.open_unix_connection(tmp_path / "s") for _ in range(module.MOST_SILENT))
            connections += await asyncio.gather(*silent)
            for number in range(3):
                reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
                connections.append((reader, writer))
                writer.write(protocol.encode(replace(HELLO, launcher_id=f"L{number}")))
                event = await said.get()
                assert isinstance(event, LauncherSaid)
                assert event.launcher_id == f"L{number}"
            # Each of the others left one place free again.
            ended = [asyncio.create_task(reader.read()) for reader, _ in connections[: module.MOST_SILENT]]
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            assert len(launchers._silent) == module.MOST_SILENT - 1
    finally:
        for _, writer in connections:
            writer.close()
        await launchers.close()


async def test_a_launcher_that_says_more_than_is_taken_in_has_to_wait(tmp_path: Path) -> None:
    """No message is lost: what is not read yet waits on its side."""
    most, sink = module.MOST_WAITING, ListSink()
    said: asyncio.Queue[Event] = asyncio.Queue()
    launchers = SocketLaunchers(tmp_path / "s", sink)
    await launchers.open(said.put_nowait)
    pulls = [protocol.Pull(number, "life1", None) for number in range(3 * most)]
    try:
        _, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(b"".join(protocol.encode(each) for each in (HELLO, *pulls)))
        async with asyncio.timeout(20):
            await until(lambda: bool(sink.lines))
            assert said.qsize() == 1 + most
            heard: list[protocol.Pull] = []
            while len(heard) < len(pulls):
                event = await said.get()
                launchers.taken("L")
                assert isinstance(event, LauncherSaid)
                assert said.qsize() <= 1 + most
                if isinstance(event.message, protocol.Pull):
                    heard.append(event.message)
        assert heard == pulls
        writer.close()
    finally:
        await launchers.close()
    waits = [text for level, text, _ in sink.lines if level == "warning" and "has to wait" in text]
    assert len(waits) == 1
