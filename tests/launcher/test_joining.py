"""A worker of TensorFlow 1 that has moved joins parameter servers, a chief and a worker that go on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agent.inside import protocol
from tests.launcher.harness import Agent, launcher
from tests.support.herd import addresses, herd

ENV = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"}

TRAINS = """
import json, os, sys, time
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
told = json.loads(os.environ["TF_CONFIG"])
cluster, role, index = tf.train.ClusterSpec(told["cluster"]), told["task"]["type"], told["task"]["index"]
steps, filtered = int(sys.argv[1]), sys.argv[2] == "filtered"
server = tf.train.Server(cluster, job_name=role, task_index=index)
assert server.server_def.job_name == role and server.server_def.task_index == index
if role == "ps":
    server.join()
own = "/job:%s/task:%d" % (role, index)
config = tf.ConfigProto(device_filters=["/job:ps", own] if filtered else [])
with tf.device(tf.train.replica_device_setter(worker_device=own, cluster=cluster)):
    x = tf.constant(1.0, shape=[8, 4])
    halves = tf.fixed_size_partitioner(2)
    w = tf.get_variable("w", [4, 2], partitioner=halves, initializer=tf.zeros_initializer())
    b = tf.get_variable("b", [], use_resource=True, initializer=tf.zeros_initializer())
    step = tf.train.get_or_create_global_step()
    loss = tf.reduce_mean(tf.square(tf.matmul(x, tf.convert_to_tensor(w)) + b - 3.0))
    train = tf.train.GradientDescentOptimizer(0.001).minimize(loss, global_step=step)
mine, gap, last = 0, 0, 0
with tf.train.MonitoredTrainingSession(server.target, is_chief=role == "chief", config=config) as session:
    while not steps or mine < steps:
        _, now = session.run([train, step])
        mine += 1
        gap, last = max(gap, time.monotonic() - (last or time.monotonic())), time.monotonic()
        print("mine %d of %d gap %.3f" % (mine, now, gap), flush=True)
        if os.path.exists(os.environ.get("STOP", "")):
            break
        time.sleep(0.01)
    print("ends with %d of %d" % (mine, session.run(step)), flush=True)
    os._exit(0)
"""


def _counted(log: str) -> tuple[int, int]:
    found = re.findall(r"(?:mine|with) (\d+) of (\d+)", log)
    return int(found[-1][0]), int(found[-1][1])


@pytest.mark.parametrize("filtered", ["filtered", pytest.param("unfiltered", marks=pytest.mark.slow)])
def test_a_moved_worker_joins_beside_tasks_that_go_on(filtered: str, tmp_path: Path) -> None:
    with (
        herd(ENV) as tasks,
        addresses("ps", "ps1", "chief", "worker", "former", "new") as at,
        launcher(preload=["tensorflow"], env=ENV) as rig,
        Agent(rig.socket_path) as agent,
    ):
        cluster = {
            "ps": [at["ps"], at["ps1"]],
            "chief": [at["chief"]],
            "worker": [at["worker"], at["former"]],
        }
        moved = {**cluster, "worker": [at["worker"], at["new"]]}

        def env(cluster: dict[str, list[str]], role: str, index: int) -> dict[str, str]:
            told = json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
            return {"TF_CONFIG": told, "TF_GRPC_REUSE_PORT": "true", "STOP": str(tmp_path / "stop")}

        for name, role, index in (
            *(("ps", "ps", 0), ("ps1", "ps", 1), ("chief", "chief", 0)),
            *(("worker", "worker", 0), ("former", "worker", 1)),
        ):
            tasks.start(name, TRAINS, "0", filtered, env=env(cluster, role, index))
        tasks.logged("former", "mine 20 ")
        lost = ("former",) if filtered == "filtered" else ("former", "worker")
        for name in lost:
            tasks.signal(name, 9)
        before = sum(_counted(tasks.log(name))[0] for name in lost)
        agent.expect(protocol.Warm, timeout_s=60)
        rig.write("prog.py", TRAINS)
        attempt = rig.start(
            agent, "python", "prog.py", "0", filtered, env=env(moved, "worker", 1), joins=True
        )
        rig.logged("mine 20 ", 60)
        (tmp_path / "stop").touch()
        exited = agent.expect(protocol.Exited, lambda each: each.attempt == attempt)
        assert exited.code == 0, rig.log()
        stayed = [name for name in ("chief", "worker") if name not in lost]
        ends = [rig.log().decode(), *(tasks.logged(name, "ends with") for name in stayed)]
        counted = [_counted(each) for each in ends]
        total = sum(mine for mine, _ in counted) + before
        cut_off = max(step for _, step in counted) - total
        assert 0 <= cut_off <= len(lost), "a step that the kill cut off may count"
        assert all(float(re.findall(r"gap (\S+)", each)[-1]) < 2 for each in ends[1:])
