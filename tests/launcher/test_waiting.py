"""`after`: a program runs only when the tasks that it needs listen."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.inside import protocol
from agent.inside.child import waiting
from agent.inside.clock import now_ms
from tests.launcher.harness import Agent, Rig, launcher, of, wait_for


@pytest.fixture
def pair() -> Iterator[tuple[Rig, Agent]]:
    with launcher() as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        yield rig, agent


@pytest.fixture
def held() -> Iterator[socket.socket]:
    """A port as a launcher holds it: bound, not listening."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder


def target(held: socket.socket) -> str:
    return f"ps:0=127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize("warm", [True, False])
def test_a_program_runs_when_what_it_waits_for_listens(
    pair: tuple[Rig, Agent], held: socket.socket, warm: bool
) -> None:
    rig, agent = pair
    rig.write("prog.py", "print('the program runs')\n")
    attempt = rig.start(agent, "python", "prog.py", warm=warm, wait_for=[target(held)], wait_ms=30_000)
    log = rig.logged("to listen")
    assert log == f"tf-supervisor: waiting for ps:0 at {target(held)[5:]} to listen\n".encode()
    assert not agent.all(protocol.Exited)
    held.listen()
    assert agent.expect(protocol.Exited, of(attempt)).code == 0
    assert b"the program runs" in rig.log()


def test_nothing_is_said_when_all_listen_already(pair: tuple[Rig, Agent], held: socket.socket) -> None:
    rig, agent = pair
    held.listen()
    assert rig.run(agent, "echo", "hello", wait_for=[target(held)], wait_ms=0).code == 0
    assert rig.log() == b"hello\n"


def test_what_never_listens_ends_the_attempt_and_is_named(
    pair: tuple[Rig, Agent], held: socket.socket
) -> None:
    rig, agent = pair
    exited = rig.run(agent, "echo", "hello", wait_for=[target(held)], wait_ms=200)
    assert (exited.code, exited.reason) == (waiting.NEVER_READY, "start_failed")
    assert exited.detail == f"never ready: ps:0 at {target(held)[5:]} did not listen within 0.2 s"
    assert b"hello" not in rig.log()


def test_who_waits_can_be_killed(pair: tuple[Rig, Agent], held: socket.socket) -> None:
    rig, agent = pair
    attempt = rig.start(agent, "true", wait_for=[target(held)])
    rig.logged("to listen")
    agent.send(protocol.Kill(attempt))
    assert agent.expect(protocol.Exited, of(attempt)).reason == "killed"


def test_who_waits_dies_at_the_deadline_without_an_agent(
    pair: tuple[Rig, Agent], held: socket.socket
) -> None:
    rig, agent = pair
    agent.grant_ms = 300
    rig.start(agent, "true", wait_for=[target(held)])
    rig.logged("to listen")
    agent.grant_ms = None
    wait_for("end of the wait", lambda: [e for e in agent.all(protocol.Exited) if e.reason == "deadline"])


def test_many_that_are_missing_are_counted() -> None:
    targets = tuple(f"worker:{index}=127.0.0.1:1" for index in range(6))
    assert waiting.wait(targets, 0).endswith("worker:3 at 127.0.0.1:1 and 2 more did not listen within 0 s")


@pytest.mark.parametrize("warm", [True, False])
def test_a_program_runs_when_the_sign_of_its_directory_is_seen(
    pair: tuple[Rig, Agent], tmp_path: Path, warm: bool
) -> None:
    rig, agent = pair
    rig.write("prog.py", "print('the program runs')\n")
    sign = tmp_path / "ckpt" / "sign"
    attempt = rig.start(agent, "python", "prog.py", warm=warm, must_see=str(sign))
    assert f"its directory {sign.parent} is not mounted" in rig.logged("not mounted").decode()
    assert not agent.all(protocol.Exited)
    sign.parent.mkdir()
    sign.touch()
    assert agent.expect(protocol.Exited, of(attempt)).code == 0
    assert b"the program runs" in rig.log()


def test_a_directory_that_is_never_seen_ends_the_attempt(pair: tuple[Rig, Agent], tmp_path: Path) -> None:
    rig, agent = pair
    exited = rig.run(agent, "echo", "hello", must_see=str(tmp_path / "sign"), see_ms=100)
    assert (exited.code, exited.reason) == (waiting.NO_DIRECTORY, "start_failed")
    assert exited.detail == f"its directory {tmp_path} is not mounted: No such file or directory"
    assert b"hello" not in rig.log()


def test_those_that_swallow_packets_hold_up_nobody(held: socket.socket) -> None:
    """A listener whose queue is full answers no more, as a dead machine does."""
    with ExitStack() as stack:
        deaf: list[str] = []
        for _ in range(4):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            for _ in range(3):
                sock = stack.enter_context(socket.socket())
                sock.setblocking(False)
                sock.connect_ex(listener.getsockname())
            deaf.append(f"worker:{len(deaf)}=127.0.0.1:{listener.getsockname()[1]}")
        held.listen()
        began = now_ms()
        assert waiting.silent([*deaf, target(held)]) == deaf
        assert now_ms() - began < 3.5 * waiting._CONNECT_S * 1000, "one after the other takes four"
