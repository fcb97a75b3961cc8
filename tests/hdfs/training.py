"""Real training on a real HDFS: what a fault must not do to it, seen from outside.

The training program writes a line after each of its steps (`examples.demo.steplog`); commits are what
`supervisorctl status` says. Compared is the same program before the fault and during it. Beside it runs a
process that works and sleeps like a step and knows neither HDFS nor us: it tells how busy the machine was.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ruamel.yaml import YAML

from chaos.hdfs import HdfsCluster
from examples.demo.steplog import StepLog
from supervisor.contract.views.jobs import JobView
from tests.examples.harness import EXAMPLES, Cluster, Job, read_job

COMMIT_S = 180.0
STEP_DELAY_MS = 50
SAVE_STEPS = 50
LONGEST_GAP_S = 3.0
# On a machine that is busy with something else, a mean says nothing; a step that is not held up still does.
SAME_PACE = 0.5
_CONTROL = """
import sys, time
with open(sys.argv[1], "a", buffering=1) as log:
    while True:
        begin = time.thread_time()
        while time.thread_time() < begin + 0.005:
            pass
        log.write(f"{time.monotonic_ns()} 0\\n")
        time.sleep(float(sys.argv[2]) / 1000)
"""
_HEAVY = Path(__file__).with_name("heavy.py")
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Training:
    """A job that trains and commits to HDFS."""

    job: Job
    log: StepLog
    control: StepLog

    def committed(self) -> int:
        """The step of the newest commit, -1 before the first."""
        newest = self.job.view().newest_commit
        return -1 if newest is None else newest.step

    def wait_commit(self, beyond: int, timeout_s: float = COMMIT_S) -> int:
        """Wait for a commit of a later step than `beyond`; returns its step."""
        self.until(
            lambda view: view.newest_commit is not None and view.newest_commit.step > beyond, timeout_s
        )
        return self.committed()

    def until(self, what: Callable[[JobView], bool], timeout_s: float = COMMIT_S) -> None:
        """Wait until `status` shows it."""
        deadline = time.monotonic() + timeout_s
        while not what(self.job.view()):
            assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s:\n{self.job.story()}"
            time.sleep(_POLL_S)

    def stepped(self) -> bool:
        """Whether there was a step."""
        self.log.read()
        return self.log.newest() is not None

    def step(self) -> int:
        """The newest global step."""
        self.log.read()
        newest = self.log.newest()
        assert newest is not None
        return newest.step

    def window(self, duration_s: float, meanwhile: Callable[[], None] = lambda: None) -> Window:
        """Let it train for so long; `meanwhile` runs at the beginning and counts as part of it."""
        begin_ns = time.monotonic_ns()
        meanwhile()
        time.sleep(max(0.0, duration_s - (time.monotonic_ns() - begin_ns) / 1e9))
        end_ns = time.monotonic_ns()
        self.log.read()
        self.control.read()
        return Window(Stretch(self.log, begin_ns, end_ns), Stretch(self.control, begin_ns, end_ns))

    def blocked(self, duration_s: float, strike: Callable[[], None]) -> Window:
        """A window with a fault, in which it trains and saves, and nothing is committed."""
        window = self.window(duration_s, strike)
        # A commit that was in its last step takes effect still, and a busy machine may not have got as far as
        # a save in this time. In health it would soon be less than two saves behind.
        deadline = time.monotonic() + COMMIT_S
        while self.step() <= self.committed() + 2 * SAVE_STEPS:
            assert time.monotonic() < deadline, "the fault did not bite, or nothing was there to be committed"
            time.sleep(_POLL_S)
        return window

    def pids(self) -> dict[str, int]:
        """The process of each task."""
        return {task.task: task.pid for task in self.job.view().tasks}


@dataclass(frozen=True, slots=True)
class Window:
    """The same time of a training program and of the control."""

    training: Stretch
    control: Stretch


@dataclass(frozen=True, slots=True)
class Stretch:
    """The part of a step log between two times of CLOCK_MONOTONIC."""

    log: StepLog
    begin_ns: int
    end_ns: int

    @property
    def rate(self) -> float:
        """Local steps per second, all tasks together."""
        steps = sum(
            self.begin_ns <= step.ns < self.end_ns for task in self.log.steps.values() for step in task
        )
        return steps * 1e9 / (self.end_ns - self.begin_ns)

    @property
    def pace_ms(self) -> float:
        """From one step to the next when little holds it up: the lower quartile, of the slowest task."""
        slowest = 0.0
        for task in self.log.steps.values():
            inside = [step.ns for step in task if self.begin_ns <= step.ns < self.end_ns]
            gaps = sorted(after - before for before, after in pairwise(inside))
            assert gaps, "a task made less than two steps"
            slowest = max(slowest, gaps[len(gaps) // 4] / 1e6)
        return slowest

    @property
    def longest_gap_s(self) -> float:
        """The longest time in which some task made no step."""
        longest = 0
        for task in self.log.steps.values():
            inside = [step.ns for step in task if self.begin_ns <= step.ns < self.end_ns]
            edges = [self.begin_ns, *inside, self.end_ns]
            longest = max(longest, *(after - before for before, after in pairwise(edges)))
        return longest / 1e9


def assert_unbroken(training: Training, pids: dict[str, int]) -> None:
    """No incident, and no restart."""
    assert training.job.incidents() == (), training.job.story()
    assert training.pids() == pids


def assert_unhurt(training: Training, pids: dict[str, int], before: Window, during: Window) -> None:
    """No restart, no pause, and steps as quick as before, as far as the machine allows to tell."""
    assert_unbroken(training, pids)
    rates = (
        f"{during.training.rate:.1f} steps/s after {before.training.rate:.1f}, "
        f"{during.training.pace_ms:.0f} ms a step after {before.training.pace_ms:.0f}; "
        f"the control {during.control.rate:.1f} after {before.control.rate:.1f}"
    )
    usual_gap_s = max(before.training.longest_gap_s, during.control.longest_gap_s)
    assert during.training.longest_gap_s < LONGEST_GAP_S + usual_gap_s, rates
    busier = max(1.0, during.control.pace_ms / before.control.pace_ms)
    assert during.training.pace_ms < busier * before.training.pace_ms / SAME_PACE, rates


@contextmanager
def control(directory: Path) -> Iterator[StepLog]:
    """The control, as nice as a task."""
    directory.mkdir()
    command = ["nice", "-n", "10", sys.executable, "-c", _CONTROL, str(directory / "control-0.0")]
    with subprocess.Popen([*command, str(STEP_DELAY_MS)]) as process:
        try:
            yield StepLog(directory)
        finally:
            process.kill()


def digits(cluster: Cluster, hdfs: HdfsCluster, beside: StepLog, scratch: Path) -> Training:
    """The asynchronous example with one worker: a chief and a parameter server beside it."""
    document = read_job(EXAMPLES / "digits_async" / "job.yaml")
    roles = document["roles"]
    assert isinstance(roles, dict)
    roles["worker"]["count"] = 1
    document["command"] = [
        *("python", "train.py", "--steps", "1000000"),
        *("--step-delay-ms", str(STEP_DELAY_MS), "--save-steps", str(SAVE_STEPS)),
    ]
    shutil.copytree(EXAMPLES / "digits_async", scratch / "program")
    return _submit(cluster, hdfs, beside, scratch, document)


def heavy(
    cluster: Cluster, hdfs: HdfsCluster, beside: StepLog, scratch: Path, *, megabytes: int, save_secs: float
) -> Training:
    """One process that saves so many megabytes every so often."""
    (scratch / "program").mkdir()
    shutil.copy(_HEAVY, scratch / "program")
    document: dict[str, object] = {
        "name": "heavy",
        "command": [
            *("python", "heavy.py", "--steps", "1000000"),
            *("--megabytes", str(megabytes), "--save-secs", f"{save_secs:g}"),
            *("--step-delay-ms", str(STEP_DELAY_MS)),
        ],
        "strategy": "plain",
        "roles": {"chief": {"count": 1}},
        "preload": ["tensorflow.compat.v1"],
    }
    return _submit(cluster, hdfs, beside, scratch, document)


def _submit(
    cluster: Cluster, hdfs: HdfsCluster, beside: StepLog, scratch: Path, document: dict[str, object]
) -> Training:
    document["checkpoint"] = {"uri": f"{hdfs.fresh_uri()}/{document['name']}", "keep": 3}
    file = scratch / "program" / "job.yaml"
    with file.open("w") as out:
        YAML(typ="safe").dump(document, out)
    steps = scratch / "steps"
    training = Training(cluster.submit(file, env={"STEP_LOG": str(steps)}), StepLog(steps), beside)
    training.wait_commit(-1, 4 * COMMIT_S)
    # The first save, of step 0, may be in HDFS before any step is made.
    training.until(lambda _: training.stepped(), 4 * COMMIT_S)
    return training
