"""The recording of processes, of real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaos.faults.families.agent import FREEZER
from chaos.history.etcd_client import now_ms
from chaos.history.formats import FROZEN, PROCESSES, RUNS, STOPPED, ProcessLine
from chaos.history.lines import read
from chaos.history.lives import FOREVER, Life, lives
from chaos.history.processes import ProcessRecorder

LAUNCHER = """
import os, sys, time
for line in sys.stdin:
    if os.fork() == 0:
        time.sleep(600)
"""
DEADLINE_S = 30.0
MARKER = f"lives-{os.getpid()}#0"
"""Processes are known by it, so nobody else on this machine may have it."""


class Task:
    """A process like a launcher, that forks when it is told to."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER], env={"TFSUP_MARKER": MARKER}, stdin=subprocess.PIPE, text=True
        )

    def fork(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture
def task() -> Iterator[Task]:
    task = Task()
    yield task
    for child in children(task.process.pid):
        os.kill(child, signal.SIGKILL)
    task.process.kill()
    task.process.communicate()


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def seen(directory: Path) -> list[Life]:
    return lives(read(ProcessLine, directory / PROCESSES), now_ms())


def wait(directory: Path, what: Callable[[list[Life]], bool]) -> list[Life]:
    deadline = time.monotonic() + DEADLINE_S
    while not what(found := seen(directory)):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def test_births_states_and_deaths_are_told(task: Task, tmp_path: Path) -> None:
    began_ms = now_ms()
    recorder = ProcessRecorder(lambda: {task.process.pid: "n1"}, tmp_path)
    recorder.start()
    task.fork()
    launcher, child = wait(tmp_path, lambda found: len(found) == 2)
    # The kernel counts in hundredths of a second.
    assert launcher.born_ms < began_ms <= child.born_ms + 10
    assert launcher.spans[0].begin_ms >= began_ms
    assert (launcher.pid, launcher.launcher, launcher.node, launcher.marker) == (
        task.process.pid,
        True,
        "n1",
        MARKER,
    )
    assert (child.parent, child.launcher, child.node) == (task.process.pid, False, "n1")
    assert recorder.alive() == sorted([launcher.pid, child.pid])
    os.kill(child.pid, signal.SIGSTOP)
    wait(tmp_path, lambda found: found[1].spans[-1].state == STOPPED)
    held_until_ms = now_ms()
    os.kill(child.pid, signal.SIGCONT)
    thawed_ms = now_ms()
    wait(tmp_path, lambda found: found[1].spans[-1].state == RUNS)
    alive_until_ms = now_ms()
    os.kill(child.pid, signal.SIGKILL)
    killed_ms = now_ms()
    _, child = wait(tmp_path, lambda found: found[1].gone_ms < FOREVER)
    recorder.stop()
    assert [span.state for span in child.spans] == [RUNS, STOPPED, RUNS]
    ((held_ms, runs_ms),) = child.thaws()
    assert held_ms <= thawed_ms
    assert runs_ms >= held_until_ms
    assert child.seen_ms <= killed_ms
    assert child.gone_ms >= alive_until_ms
    assert not child.may_run_at(held_ms)
    assert not child.alive_at(child.gone_ms)


def test_who_is_put_into_a_freezer_after_its_birth_is_seen_to_be_frozen(task: Task, tmp_path: Path) -> None:
    recorder = ProcessRecorder(lambda: {task.process.pid: "n1"}, tmp_path)
    recorder.start()
    wait(tmp_path, lambda found: len(found) == 1)
    # Where there is none of version 1, no fault of ours puts anybody into another one.
    for home in [FREEZER / MARKER] if FREEZER.exists() else []:
        home.mkdir()
        try:
            (home / "cgroup.procs").write_text(str(task.process.pid))
            (home / "freezer.state").write_text("FROZEN")
            wait(tmp_path, lambda found: found[0].spans[-1].state == FROZEN)
            (home / "freezer.state").write_text("THAWED")
            wait(tmp_path, lambda found: found[0].spans[-1].state == RUNS)
        finally:
            (home / "freezer.state").write_text("THAWED")
            (FREEZER / "cgroup.procs").write_text(str(task.process.pid))
            home.rmdir()
    assert recorder.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_recorder_that_has_ended_by_itself_says_so(task: Task, tmp_path: Path) -> None:
    broken = False

    def roots() -> dict[int, str]:
        assert not broken
        return {}

    recorder = ProcessRecorder(roots, tmp_path)
    recorder.start()
    broken = True
    task.fork()
    deadline = time.monotonic() + DEADLINE_S
    while any(thread.name == "processes" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    broken = False
    assert not recorder.stop()


def test_who_is_on_none_of_our_nodes_is_not_told_of(task: Task, tmp_path: Path) -> None:
    recorder = ProcessRecorder(dict, tmp_path)
    recorder.start()
    assert recorder.stop()
    assert seen(tmp_path) == []


def test_a_look_that_begins_after_an_end_does_not_make_it_later(task: Task, tmp_path: Path) -> None:
    """The kernel was asked before, and its answer, that nobody has ended, is read late on a busy machine."""
    recorder = ProcessRecorder(lambda: {task.process.pid: "n1"}, tmp_path)
    deadline = time.monotonic() + DEADLINE_S
    while not recorder.alive():
        assert time.monotonic() < deadline
        recorder._look()
    recorder._hear(0)
    task.process.kill()
    os.waitid(os.P_PID, task.process.pid, os.WEXITED | os.WNOWAIT)
    dead_ms = now_ms()
    recorder._look()
    recorder._hear(0)
    recorder._write()
    recorder._epoll.close()
    (life,) = seen(tmp_path)
    assert life.seen_ms <= dead_ms < life.gone_ms
