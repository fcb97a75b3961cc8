"""The comparisons with TonY and TensorFlowOnSpark: what counts as a new step, and who is submitted again."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.engines.losses import NODE, PS, WORKER, Loss, Losses, Watcher, times_faster, times_of
from benchmarks.engines.yarn_nodes import environment_of
from benchmarks.support.quiet import Quiet
from benchmarks.support.subjects import IN_FLIGHT_NS
from examples.demo.steplog import StepLog
from examples.demo.watch import TRAINERS, PromiseBroken

MS = 1_000_000
BEGAN = 10_000 * MS
MINUTE_NS = 60 * 10**9
LATE_MS = IN_FLIGHT_NS // MS + 50


def log_of(directory: Path, **steps: Sequence[int]) -> StepLog:
    """A step log with these milliseconds after BEGAN, by `ROLE_INDEX_PROCESS`."""
    for name, at_ms in steps.items():
        role, index, process = name.split("_")
        lines = (f"{BEGAN + ms * MS} {number}\n" for number, ms in enumerate(at_ms))
        (directory / f"{role}-{index}.{process}").write_text("".join(lines))
    log = StepLog(directory)
    log.read()
    return log


def test_a_lost_worker_counts_from_its_new_process_and_the_others_go_on(tmp_path: Path) -> None:
    log = log_of(tmp_path, chief_0_1=[-5, 5, LATE_MS], worker_0_2=[-5, 5, LATE_MS + 1], worker_1_3=[-5, 1])
    assert times_of(log, ["worker:1"], BEGAN, {1, 2, 3}) is None
    log = log_of(tmp_path, worker_1_4=[900, 910])
    assert times_of(log, ["worker:1"], BEGAN, {1, 2, 3}) == (900, 900)


def test_a_process_that_stepped_on_and_was_replaced_counts_from_its_successor(tmp_path: Path) -> None:
    log = log_of(
        tmp_path,
        chief_0_1=[LATE_MS],
        worker_0_2=[LATE_MS],
        worker_1_4=[900],
        chief_0_5=[950],
        worker_0_6=[800],
    )
    assert times_of(log, ["worker:1"], BEGAN, {1, 2}) == (900, 950)


def test_after_a_parameter_server_the_first_of_any_trainer_counts(tmp_path: Path) -> None:
    log = log_of(tmp_path, chief_0_1=[3, 700], worker_0_2=[3, 800], worker_1_3=[3, 600])
    assert times_of(log, ["ps:0"], BEGAN, {1, 2, 3}) == (600, 800)


class FakeTool:
    """A job that steps while it is looked at, and for a minute after it was submitted again."""

    def __init__(self, directory: Path, *, can_resubmit: bool) -> None:
        self.step_log = StepLog(directory)
        self.victim = subprocess.Popen(["sleep", "60"])
        self.submitted = 1
        self._directory = directory
        self._can_resubmit = can_resubmit

    def settled(self) -> bool:
        """Called between steps: the trainers go on."""
        self._step()
        return True

    def ended(self) -> bool:
        return False

    def pid_of(self, task: str) -> int:
        assert task == "ps:0"
        return self.victim.pid

    def tasks_with(self, task: str) -> Sequence[str]:
        return [task]

    async def lose_node(self, task: str) -> int:
        raise AssertionError(task)

    async def node_back(self) -> None:
        raise AssertionError

    def resubmit(self) -> bool:
        if self._can_resubmit:
            self.submitted += 1
            self._step(MINUTE_NS)
        return self._can_resubmit

    def _step(self, later_ns: int = 0) -> None:
        for trainer in TRAINERS:
            path = self._directory / f"{trainer.replace(':', '-')}.{self.submitted}"
            with path.open("a") as file:
                file.write(f"{time.monotonic_ns()} 1\n{time.monotonic_ns() + later_ns} 1\n")


@pytest.fixture
def settles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.engines.losses.SETTLE_S", 0)


@pytest.mark.usefixtures("settles_at_once")
async def test_a_job_that_does_not_come_back_is_submitted_again_and_timed_from_there(tmp_path: Path) -> None:
    tool, losses = FakeTool(tmp_path, can_resubmit=True), Losses()
    tool.step_log.read()
    watcher = Watcher(tool, "fake", losses, Quiet(0), 0.0, time.monotonic() + 60)
    await watcher.lose({PS: 1})
    assert tool.victim.wait() == -9
    assert tool.submitted == 2
    (loss,) = losses.of[PS]
    assert not loss.by_itself
    assert losses.never_by_itself == {PS: pytest.approx(0, abs=30)}


@pytest.mark.usefixtures("settles_at_once")
async def test_a_job_that_cannot_be_submitted_again_is_a_failure(tmp_path: Path) -> None:
    tool = FakeTool(tmp_path, can_resubmit=False)
    watcher = Watcher(tool, "fake", Losses(), Quiet(0), 0.0, time.monotonic() + 60)
    with pytest.raises(PromiseBroken, match="after the loss of ps"):
        await watcher.lose({PS: 1})
    tool.victim.wait()


def test_tools_are_compared_by_medians_and_only_where_both_were_measured() -> None:
    def losses(**ms: Sequence[float]) -> Losses:
        return Losses({what: [Loss(each, each, True, ()) for each in given] for what, given in ms.items()})

    ours, theirs = losses(worker=[100, 200, 900], node=[50]), losses(worker=[3000], ps=[1000])
    assert times_faster(ours, theirs) == {WORKER: 15.0, PS: None, NODE: None}


def test_the_environment_of_a_process_is_read_and_of_one_that_is_gone_is_empty() -> None:
    assert environment_of(os.getpid())["PATH"] != ""
    with subprocess.Popen(["true"]) as process:
        pass
    assert environment_of(process.pid) == {}
