"""Fencing meets a process whose main thread has ended while its other threads go on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.inside.processes import fence, priority
from tests.launcher.harness import wait_for

MARKER = "launcher-x#nonce"
WITHOUT_MAIN = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(100,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def headless() -> Iterator[subprocess.Popen[bytes]]:
    """Another thread of it lives on."""
    env = {**os.environ, fence.MARKER_VARIABLE: MARKER}
    with subprocess.Popen([sys.executable, "-c", WITHOUT_MAIN], env=env, start_new_session=True) as child:
        wait_for("its main thread is gone", lambda: is_exiting(child.pid))
        yield child
        child.kill()


def is_exiting(pid: int) -> bool:
    found = fence.read_process(pid)
    return found is not None and found.exiting


def test_it_is_found_by_its_marker_and_killed(headless: subprocess.Popen[bytes]) -> None:
    assert fence.marker_of(headless.pid) == MARKER
    report = fence.fence(MARKER)
    assert report.confirmed_dead
    assert report.killed == 1
    assert headless.wait(10) == -9


@pytest.mark.skipif(not priority.may_raise(), reason="this user may not raise a priority")
def test_the_fence_of_others_neither_waits_for_it_nor_hastens_it(headless: subprocess.Popen[bytes]) -> None:
    threads = [int(path.name) for path in Path(f"/proc/{headless.pid}/task").iterdir()]
    process = fence.read_process(headless.pid)
    assert process is not None
    assert not fence.is_torn_down(process)
    report = fence.fence("launcher-y#nonce")
    assert headless.pid not in {each.pid for each in report.survivors}
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {own}


def test_the_kill_of_a_child_leaves_the_weight_of_its_session() -> None:
    """Others of the session live on."""
    group = Path(f"/proc/{os.getpid()}/autogroup")
    before = group.read_text() if group.exists() else ""
    with subprocess.Popen(["sleep", "100"]) as child:
        process = fence.read_process(child.pid)
        assert process is not None
        fence.kill(process)
        assert child.wait(10) == -9
    assert (group.read_text() if group.exists() else "") == before
