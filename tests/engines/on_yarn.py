"""Agents on a real YARN: their processes and places."""

from __future__ import annotations

import psutil

from supervisor.engines import pools
from supervisor.engines.engine import Engine, State
from tests.engines.pool_shell import wait_long


def processes(application: str, program: str) -> list[psutil.Process]:
    """The processes of an application that run this program: not their shells."""
    found = []
    for each in psutil.process_iter(["cmdline", "name"]):
        words = each.info["cmdline"] or []
        if each.info["name"].startswith(("java", "python")) and any(word.endswith(program) for word in words):
            environment = read_environment(each)
            if application in environment and "container.py" not in words:
                found.append(each)
    return found


def read_environment(process: psutil.Process) -> str:
    try:
        return str(process.environ())
    except psutil.Error:
        return ""


def place_other_than(engine: Engine, place: str) -> str:
    """The place of the one agent, once it is another."""
    found: list[str] = []

    def look() -> bool:
        found[:] = [each.place for each in pools.live(engine) if each.state is State.RUNNING]
        return bool(found) and found != [place]

    wait_long(look, "it has another place")
    return found[0]
