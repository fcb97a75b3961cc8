"""Programs that count exactly while workers die, come and leave.

Both write a step log (`STEP_LOG`, see `examples.demo.steplog`) and, to a file `ROLE.INDEX.PID` in `COUNTS`, a
line of JSON: of style `async` the two numbers of workers that the process was told; of style `coordinator`
one after each round of closures, `Round`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

ASYNC = """
import json, os, time
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
config = json.loads(os.environ["TF_CONFIG"])
task, cluster = config["task"], tf.train.ClusterSpec(config["cluster"])
server = tf.train.Server(cluster, job_name=task["type"], task_index=task["index"])
if task["type"] == "ps":
    server.join()
# Without a worker_device the chief would count on worker 0, and die with it.
own = f"/job:{task['type']}/task:{task['index']}"
with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=own)):
    count = tf.assign_add(tf.train.get_or_create_global_step(), 1, use_locking=True)
leads = task["type"] == "chief"
directory = os.environ["CHECKPOINT_DIR"] if leads else None
with open(os.path.join(os.environ["COUNTS"], f"{task['type']}.{task['index']}.{os.getpid()}"), "w") as told:
    told.write(json.dumps([len(config["cluster"]["worker"]), int(os.environ["TFSUP_WORKERS"])]) + "\\n")
log = open(os.path.join(os.environ["STEP_LOG"], f"{task['type']}-{task['index']}.{os.getpid()}"), "w")
with tf.train.MonitoredTrainingSession(
    server.target, leads, directory, save_checkpoint_secs=None, save_checkpoint_steps=100
) as session:
    while True:
        counted = session.run(count)
        log.write(f"{time.monotonic_ns()} {counted}\\n")
        log.flush()
        print("step", counted, flush=True)
        time.sleep(0.05)
"""
"""Each trainer logs each count. What it logs may hold counts that others have made by then."""

COORDINATOR = """
import json, os, time
import tensorflow as tf

config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if task["type"] != "chief":
    tf.distribute.Server(resolver.cluster_spec(), task["type"], task["index"], protocol="grpc").join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
ROUND = 20
with strategy.scope():
    count, seen = tf.Variable(0, dtype=tf.int64), tf.Variable(tf.zeros([8], tf.int64))
    marks = tf.Variable(tf.zeros([ROUND], tf.int64))
manager = tf.train.CheckpointManager(tf.train.Checkpoint(count=count), os.environ["CHECKPOINT_DIR"], 3)
each_has = iter(coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(1, 2).repeat()))
one = tf.ones([1], tf.int64)

@tf.function
def step(own, place):
    index = tf.distribute.coordinator.experimental_get_current_worker_index()
    seen.scatter_add(tf.IndexedSlices(one, tf.reshape(index, [1])))
    marks.scatter_update(tf.IndexedSlices(one, tf.reshape(place, [1])))
    count.assign_add(next(own))

scheduled, lost = 0, 0
places = [tf.constant(place) for place in range(ROUND)]
log = open(os.path.join(os.environ["STEP_LOG"], f"chief-0.{os.getpid()}"), "w")
rounds = open(os.path.join(os.environ["COUNTS"], f"chief.0.{os.getpid()}"), "w")
while True:
    marks.assign(tf.zeros([ROUND], tf.int64))
    for place in places:
        coordinator.schedule(step, args=(each_has, place))
    coordinator.join()
    scheduled += ROUND
    lost += ROUND - int(tf.reduce_sum(marks))
    log.write(f"{time.monotonic_ns()} {scheduled}\\n")
    log.flush()
    rounds.write(json.dumps([scheduled, int(count), lost, seen.numpy().tolist()]) + "\\n")
    rounds.flush()
    print("step", scheduled, flush=True)
    if scheduled % 100 == 0:
        manager.save(scheduled)
"""
"""Each closure adds 1 to a counter, and marks its own place: one that is run again marks nothing new."""


@dataclass(frozen=True, slots=True)
class Round:
    """The counts that a coordinator has after a round of closures.

    `counted` is higher than `scheduled` by the closures that were run again after their worker had died.
    `lost`: the closures whose mark was missing. `by_worker`: the closures that each worker has run.
    """

    scheduled: int
    counted: int
    lost: int
    by_worker: tuple[int, ...]

    @classmethod
    def newest(cls, counts: Path) -> Round:
        """The last one that the only chief of a job has written whole."""
        (file,) = counts.glob("chief.0.*")
        scheduled, counted, lost, by_worker = json.loads(
            file.read_text().rpartition("\n")[0].rpartition("\n")[2]
        )
        return cls(scheduled, counted, lost, tuple(by_worker))


def job_file(directory: Path, program: str, strategy: str, *, counts: Path, steps: Path) -> Path:
    """The file of a job in `directory`: a chief, a parameter server and two workers."""
    for each in (directory, counts, steps):
        each.mkdir(parents=True, exist_ok=True)
    (directory / "train.py").write_text(program)
    document = {
        "name": "counter",
        "command": [sys.executable, "train.py"],
        "strategy": strategy,
        "roles": {"chief": {"count": 1}, "ps": {"count": 1}, "worker": {"count": 2}},
        "checkpoint": {"keep": 3},
        "preload": ["tensorflow"],
        "env": {"COUNTS": str(counts), "STEP_LOG": str(steps), "TF_CPP_MIN_LOG_LEVEL": "2"},
    }
    with (directory / "job.yaml").open("w") as out:
        YAML(typ="safe").dump(document, out)
    return directory / "job.yaml"
