"""A command beside an attempt never outlives its guard, however that ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from agent.inside import beside
from agent.inside.processes import fence
from tests.launcher.harness import wait_for

INSIDE = Path(beside.__file__).parent


def test_a_command_whose_guard_is_killed_dies_with_it() -> None:
    """The OOM killer, or the agent that lost patience: the launcher's fence does not look for the command."""
    own = fence.read_process(os.getpid())
    assert own is not None
    guard = (sys.executable, "-I", "-S", str(INSIDE), "--beside", str(own.pid), str(own.start_ticks))
    command = ("sh", "-c", "echo $$; exec sleep 60")
    pipe = subprocess.PIPE
    with subprocess.Popen(guard, stdin=pipe, stdout=pipe) as started:
        assert started.stdout is not None
        assert started.stdin is not None
        started.stdin.write(json.dumps(command).encode() + b"\n")
        started.stdin.flush()
        pid = int(started.stdout.readline())
        started.send_signal(signal.SIGKILL)
        try:
            wait_for("the end of the command", lambda: fence.read_process(pid) is None)
        finally:
            if fence.read_process(pid) is not None:
                os.kill(pid, signal.SIGKILL)


def test_a_guard_whose_caller_goes_before_it_has_named_a_command_runs_none() -> None:
    own = fence.read_process(os.getpid())
    assert own is not None
    guard = (sys.executable, "-I", "-S", str(INSIDE), "--beside", str(own.pid), str(own.start_ticks))
    done = subprocess.run(guard, input=b'["echo", "half', capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (128 + signal.SIGKILL, b"")


def test_an_agent_of_the_release_before_gives_the_command_as_arguments() -> None:
    own = fence.read_process(os.getpid())
    assert own is not None
    guard = (sys.executable, "-I", "-S", str(INSIDE), "--beside", str(own.pid), str(own.start_ticks))
    pipe = subprocess.PIPE
    with subprocess.Popen([*guard, "echo", "well"], stdin=pipe, stdout=pipe) as started:
        assert started.stdout is not None
        assert started.stdout.read() == b"well\n"
