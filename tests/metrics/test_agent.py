"""What an agent tells of its node, from states made by hand."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from agent import metrics as agent_metrics
from agent.boundaries import NoGpus, Post
from agent.core.events import GpusSeen
from agent.core.gpus.health import GpuBook, GpuSight, Sight, Xid, fold
from agent.core.instructions import Recipe
from agent.core.saved.record import End
from agent.core.state import AgentState, Attempt, Launcher
from agent.metrics import CountedGpus, Disks, fill, savers
from supervisor.adapters.metrics.daemon import Metrics
from supervisor.adapters.metrics.samples import Rows
from supervisor.contract.ids import attempt_id
from supervisor.contract.observed import ExitReason, SaverBeat
from supervisor.contract.timing import FAST
from tests.agent.core import SETTINGS
from tests.support.sinks import ListSink

STATE = AgentState(SETTINGS, "life", "boot", FAST.d_ms)
SIGHT = GpuSight(
    "GPU-secret-uuid",
    3,
    "NVIDIA H200",
    1 << 37,
    ecc_volatile=2,
    temperature=61,
    power_mw=450_500,
    utilisation=93,
    memory_used=1 << 30,
)


def rows_of(state: AgentState, now_ms: int = 10_000) -> Rows:
    rows = Rows()
    fill(state, now_ms, rows)
    return rows


def test_an_agent_that_has_read_nothing_yet() -> None:
    rows = rows_of(STATE)
    assert rows.values[agent_metrics.REGISTERED] == {(): 0}
    assert agent_metrics.READ_AGE not in rows.values
    assert agent_metrics.TIME_LEFT not in rows.values
    assert agent_metrics.NVML_UP not in rows.values


def test_the_time_that_tasks_may_go_on_without_etcd() -> None:
    state = replace(STATE, read_ms=9_000, deadline_ms=9_000 + FAST.d_ms)
    rows = rows_of(state)
    assert rows.get(agent_metrics.READ_AGE) == 1.0
    assert rows.get(agent_metrics.TIME_LEFT) == (FAST.d_ms - 1_000 - state.reserve_ms) / 1000
    assert rows_of(state, 9_000 + 2 * FAST.d_ms).get(agent_metrics.TIME_LEFT) < 0


def test_attempts_and_launchers_by_state() -> None:
    made = Attempt(attempt_id("job", "worker", 0, 1, 1), "u", "p", "l", 1, "a:1", warm=True)
    ended = End(ExitReason.EXIT, 0, None, 1, confirmed_dead=True)
    attempts = [made, replace(made, pid=7), replace(made, pid=7, kills=1), replace(made, pid=7, end=ended)]
    launcher = Launcher("l", Recipe("job", "u", "/w", "python"), 1)
    ready = replace(launcher, welcomed=True, settled=True, connected=True, warm=True)
    launchers = [launcher, ready, replace(ready, connected=False), replace(ready, doomed=True)]
    rows = rows_of(
        replace(
            STATE,
            attempts={attempt_id("job", "worker", n, 1, 1): each for n, each in enumerate(attempts)},
            launchers={str(n): each for n, each in enumerate(launchers)},
        )
    )
    assert rows.values[agent_metrics.TASKS] == {(each,): 1 for each in agent_metrics.ATTEMPT_STATES}
    assert rows.values[agent_metrics.LAUNCHERS] == {(each,): 1 for each in agent_metrics.LAUNCHER_STATES}


def test_a_gpu_and_its_faults() -> None:
    book = fold(GpuBook(), Sight("580.1", gpus=(replace(SIGHT, ecc_volatile=0),)), 1_000)
    book = fold(book, Sight("580.1", gpus=(SIGHT,), xids=(Xid(79, SIGHT.uuid),)), 2_000)
    rows = rows_of(replace(STATE, gpus=book))
    assert rows.values[agent_metrics.GPU] == {("3", "NVIDIA H200"): 1}
    assert rows.get(agent_metrics.GPU_HEALTH, "3", "faulty") == 1
    assert rows.get(agent_metrics.GPU_HEALTH, "3", "ok") == 0
    assert rows.get(agent_metrics.GPU_FAULTS, "3") >= 1
    assert rows.get(agent_metrics.GPU_TEMPERATURE, "3") == 61
    assert rows.get(agent_metrics.GPU_POWER, "3") == 450.5
    assert rows.get(agent_metrics.GPU_LOAD, "3") == 0.93
    assert rows.get(agent_metrics.GPU_ECC, "3") == 2
    assert rows.get(agent_metrics.NVML_UP) == 1


def test_nothing_old_is_told_of_gpus_that_do_not_answer() -> None:
    book = fold(GpuBook(), Sight("580.1", gpus=(SIGHT,)), 1_000)
    book = fold(book, Sight(problem="NVML hangs"), 2_000)
    rows = rows_of(replace(STATE, gpus=book))
    assert rows.values[agent_metrics.NVML_UP] == {(): 0}
    assert rows.get(agent_metrics.GPU_HEALTH, "3", "unknown") == 1
    assert agent_metrics.GPU_TEMPERATURE not in rows.values


def test_a_node_without_a_driver_tells_of_no_gpus() -> None:
    rows = rows_of(replace(STATE, gpus=fold(GpuBook(), Sight(problem="no NVIDIA driver here"), 1_000)))
    assert agent_metrics.NVML_UP not in rows.values


async def test_xids_are_counted_by_their_code_and_passed_on() -> None:
    class Struck(NoGpus):
        async def run(self, post: Post) -> None:
            post(GpusSeen(Sight(xids=(Xid(79, "GPU-a"), Xid(79, "GPU-b"), Xid(70_000, "GPU-a")))))

    metrics, seen = Metrics("agent", "1", ThreadPoolExecutor(1), ListSink()), list[object]()
    await CountedGpus(Struck(), metrics).run(seen.append)
    assert len(seen) == 1
    assert metrics.kept.values[agent_metrics.GPU_XIDS] == {("79",): 2, ("other",): 1}


def test_the_oldest_save_that_waits_is_told() -> None:
    rows = Rows()
    savers((), rows)
    assert rows.get(agent_metrics.SAVE_WAITING) == 0
    beats = SaverBeat("a", 1, waiting_ms=-1), SaverBeat("b", 1, waiting_ms=4_000, trouble_ms=3_000)
    savers(beats, rows)
    assert rows.get(agent_metrics.SAVERS) == 2
    assert rows.get(agent_metrics.SAVE_WAITING) == 4
    assert rows.get(agent_metrics.COMMIT_TROUBLE) == 3


def test_a_disk_that_does_not_answer_is_left_out_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked, real = threading.Event(), list[Path](), os.statvfs

    def statvfs(path: Path) -> os.statvfs_result:
        asked.append(path)
        if path.name == "dead":
            answers.wait()
        return real(tmp_path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(agent_metrics, "DISK_S", 0.05)
    disks = Disks({"checkpoints": tmp_path / "dead", "state": tmp_path})
    try:
        for _ in range(3):
            rows = Rows()
            disks.fill(rows)
            assert set(rows.values[agent_metrics.DISK_FREE]) == {("state",)}
        assert asked.count(tmp_path / "dead") == 1
    finally:
        answers.set()
