"""The outside stopwatch and the kernel's truth: what the demonstration and the benchmarks measure with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.support.figures import Goal, figures, medians
from examples.demo import kernel
from examples.demo.job import Training, digits_job
from examples.demo.screen import curve
from examples.demo.steplog import Step, StepLog


def write(directory: Path, name: str, *lines: str, end: str = "\n") -> None:
    with (directory / name).open("a") as file:
        file.write("\n".join(lines) + end)


def test_a_new_process_is_told_from_the_old_one(tmp_path: Path) -> None:
    log = StepLog(tmp_path)
    write(tmp_path, "worker-0.10", "100 1", "200 2")
    write(tmp_path, "chief-0.11", "150 1", "310 4")
    log.read()
    before = log.processes()
    write(tmp_path, "worker-0.10", "301 3")
    write(tmp_path, "worker-0.12", "400 5")
    log.read()
    assert log.first_after(300, "worker:0") == Step(301, 3, 10)
    assert log.first_after(300, "worker:0", not_of=before) == Step(400, 5, 12)
    assert log.first_after(300, not_of=before) == Step(400, 5, 12)
    assert log.first_after(400) is None
    assert log.newest() == Step(400, 5, 12)
    assert log.longest_gap_ns(300, "chief:0") == 160
    assert log.longest_gap_ns(300) == 160


def test_a_line_that_is_still_being_written_is_not_a_step(tmp_path: Path) -> None:
    log = StepLog(tmp_path)
    write(tmp_path, "chief-0.11", "150 1", "31", end="")
    log.read()
    assert log.newest() == Step(150, 1, 11)
    write(tmp_path, "chief-0.11", "0 4")
    log.read()
    assert log.newest() == Step(310, 4, 11)


def test_processes_are_gone_when_the_kernel_says_so(tmp_path: Path) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], cwd=tmp_path, stdin=subprocess.PIPE)
    ref = kernel.process(sleeper.pid)
    assert ref is not None
    assert ref.alive
    assert ref in kernel.family(os.getpid())
    assert kernel.using(tmp_path) == [ref]
    assert not kernel.ProcessRef(ref.pid, ref.start_ticks + 1).alive
    sleeper.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    # A zombie: nothing of it runs any more.
    assert kernel.process(sleeper.pid) is None
    assert kernel.using(tmp_path) == []
    sleeper.communicate()


def test_the_job_is_the_one_of_the_example_with_other_flags(tmp_path: Path) -> None:
    training = Training(500, 2.5, 50, tmp_path / "steps", tmp_path / "report.json")
    spec = digits_job(training, f"file://{tmp_path}")
    assert [(role.name, role.count) for role in spec.roles] == [("chief", 1), ("ps", 1), ("worker", 2)]
    assert spec.role("ps").command[:6] == ("python", "train.py", "--steps", "500", "--step-delay-ms", "2.5")
    assert spec.env["STEP_LOG"] == str(tmp_path / "steps")
    assert spec.preload
    assert digits_job(training, f"file://{tmp_path}", warm=False).preload == ()


def test_percentiles_are_nearest_rank() -> None:
    found = figures([float(number) for number in range(1, 201)])
    assert found is not None
    assert (found.n, found.p50, found.p99, found.max) == (200, 100.0, 198.0, 200.0)
    assert figures([]) is None
    assert medians([{"detected": 1, "ready": 9}, {"detected": 3}, {"detected": 2}]) == {
        "detected": 2,
        "ready": 9,
    }


def test_a_goal_without_a_measurement_is_not_met() -> None:
    assert not Goal("time", 10, None).met
    assert Goal("time", 10, 10).met
    assert not Goal("ratio", 6, 5.9, at_most=False).met


def test_the_curve_keeps_its_width_and_ends_with_the_newest_value() -> None:
    assert curve([], 5) == ""
    assert curve([1.0], 5) == "█"
    falling = curve([10.0 - index / 10 for index in range(100)], 10)
    assert len(falling) == 10
    assert falling[0] > falling[-1]
