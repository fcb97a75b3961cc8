"""Two parameter servers come back together: chief and worker run on, and nothing mixes two restores."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from supervisor.contract.incident import Outcome
from supervisor.contract.views.jobs import TaskView
from tests.examples.harness import WAIT_S, Cluster, Job

BACK_S = 240.0
JOB = {
    "name": "counts",
    "command": ["python", "train.py"],
    "strategy": "async",
    "roles": {"chief": {"count": 1}, "ps": {"count": 2}, "worker": {"count": 1}},
    "preload": [],
    "env": {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"},
}
PROGRAM = """
import json, os, time
import tensorflow.compat.v1 as tf

LARGE = 20_000_000
UNDER_WAY = 4
tf.disable_eager_execution()
config = json.loads(os.environ["TF_CONFIG"])
role, index = config["task"]["type"], config["task"]["index"]
server = tf.distribute.Server(tf.train.ClusterSpec(config["cluster"]), job_name=role, task_index=index)
if role == "ps":
    server.join()
with tf.device("/job:ps/task:0"):
    step = tf.train.get_or_create_global_step()
    large = tf.get_variable("large", [LARGE], initializer=tf.zeros_initializer())
with tf.device("/job:ps/task:1"):
    small = tf.get_variable("small", [], initializer=tf.zeros_initializer())
with tf.device(f"/job:{role}/task:{index}"):
    # Each variable counts the updates that it has got.
    counts = [tf.gather(large, [0])[0], small.read_value()]
    with tf.control_dependencies(counts):
        one = tf.IndexedSlices(tf.constant([1.0]), tf.constant([0]))
        updates = [large.scatter_add(one), tf.assign_add(small, 1.0)]
    with tf.control_dependencies(updates):
        after = tf.assign_add(step, 1)
session = tf.train.MonitoredTrainingSession(
    master=server.target,
    is_chief=role == "chief",
    checkpoint_dir=os.environ["CHECKPOINT_DIR"],
    scaffold=tf.train.Scaffold(saver=tf.train.Saver(max_to_keep=3)),
    config=tf.ConfigProto(device_filters=["/job:ps", f"/job:{role}/task:{index}"]),
    save_checkpoint_steps=100,
    save_checkpoint_secs=None,
    save_summaries_steps=None,
    save_summaries_secs=None,
    log_step_count_steps=None,
)
with session:
    while not session.should_stop():
        found, at = session.run([counts, after])
        if max(found) - min(found) > UNDER_WAY:
            print(f"mixed at step {at}: {found}", flush=True)
            os._exit(3)
        print(f"step {at}", flush=True)
        time.sleep(0.05)
"""


def tasks_of(job: Job) -> dict[tuple[str, int], TaskView]:
    return {(task.role, task.index): task for task in job.view().tasks}


def wait_for_recovery(job: Job) -> None:
    deadline = time.monotonic() + BACK_S
    while [each.outcome for each in job.incidents()] != [Outcome.RECOVERED]:
        assert time.monotonic() < deadline, job.story()
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(2 * int(WAIT_S))
def test_two_servers_come_back_together_and_nothing_mixes_two_restores(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text(PROGRAM)
    with (source / "job.yaml").open("w") as file:
        YAML(typ="safe").dump(JOB, file)
    with Cluster(tmp_path / "state") as cluster:
        job = cluster.submit(source / "job.yaml")
        job.wait_step(250)
        before = tasks_of(job)
        os.kill(before["ps", 1].pid, signal.SIGKILL)
        wait_for_recovery(job)
        job.wait_step(job.view().step + 250)
        after = tasks_of(job)
        incident, *more = job.incidents()
        assert not more, job.story()
        assert (incident.rule, incident.scope) == ("async.ps.together", "task")
        same = {key for key, task in before.items() if after[key].pid == task.pid}
        assert same == {("chief", 0), ("worker", 0)}
        assert job.view().generation == 1
        job.stop()
