"""`benchmarks.checkpoint`: its arithmetic, and that it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.checkpoint import PARTS, Flags, Shape, _report
from benchmarks.support.blocking import Run, Span, compare
from benchmarks.support.transfers import Cost
from supervisor.contract.errors import StoreUnreachable

MS = 1_000_000


def test_rates_and_ratios_are_of_medians() -> None:
    shape = Shape(8, size=100_000_000)
    shape.seconds = {"client write": [1.0, 2.0, 9.0], "client read": [0.5], "commit, readback": [2.0]}
    assert shape.rate("client write") == 50.0
    assert shape.ratio("commit, readback", "client write", "client read") == 1.25
    assert shape.ratio("restore", "client read") is None


def run(pause_ms: int) -> Run:
    """A step each 10 ms for 2 s, a save from 500 to 600 ms, and one pause 100 ms after it."""
    found = Run(saves=[Span(500 * MS, 600 * MS)])
    now = 0
    while now < 2_000:
        took = 100 if now == 500 else 10 + (pause_ms if now == 700 else 0)
        if now != 500:
            found.steps.append(Span(now * MS, (now + took) * MS))
        now += took
    return found


def test_what_a_program_waits_longer_than_alone_is_what_it_was_blocked() -> None:
    watched = run(35)
    watched.taken = [800 * MS]
    watched.commits = [Span(800 * MS, 1_500 * MS)]
    found = compare(run(5), watched)
    assert (found.pause_alone_ms, found.pause_watched_ms) == ([15.0], [45.0])
    assert found.blocked_ms == 30.0
    assert found.taking_ms == [200.0]
    assert found.step_in_commits_ms == 10.0


def test_a_pause_after_it_was_taken_is_not_ours() -> None:
    watched = run(0)
    watched.taken = [650 * MS]
    watched.steps = [step for step in watched.steps if not 900 * MS < step.ended < 1_200 * MS]
    assert compare(run(0), watched).blocked_ms == 0.0


def test_nothing_taken_is_no_figure() -> None:
    with pytest.raises(StoreUnreachable, match="none of the program's checkpoints was taken"):
        compare(run(0), run(0))


def test_a_goal_without_a_measurement_is_not_claimed() -> None:
    flags = Flags(16, (1,), 1, frozenset(PARTS), 1.0, Path())
    shape = Shape(1, size=1_000_000_000)
    shape.add("verify", Cost(0.25, own_s=0.24, hdfs_s=0.5))
    report = _report({}, flags, [shape], None, 2)
    assert report["goals"] == [
        {"what": "1 tensors: verification, GB/s per core", "goal": 2, "measured": 4.0, "met": True}
    ]
    assert shape.processor_s == {"verify": [(0.24, 0.5)]}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_runs_on_a_small_checkpoint(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "benchmarks.checkpoint", "--quick", "--state", str(tmp_path / "state"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report["tensors"]) == {"1", "8"}
    assert len(report["goals"]) == 17
    assert report["blocked"]["commit_s"]
    assert report["tensors"]["1"]["processor_s"]["restore"]["hdfs"]
    assert not (tmp_path / "state").exists()
