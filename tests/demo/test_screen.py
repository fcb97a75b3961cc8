"""The lines that the demonstration prints where there is no terminal."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from examples.demo.screen import Screen
from examples.demo.steplog import StepLog
from examples.demo.watch import Watch
from supervisor.api.client import ControlClient
from supervisor.contract.desired import JobPhase
from supervisor.contract.views.jobs import ClusterStatus, JobView
from supervisor.wire.rpc import Guard


def test_it_says_what_it_waits_for_until_there_is_a_loss(tmp_path: Path) -> None:
    waits = "chief.0, ps.0 to be prepared"
    job = ("digits", "u", "async", JobPhase.WAITING, 1, -1, 0.0, None, None, 0, 0, 0, 3, "", waits, 0)
    watch = Watch(ControlClient(["unix:/none"], Guard()), "digits", StepLog(tmp_path))
    watch.status = ClusterStatus("c", "fast", 4_000, (), (JobView(*job),))
    console = Console(file=io.StringIO(), width=100)
    screen = Screen(console, "digits")
    screen.show(watch)
    with console.capture() as said:
        screen.tick()
        screen.tick()
    assert said.get().count(f"waiting for {waits}\n") == 1, "a line each 3 s"
