"""Durations that the safety argument assumes (`contract.timing`), measured on this machine.

One measurement shows the machine's present speed, so it must stay below half of the allowance. No other check
runs beside these: it would be most of the load on a small machine.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from functools import partial

from agent.host.kill_times import rehearse
from agent.inside import rehearsal
from agent.main import other_users
from supervisor.cli.checks.model import Check, Scene, Told, fail, ok, warn
from supervisor.contract.errors import Refused

CHILD_S = 15.0
DEADLINE_S = CHILD_S + 15.0
"""Seconds for a check, with time for the end of a killed child."""


def kill_time(scene: Scene) -> Told:
    """The time that the kernel takes to end a task while every processor is busy, rehearsed as by agents."""
    config, timing = scene.agent, scene.agent.timing
    users = other_users(config) if config.runtime == "process" else None
    try:
        taken_ms = asyncio.run(rehearse(config.task_nice, users.own if users is not None else None))
    except Refused as error:
        return warn(f"not known: {error}")
    what = f"to end a task of {rehearsal.THREADS} threads with all processors busy"
    if timing.kill_time_for(taken_ms) > timing.most_kill_time_ms(timing.d_ms):
        return fail(f"{taken_ms} ms {what}: D = {timing.d_ms} ms leaves no time to train")
    return _judge(taken_ms, timing.kill_time_ms, what)


def agent_restart(scene: Scene) -> Told:
    """The time from an agent's start until it can read its state file."""
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


_measures = partial(Check, deadline_s=DEADLINE_S, alone=True)
_ADVICE = "use `profile: default` in all daemons' files, or a less busy machine with a faster disk"
CHECKS = (_measures("kill time", kill_time, _ADVICE), _measures("agent restart", agent_restart, _ADVICE))
