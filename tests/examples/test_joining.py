"""Workers join and leave a job that trains, and an exact counter loses nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.counting.programs import ASYNC, COORDINATOR, Round, job_file
from supervisor.contract.views.jobs import TaskView
from tests.examples.harness import WAIT_S, Cluster, Job

RESIZES_S = 120.0
SIZES = (4, 1, 3)
COORDINATOR_SIZES = (3, 5, 1, 4, 2)


class Counts:
    """The counts that each process of a job has written, and the numbers of workers that it was told."""

    def __init__(self, root: Path) -> None:
        self.steps, self.told_in = root / "steps", root / "told"

    def told(self, pid: int) -> list[int]:
        """The numbers of workers that one process was told."""
        found = json.loads(next(self.told_in.glob(f"*.{pid}")).read_text())
        assert isinstance(found, list)
        return found

    def all(self) -> list[int]:
        """The counts of all of them."""
        return [each for path in self.steps.iterdir() for each in self._read(path)]

    def has_counted(self, pid: int) -> bool:
        """Whether a process has counted anything."""
        return any(self._read(path) for path in self.steps.glob(f"*.{pid}"))

    def _read(self, path: Path) -> list[int]:
        return [int(line.split()[1]) for line in path.read_text().split("\n")[:-1]]


def workers_of(job: Job) -> dict[int, TaskView]:
    return {task.index: task for task in job.view().tasks if task.role == "worker"}


def stay(job: Job) -> dict[tuple[str, int], int]:
    tasks = [task for task in job.view().tasks if (task.role, task.index) < ("worker", 1)]
    return {(task.role, task.index): task.pid for task in tasks}


def eventually(done: Callable[[], bool], job: Job) -> None:
    deadline = time.monotonic() + RESIZES_S
    while not done():
        assert time.monotonic() < deadline, job.story()
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(2 * int(WAIT_S))
def test_workers_join_and_leave_and_an_exact_counter_loses_nothing(tmp_path: Path) -> None:
    counts = Counts(tmp_path)
    file = job_file(tmp_path / "program", ASYNC, "async", counts=counts.told_in, steps=counts.steps)
    with Cluster(tmp_path / "state", nodes=2) as cluster:
        job = cluster.submit(file)
        job.wait_step(150)  # it has saved
        before = stay(job)
        ended = 0
        for size in SIZES:
            ended += max(0, len(workers_of(job)) - size)
            cluster.ctl("scale", job.name, f"worker={size}")

            def train(size: int = size) -> bool:
                there = workers_of(job)
                trains = all(
                    task.state == "running" and counts.has_counted(task.pid) for task in there.values()
                )
                return set(there) == set(range(size)) and trains

            eventually(train, job)
            newest = workers_of(job)[size - 1].pid
            assert counts.told(newest)[0] == counts.told(newest)[1]
        view = job.view()
        assert view.generation == 1
        assert stay(job) == before, "nobody else has restarted"
        assert (view.restarts_program, view.restarts_infrastructure) == (0, 0)
        alive = 1 + len(workers_of(job))
        job.stop()
        # An attempt that is ended may have counted once more than it wrote down.
        assert -alive <= max(counts.all()) - len(counts.all()) <= ended + alive


@pytest.mark.slow
@pytest.mark.timeout(2 * int(WAIT_S))
def test_a_coordinator_takes_more_workers_and_fewer_and_loses_no_closure(tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    file = job_file(tmp_path / "program", COORDINATOR, "coordinator", counts=counts, steps=tmp_path / "steps")
    # No node is lost here: on a busy machine the fast profile takes a slow one for a lost one.
    with Cluster(tmp_path / "state", nodes=2, options=("--profile", "default")) as cluster:
        job = cluster.submit(file)
        job.wait_step(150)  # it has saved
        before = stay(job)
        ended, size = 0, 2
        for wanted in COORDINATOR_SIZES:
            ended, size = ended + max(0, size - wanted), wanted
            worked = Round.newest(counts).by_worker
            cluster.ctl("scale", job.name, f"worker={size}")

            def all_work(worked: tuple[int, ...] = worked, wanted: int = wanted) -> bool:
                now = Round.newest(counts).by_worker
                there = len(workers_of(job)) == wanted
                return there and all(now[index] > worked[index] for index in range(wanted))

            eventually(all_work, job)
        last = Round.newest(counts)
        job.wait_step(last.scheduled + 200)
        assert stay(job) == before, "nobody else has restarted"
        assert job.view().generation == 1
        last = Round.newest(counts)
        assert last.lost == 0
        assert 0 <= last.counted - last.scheduled <= ended, "a closure that was cut off may count twice"
        job.stop()
