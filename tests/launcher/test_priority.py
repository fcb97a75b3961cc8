"""What trains already yields to what starts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from agent.inside import priority


def test_every_thread_of_the_session_is_settled() -> None:
    script = (
        "import sys, threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print(flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        ["python3", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        priority.renice(child.pid, 7)
        threads = [int(path.name) for path in Path(f"/proc/{child.pid}/task").iterdir()]
        assert len(threads) == 2
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {7}
        child.stdin.close()


def test_a_session_that_is_gone_is_no_error() -> None:
    child = subprocess.Popen(["true"], start_new_session=True)
    child.wait()
    priority.renice(child.pid, 7)
