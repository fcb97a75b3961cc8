"""Stack dumps of a program that may hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.inside import protocol
from agent.inside.child import stacks
from agent.inside.processes import fence
from agent.logs.dump import DUMP, STACK_BYTES, dump_stacks, read_dump
from tests.launcher.harness import Agent, Rig, launcher, of, wait_for

HANG = """
import threading, time
def other_thread():
    time.sleep(1000)
for _ in range({threads}):
    threading.Thread(target=other_thread, daemon=True).start()
def training_loop():
    print("hangs", flush=True)
    time.sleep(1000)
training_loop()
"""


@pytest.fixture
def pair() -> Iterator[tuple[Rig, Agent]]:
    with launcher() as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        yield rig, agent


def hanging(rig: Rig, agent: Agent, *, warm: bool = True, threads: int = 2) -> tuple[protocol.Started, Path]:
    rig.write("train.py", HANG.format(threads=threads))
    name = rig.start(agent, "python", "train.py", warm=warm)
    rig.logged("hangs")
    return agent.expect(protocol.Started, of(name)), rig.root / "logs" / "1"


def test_a_warm_program_is_asked_where_it_is_and_goes_on(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    started, directory = hanging(rig, agent)
    text = dump_stacks(directory, started.pid, started.start_ticks)
    assert "in training_loop" in text
    assert "in other_thread" in text
    assert "state S (sleeping)" in text
    assert f"threads of pid {started.pid}" in text
    assert read_dump(directory) == text
    again = dump_stacks(directory, started.pid, started.start_ticks)
    assert again.count("in training_loop") == 1
    assert fence.read_process(started.pid) is not None


def test_a_program_that_is_not_warm_is_only_looked_at(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    started, directory = hanging(rig, agent, warm=False)
    text = dump_stacks(directory, started.pid, started.start_ticks)
    assert "training_loop" not in text
    assert "state S (sleeping)" in text
    assert fence.read_process(started.pid) is not None


def test_a_stopped_program_is_said_to_be_stopped(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    started, directory = hanging(rig, agent)
    os.kill(started.pid, signal.SIGSTOP)
    wait_for("stop", lambda: _state(started.pid) == "T")
    assert "state T (stopped)" in dump_stacks(directory, started.pid, started.start_ticks)


def _state(pid: int) -> str:
    process = fence.read_process(pid)
    return process.state if process is not None else ""


def test_a_dump_is_bounded_and_whole_on_disk(pair: tuple[Rig, Agent]) -> None:
    rig, agent = pair
    started, directory = hanging(rig, agent, threads=90)
    text = dump_stacks(directory, started.pid, started.start_ticks)
    assert len(text.encode()) <= STACK_BYTES
    assert f"threads of pid {started.pid}" in text
    assert "in training_loop" in (directory / DUMP).read_text()


def test_another_process_of_that_pid_is_left_alone(tmp_path: Path) -> None:
    assert dump_stacks(tmp_path, os.getpid(), 1) == ""
    assert read_dump(tmp_path) == ""


def test_a_program_with_its_own_use_of_the_signal_is_not_sent_it(tmp_path: Path) -> None:
    code = (
        "import signal, sys\n"
        f"signal.signal({int(stacks.SIGNAL)}, lambda *_: sys.exit(3))\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as own:
        assert own.stdout is not None
        assert own.stdout.readline() == b"ready\n"
        found = fence.read_process(own.pid)
        assert found is not None
        assert f"threads of pid {own.pid}" in dump_stacks(tmp_path, own.pid, found.start_ticks)
        own.communicate(timeout=20)
        assert own.returncode == 0


def test_a_directory_that_cannot_be_written_stops_no_program(tmp_path: Path) -> None:
    stacks.register(str(tmp_path / "missing"))


def test_the_signal_is_a_real_time_one() -> None:
    assert signal.SIGRTMIN <= stacks.SIGNAL <= signal.SIGRTMAX
