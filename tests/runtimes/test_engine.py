"""A dockerd that is silent, refuses, or is none: unknown, in time, and in nobody's way."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.runtimes import docker_engine
from agent.runtimes.docker_engine import Engine
from chaos.container_image import IMAGE
from chaos.dockerd import Dockerd
from supervisor.contract.errors import NotFound, Refused, Unreachable

ASK = """
import asyncio, sys
from agent.runtimes import docker_engine
docker_engine.CALL_S = 600
async def main():
    engine = docker_engine.Engine(sys.argv[1])
    try:
        async with asyncio.timeout(0.5):
            await engine.image("any")
    except TimeoutError:
        print("gave up")
    engine.close()
asyncio.run(main())
"""


@pytest.fixture
def silent() -> Iterator[str]:
    """Takes connections and never answers."""
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        path = f"{directory}/docker.sock"
        listener.bind(path)
        listener.listen()
        yield path


def test_who_gives_up_on_a_silent_dockerd_can_end(silent: str) -> None:
    """The agent's successor waits for the lock on the state directory."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", ASK, silent],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
        cwd=root,
    )
    assert done.stdout == "gave up\n"


async def test_a_silent_dockerd_is_unknown(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_engine, "CALL_S", 1)
    engine = Engine(silent)
    with pytest.raises(Unreachable):
        await engine.image("any")
    engine.close()


async def test_no_dockerd_is_unknown_too(tmp_path: Path) -> None:
    engine = Engine(str(tmp_path / "docker.sock"))
    with pytest.raises(Unreachable):
        await engine.list({})
    engine.close()


@pytest.mark.parametrize("said", [b"", b'9\r\n{"status"', b'9\r\n{"status"\r\n0\r\n\r\n', b"x\r\n"])
async def test_a_pull_that_breaks_off_is_unknown(tmp_path: Path, said: bytes) -> None:
    """dockerd was killed meanwhile: no fault of ours, which would end the agent."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.read(1 << 16)
        if b"/version" in request:
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n{"ApiVersion":"1.41"}')
        elif request:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + said)
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, tmp_path / "docker.sock")
    engine = Engine(str(tmp_path / "docker.sock"))
    with pytest.raises(Unreachable):
        await engine.pull("any", 30, lambda *_: None)
    engine.close()
    server.close()


async def test_whoever_waits_for_an_end_that_does_not_come_holds_up_no_other_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "END_S", 1)
    waits, served = asyncio.Semaphore(0), list[asyncio.Task[None] | None]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A connection is used for several requests.
        served.append(asyncio.current_task())
        while request := await reader.read(1 << 16):
            if b"/wait" in request:
                waits.release()
                continue
            said = b'{"ApiVersion":"1.41"}' if b"/version" in request else b"[]"
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said))
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, tmp_path / "docker.sock")
    engine = Engine(str(tmp_path / "docker.sock"))
    async with asyncio.timeout(docker_engine.CALL_S):
        ends = [asyncio.create_task(engine.ended("any")) for _ in range(docker_engine.THREADS)]
        for _ in ends:
            await waits.acquire()
        assert await engine.list({}) == []
        assert not any(each.done() for each in ends), "it was answered while all of them waited"
        told = await asyncio.gather(*ends, return_exceptions=True)
    assert [type(each) for each in told] == [Unreachable] * docker_engine.THREADS
    engine.close()
    async with asyncio.timeout(docker_engine.CALL_S):
        await asyncio.gather(*filter(None, served))
    server.close()


async def test_what_dockerd_says_no_to(dockerd: Dockerd) -> None:
    engine = Engine(str(dockerd.socket))
    assert (await engine.image(IMAGE)).id.startswith("sha256:")
    with pytest.raises(NotFound):
        await engine.image("tfsup-test:absent")
    with pytest.raises(NotFound):
        await engine.inspect("absent")
    with pytest.raises(Refused):
        await engine.create("tfsup-contract-refused", {"Image": IMAGE, "HostConfig": {"Memory": 1}})
    await engine.remove("absent")
    assert "runc" in await engine.runtimes()
    engine.close()
