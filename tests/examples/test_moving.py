"""A worker that loses its node moves to another one, and chief, servers and the other workers train on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from supervisor.contract import codec
from supervisor.contract.incident import Outcome
from supervisor.contract.views.jobs import TaskView
from supervisor.contract.views.nodes import NodeList
from tests.examples.harness import EXAMPLES, WAIT_S, Cluster, Job

MOVER = ("worker", 1)
MOVES_S = 90.0
TRAINS_S = 120.0


@contextmanager
def frozen(pids: Sequence[int]) -> Iterator[None]:
    """All of these stand still, and go on afterwards if they are there."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def tasks_of(job: Job) -> dict[tuple[str, int], TaskView]:
    return {(task.role, task.index): task for task in job.view().tasks}


def node_processes(cluster: Cluster, task: TaskView) -> list[int]:
    """An agent, and its task with its launcher."""
    nodes = codec.from_plain(NodeList, cluster.document("nodes")).nodes
    agent = next(node.pid for node in nodes if node.node == task.node)
    return [agent, psutil.Process(task.pid).ppid(), task.pid]


def busy_s(pid: int) -> float:
    spent = psutil.Process(pid).cpu_times()
    return spent.user + spent.system


def eventually(seconds: float, done: object, what: object) -> None:
    assert callable(done)
    assert callable(what)
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(2 * int(WAIT_S))
@pytest.mark.parametrize(
    ("style", "dies", "words"),
    [
        ("digits_async", False, ("--steps", "100000", "--step-delay-ms", "20", "--save-steps", "50")),
        # A round of its program ends when its last closure has: it would wait for a worker that is frozen.
        ("digits_coordinator", True, ("--steps", "100000", "--save-steps", "20", "--pause-ms", "50")),
    ],
)
def test_a_worker_moves_and_all_others_train_on(
    style: str, dies: bool, words: tuple[str, ...], tmp_path: Path
) -> None:
    """`dies`: the task ends with its node; otherwise all of the node is frozen, and thaws."""
    with Cluster(tmp_path / "state", nodes=4) as cluster:
        job = cluster.submit(EXAMPLES / style / "job.yaml", flags={"": words})
        job.wait_step(60)
        before = tasks_of(job)
        old = before.pop(MOVER)
        assert old.node not in {task.node for task in before.values()}
        agent, launcher, task = node_processes(cluster, old)
        with frozen([agent] if dies else [agent, launcher, task]):
            if dies:
                os.kill(launcher, signal.SIGKILL)
            step = job.view().step
            eventually(MOVES_S, lambda: tasks_of(job)[MOVER].node != old.node, job.story)
            eventually(MOVES_S, lambda: tasks_of(job)[MOVER].state == "running", job.story)
            eventually(MOVES_S, lambda: job.incidents()[-1].outcome is Outcome.RECOVERED, job.story)
            assert job.view().step > step, "the others trained meanwhile"
            moved = tasks_of(job)[MOVER]
            assert moved.address != old.address
            spent_s = busy_s(moved.pid)
            eventually(TRAINS_S, lambda: busy_s(moved.pid) > spent_s + 0.2, job.story)
            job.wait_step(job.view().step + 60)
        eventually(10.0, lambda: not psutil.pid_exists(old.pid), job.story)
        job.wait_step(job.view().step + 60)
        after = tasks_of(job)
        assert after.pop(MOVER).pid == moved.pid
        assert {key: task.pid for key, task in after.items()} == {
            key: task.pid for key, task in before.items()
        }
        assert job.view().generation == 1
        (incident,) = job.incidents()
        assert (incident.rule, incident.scope) == ("node.worker", "task")
        job.stop()
