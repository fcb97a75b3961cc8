"""Messages of a daemon to its service manager, over a socket such as systemd's."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.adapters import service
from supervisor.adapters.systemd import Keeper, keeper_of

PATIENCE_S = 20


@pytest.fixture
def told(tmp_path: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(PATIENCE_S)
        yield listener


def keeper(told: socket.socket, watchdog_s: float = 0.0) -> Keeper:
    return Keeper(told.getsockname(), watchdog_s)


def test_it_is_taken_out_of_the_environment() -> None:
    environ = {
        "NOTIFY_SOCKET": "/run/n",
        "WATCHDOG_USEC": "5000000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/",
    }
    assert keeper_of(environ) == Keeper("/run/n", 5.0)
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize(
    "environ", [{}, {"WATCHDOG_USEC": "many"}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}]
)
def test_without_one_nobody_is_told(environ: dict[str, str]) -> None:
    found = keeper_of(environ)
    assert found == Keeper()
    found.ready()


def test_it_is_told_in_its_own_words(told: socket.socket) -> None:
    keeper(told).ready()
    keeper(told).stopping()
    assert [told.recv(100), told.recv(100)] == [b"READY=1", b"STOPPING=1"]


def test_an_abstract_address_is_reached() -> None:
    name = f"tfsup-test-{os.getpid()}"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listener:
        listener.bind(f"\0{name}")
        listener.settimeout(PATIENCE_S)
        Keeper(f"@{name}").ready()
        assert listener.recv(100) == b"READY=1"


def test_one_that_has_gone_holds_up_nothing(tmp_path: Path) -> None:
    Keeper(str(tmp_path / "nobody")).ready()


def test_one_that_does_not_read_holds_up_nothing(told: socket.socket) -> None:
    for _ in range(10_000):
        keeper(told).ready()


async def test_signs_of_life_come_again_and_again(told: socket.socket) -> None:
    vouching = asyncio.create_task(keeper(told, 0.03).vouch())
    heard = [await asyncio.to_thread(told.recv, 100) for _ in range(3)]
    vouching.cancel()
    assert heard == [b"WATCHDOG=1"] * 3


async def _work_for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_daemon_is_ready_when_it_says_so_and_stops_when_told(
    told: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", told.getsockname())
    ready = asyncio.Event()
    running = asyncio.create_task(service.until_told(_work_for_ever(), None, ready))
    await asyncio.sleep(0)
    told.setblocking(False)
    with pytest.raises(BlockingIOError):
        told.recv(100)
    told.settimeout(PATIENCE_S)
    ready.set()
    assert await asyncio.to_thread(told.recv, 100) == b"READY=1"
    assert await asyncio.to_thread(told.recv, 100) == b"WATCHDOG=1"
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running
    assert told.recv(100) == b"STOPPING=1"
