"""A command beside an attempt never outlives its guard, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from agent.inside import fence
from tests.launcher.harness import wait_for

INSIDE = Path(fence.__file__).parent


def test_a_command_whose_guard_is_killed_dies_with_it() -> None:
    """The OOM killer, or the agent that lost patience: the launcher's fence does not look for the command."""
    own = fence.read_process(os.getpid())
    assert own is not None
    guard = (sys.executable, "-I", "-S", str(INSIDE), "--beside", str(own.pid), str(own.start_ticks))
    command = ("sh", "-c", "echo $$; exec sleep 60")
    pipe = subprocess.PIPE
    with subprocess.Popen([*guard, *command], stdin=pipe, stdout=pipe) as started:
        assert started.stdout is not None
        pid = int(started.stdout.readline())
        started.send_signal(signal.SIGKILL)
        try:
            wait_for("the end of the command", lambda: fence.read_process(pid) is None)
        finally:
            if fence.read_process(pid) is not None:
                os.kill(pid, signal.SIGKILL)
