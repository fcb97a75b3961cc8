"""Workers join and leave a job that trains, and an exact counter loses nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from supervisor.contract.views.jobs import TaskView
from tests.examples.harness import WAIT_S, Cluster, Job

RESIZES_S = 120.0
SIZES = (4, 1, 3)
ASYNC = """
import json, os, time
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
config = json.loads(os.environ["TF_CONFIG"])
task, cluster = config["task"], tf.train.ClusterSpec(config["cluster"])
server = tf.train.Server(cluster, job_name=task["type"], task_index=task["index"])
if task["type"] == "ps":
    server.join()
with tf.device(tf.train.replica_device_setter(cluster=cluster)):
    count = tf.assign_add(tf.train.get_or_create_global_step(), 1, use_locking=True)
leads = task["type"] == "chief"
directory = os.environ["CHECKPOINT_DIR"] if leads else None
log = open(os.path.join(os.environ["COUNTS"], f"{task['type']}.{task['index']}.{os.getpid()}"), "w")
log.write(json.dumps([len(config["cluster"]["worker"]), int(os.environ["TFSUP_WORKERS"])]) + "\\n")
with tf.train.MonitoredTrainingSession(
    server.target, leads, directory, save_checkpoint_secs=None, save_checkpoint_steps=100
) as session:
    while True:
        counted = session.run(count)
        log.write(f"{counted}\\n")
        log.flush()
        print("step", counted, flush=True)
        time.sleep(0.05)
"""
COORDINATOR = """
import json, os
import tensorflow as tf

config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if task["type"] != "chief":
    tf.distribute.Server(resolver.cluster_spec(), task["type"], task["index"], protocol="grpc").join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    count, seen = tf.Variable(0, dtype=tf.int64), tf.Variable(tf.zeros([8], tf.int64))
manager = tf.train.CheckpointManager(tf.train.Checkpoint(count=count), os.environ["CHECKPOINT_DIR"], 3)
each_has = iter(coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(1, 2).repeat()))

@tf.function
def step(own):
    index = tf.distribute.coordinator.experimental_get_current_worker_index()
    seen.scatter_add(tf.IndexedSlices(tf.ones([1], tf.int64), tf.reshape(index, [1])))
    count.assign_add(next(own))

scheduled = 0
log = open(os.path.join(os.environ["COUNTS"], f"chief.{os.getpid()}"), "w")
while True:
    for scheduled in range(scheduled + 1, scheduled + 21):
        coordinator.schedule(step, args=(each_has,))
    coordinator.join()
    log.write(json.dumps([scheduled, int(count), seen.numpy().tolist()]) + "\\n")
    log.flush()
    print("step", scheduled, flush=True)
    if scheduled % 100 == 0:
        manager.save(scheduled)
"""


class Counts:
    """The counts that each process of a job has written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def of(self, pid: int) -> list[int]:
        """The counts of one process."""
        return self._read(next(self._directory.glob(f"*.{pid}")))

    def told(self, pid: int) -> list[int]:
        """The numbers of workers that one process was told."""
        line = next(self._directory.glob(f"*.{pid}")).read_text().partition("\n")[0]
        found = json.loads(line)
        assert isinstance(found, list)
        return found

    def all(self) -> list[int]:
        """The counts of all of them."""
        return [each for path in self._directory.iterdir() for each in self._read(path)]

    def has_counted(self, pid: int) -> bool:
        """Whether a process has counted anything."""
        return bool(list(self._directory.glob(f"*.{pid}"))) and bool(self.of(pid))

    def _read(self, path: Path) -> list[int]:
        lines = path.read_text().split("\n")[1:-1]
        return [int(line) for line in lines]


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


def job_file(directory: Path, program: str, strategy: str, counts: Path) -> Path:
    (directory / "train.py").write_text(program)
    document = {
        "name": "counter",
        "command": [sys.executable, "train.py"],
        "strategy": strategy,
        "roles": {"chief": {"count": 1}, "ps": {"count": 1}, "worker": {"count": 2}},
        "checkpoint": {"keep": 3},
        "preload": ["tensorflow"],
        "env": {"COUNTS": str(counts), "TF_CPP_MIN_LOG_LEVEL": "2"},
    }
    with (directory / "job.yaml").open("w") as out:
        YAML(typ="safe").dump(document, out)
    return directory / "job.yaml"


@pytest.mark.slow
@pytest.mark.timeout(2 * int(WAIT_S))
def test_workers_join_and_leave_and_an_exact_counter_loses_nothing(tmp_path: Path) -> None:
    program, directory = tmp_path / "program", tmp_path / "counts"
    program.mkdir()
    directory.mkdir()
    counts = Counts(directory)
    with Cluster(tmp_path / "state", nodes=2) as cluster:
        job = cluster.submit(job_file(program, ASYNC, "async", directory))
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
def test_a_coordinator_takes_more_workers_and_loses_no_closure(tmp_path: Path) -> None:
    program, directory = tmp_path / "program", tmp_path / "counts"
    program.mkdir()
    directory.mkdir()

    def newest() -> tuple[int, int, list[int]]:
        (log,) = directory.iterdir()
        scheduled, counted, seen = json.loads(log.read_text().rstrip("\n").split("\n")[-2])
        return scheduled, counted, seen

    with Cluster(tmp_path / "state", nodes=2) as cluster:
        job = cluster.submit(job_file(program, COORDINATOR, "coordinator", directory))
        job.wait_step(150)
        before = stay(job)
        for size in (3, 5):
            cluster.ctl("scale", job.name, f"worker={size}")

            def all_work(size: int = size) -> bool:
                return all(newest()[2][:size])

            eventually(all_work, job)
        job.wait_step(newest()[0] + 200)
        scheduled, counted, seen = newest()
        assert scheduled == counted == sum(seen)
        assert stay(job) == before, "nobody else has restarted"
        assert job.view().generation == 1
        job.stop()
