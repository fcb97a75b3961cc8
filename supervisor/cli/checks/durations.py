"""Durations that the safety argument takes for granted (`contract.timing`), measured on this machine.

One measurement says what the machine can do, not what it does under load: half of the allowance is left for
that. Nor is it ever a failure, as the load may be there now. No other look runs beside them: they would be
most of the load on a small machine.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial

from supervisor.cli.checks.model import Check, Scene, Told, fail, ok, warn

CHILD_S = 15.0
DEADLINE_S = CHILD_S + 15.0
"""A child that is killed may take its time to end, too."""
_TASK = """
import mmap, threading, time
held = mmap.mmap(-1, {bytes}, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
for _ in range({threads}):
    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
print("ready", flush=True)
time.sleep(30)
"""
TASK_BYTES = 512 << 20
TASK_THREADS = 100
"""About a parameter server. A task that holds much more takes longer to die."""


def kill_time(scene: Scene) -> Told:
    """How long the kernel takes to end a task."""
    allowed_ms = scene.agent.timing.kill_time_ms
    source = _TASK.format(bytes=TASK_BYTES, threads=TASK_THREADS)
    taken_ms = _measure_kill([sys.executable, "-I", "-S", "-c", source])
    if taken_ms is None:
        return warn(
            f"a task of {TASK_BYTES >> 20} MiB and {TASK_THREADS} threads does not run within {CHILD_S:g} s"
        )
    return _judge(taken_ms, allowed_ms, f"to end a task of {TASK_BYTES >> 20} MiB and {TASK_THREADS} threads")


def agent_restart(scene: Scene) -> Told:
    """How long an agent takes until it can look for its state file."""
    allowed_ms = scene.agent.timing.agent_restart_ms
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", "import agent.main"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHILD_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return warn(f"an agent's program is not loaded within {CHILD_S:g} s")
    taken_ms = (time.monotonic() - began) * 1000
    if done.returncode != 0:
        return fail(f"an agent's program cannot be loaded: {done.stderr.strip().splitlines()[-1:]}")
    return _judge(taken_ms, allowed_ms, "to load an agent's program")


def _judge(taken_ms: float, allowed_ms: int, what: str) -> Told:
    detail = f"{taken_ms:.0f} ms {what}; the profile allows for {allowed_ms} ms, whatever the load"
    return warn(detail) if 2 * taken_ms > allowed_ms else ok(detail)


def _measure_kill(argv: Sequence[str]) -> float | None:
    """Milliseconds from SIGKILL until the process is gone, with its memory; None if it never runs."""
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            ready = select.select([child.stdout], [], [], CHILD_S)[0]
            began = time.monotonic()
        finally:
            child.kill()
        child.wait()
        return (time.monotonic() - began) * 1000 if ready else None


_measures = partial(Check, deadline_s=DEADLINE_S, alone=True)
_ADVICE = "use `profile: default` in all daemons' files, or a less busy machine with a faster disk"
CHECKS = (_measures("kill time", kill_time, _ADVICE), _measures("agent restart", agent_restart, _ADVICE))
