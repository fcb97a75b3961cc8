"""The node's socket: what a connection's end tells."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent.core.events import Event
from agent.inside import protocol
from agent.launchers import SocketLaunchers
from tests.support.sinks import ListSink

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
    assert ("error", "launcher's connection ended by a bug", {"error": "ZeroDivisionError()"}) in sink.lines
