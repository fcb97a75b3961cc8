"""Etcd gone altogether, on a real embedded cluster: with promises training goes on, without it ends by D."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from supervisor.adapters.files.jobfile import load_job_file
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.errors import Unreachable
from supervisor.contract.timing import DEFAULT
from supervisor.contract.views.jobs import JobView, SubmitRequest

T = TypeVar("T")
DEADLINE_S = 120.0
V_MS = 40_000
OUTAGE_S = 2.2 * DEFAULT.d_ms / 1000
PROGRAM = """
import os, time
story = open(os.path.join(os.environ["STORY"], str(os.getpid())), "w")
step = 0
while True:
    step += 1
    print("step", step, flush=True)
    print(step, file=story, flush=True)
    time.sleep(0.2)
"""


@dataclass
class Training:
    """A job of two workers on a cluster, and what its programs write themselves."""

    cluster: LocalCluster
    story: Path

    def submit(self, directory: Path) -> None:
        """Begin."""
        (directory / "train.py").write_text(PROGRAM)
        job = {
            "name": "job",
            "strategy": "plain",
            "command": [sys.executable, "train.py"],
            "preload": [],
            "roles": {"worker": {"count": 2}},
            "env": {"STORY": str(self.story)},
        }
        path = directory / "job.yaml"
        path.write_text(json.dumps(job))
        spec = load_job_file(path, checkpoint_base=(directory / "checkpoints").as_uri()).spec

        async def send() -> None:
            async with self.cluster.client() as client:
                await client.submit(SubmitRequest(spec))

        asyncio.run(send())

    def ask(self) -> JobView:
        """As the leader sees it; raises Unreachable while nobody leads."""

        async def status() -> JobView:
            async with self.cluster.client(deadline_s=5.0) as client:
                return (await client.status("job")).jobs[0]

        return asyncio.run(status())

    def job(self) -> JobView | None:
        """The same; None while nobody leads."""
        try:
            return self.ask()
        except Unreachable:
            return None

    def steps(self) -> dict[int, int]:
        """The last step of each process that ever ran, by pid."""
        found = {int(path.name): path.read_text().split() for path in self.story.iterdir()}
        return {pid: int(words[-1]) for pid, words in found.items() if words}

    def all_step(self) -> dict[int, int] | None:
        """Once both workers do, as the leader sees it."""
        job = self.job()
        both = job is not None and all(task.state == "running" and task.step > 0 for task in job.tasks)
        return self.steps() if both else None


def until(look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + DEADLINE_S
    while (found := look()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def begin(cluster: LocalCluster, directory: Path) -> Training:
    story = directory / "story"
    story.mkdir()
    training = Training(cluster, story)
    training.submit(directory)
    until(training.all_step)
    return training


def know_whom_to_ask(state: Path, nodes: int) -> bool | None:
    """Every agent does: it learns the terms by its next beat, a second after the first leader wrote them."""
    told = [
        path for path in state.glob("logs/agent-*.jsonl") if "all supervisors promise" in path.read_text()
    ]
    return True if len(told) == nodes else None


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def grown(training: Training, before: dict[int, int]) -> bool | None:
    """Every process that there was has made a step since, and there is no other."""
    now = training.steps()
    assert now.keys() == before.keys(), "a task was started again"
    assert all(alive(pid) for pid in before), "a task has ended"
    return True if all(now[pid] > step for pid, step in before.items()) else None


def train_on(training: Training) -> None:
    before = training.steps()
    until(lambda: grown(training, before))


@pytest.mark.timeout(400)
def test_training_goes_on_without_etcd_for_as_long_as_all_supervisors_promise(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "state", nodes=2, profile="default", promise_for_ms=V_MS) as cluster:
        training = begin(cluster, tmp_path)
        until(lambda: know_whom_to_ask(tmp_path / "state", 2))
        cluster.stop_member("etcd", signal.SIGKILL)
        gone = time.monotonic()
        while time.monotonic() < gone + OUTAGE_S:
            train_on(training)
        with pytest.raises(Unreachable, match="2 nodes are promised to be left alone"):
            training.ask()
        cluster.start_member("etcd")
        until(training.all_step)
        train_on(training)
        job = training.job()
        assert job is not None
        assert (job.generation, [task.attempt for task in job.tasks]) == (1, [1, 1])


def test_without_promises_tasks_end_by_d(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "state", nodes=1, supervisors=1) as cluster:
        training = begin(cluster, tmp_path)
        cluster.stop_member("etcd", signal.SIGKILL)
        pids = training.steps().keys()
        until(lambda: None if any(alive(pid) for pid in pids) else True)
