"""Pauses in a real embedded cluster, through the real command line."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.printing import PrintingShell, printing
from tests.support.waiting import wait_until


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PrintingShell]:
    with printing(tmp_path, nodes=1) as found:
        yield found


def test_what_ends_during_a_pause_is_told_of_and_restarts_after_it(shell: PrintingShell) -> None:
    assert "nothing is restarted or moved by itself" in shell("pause", "--reason", "new switches").stdout
    assert "nothing of it is restarted" in shell("pause", "count", "--reason", "a look").stdout
    first = shell("status").stdout.splitlines()[0]
    assert re.match(r"nothing is restarted or moved since [-0-9]{10} [:0-9]{8}: paused by ", first), first
    assert first.endswith(": new switches")
    os.kill(shell.running_pid(), signal.SIGKILL)
    wait_until(lambda: "nothing is restarted or moved: paused by" in shell("events", "count").stdout)
    assert shell("explain", "count").stdout.count("new switches") == 2
    assert "a job with a pause of its own stays paused" in shell("resume").stdout
    lines = shell("status", "count").stdout.splitlines()
    assert lines[0].endswith(": a look"), "the job has a pause of its own"
    assert shell.json("status")["paused"] == ""
    assert "count: it goes on" in shell("resume", "count").stdout
    wait_until(lambda: shell.attempt_pid() > 0, "it runs again")
    assert "nothing is restarted" not in shell("status").stdout
