"""TensorFlow itself saves to and restores from mounts of one directory in HDFS."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from recovery.commit.outbox import TakenCheckpoint
from recovery.families.watch_rule import Idle, Unfinished
from recovery.mount.base import stage_live
from supervisor.contract.checkpoint import CheckpointRef
from tests.mount.saving import Saving
from tests.mount.world import Site

BEGIN = """
import os, sys, json
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import tensorflow as tf
"""
TF1 = """
tf.compat.v1.disable_eager_execution()
directory = sys.argv[1]
step = tf.compat.v1.train.get_or_create_global_step()
weights = tf.compat.v1.get_variable("weights", initializer=tf.zeros((1000, 1000)))
train = tf.group(weights.assign_add(tf.ones_like(weights)), step.assign_add(1))
with tf.compat.v1.train.MonitoredTrainingSession(
    checkpoint_dir=directory, save_checkpoint_steps=5, save_summaries_steps=None, log_step_count_steps=None
) as session:
    for _ in range(10):
        session.run(train)
    print("step", session.run(step), "weight", float(session.run(weights)[0, 0]))
"""
SERVER = """
cluster = json.loads(sys.argv[1])
tf.distribute.Server(cluster, job_name=sys.argv[2], task_index=int(sys.argv[3]), protocol="grpc").join()
"""
COORDINATOR = """
cluster, directory = tf.train.ClusterSpec(json.loads(sys.argv[1])), sys.argv[2]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    cluster, task_type="chief", task_id=0, rpc_layer="grpc"
)
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    variables = [tf.Variable(tf.zeros((300, 300)), name=f"v{each}") for each in range(4)]
    step = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(step=step, **{f"v{each}": one for each, one in enumerate(variables)})
manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
if manager.latest_checkpoint:
    checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    print("restored", int(step), float(variables[3][0, 0]))
for _ in range(4):
    for variable in variables:
        variable.assign_add(tf.ones_like(variable))
    step.assign_add(10)
    manager.save(checkpoint_number=int(step))
print("saved", int(step), float(variables[3][0, 0]))
"""


def run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BEGIN) + program, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


async def test_the_saver_of_tensorflow_1(on_hdfs: Site) -> None:
    await stage_live(on_hdfs.store(), on_hdfs.live(), None)
    with on_hdfs.mounted() as directory:
        assert "step 10 weight 10.0" in await asyncio.to_thread(run, TF1, str(directory))
        saving = Saving(on_hdfs, directory)
        taken = await saving.take()
        assert taken.manifest.ref == CheckpointRef(1, 10)
        assert taken.manifest.tf_version.startswith("2.")
        await saving.commit(taken, await saving.identity())
        # It goes on from what was committed, by its links.
        assert "step 20 weight 20.0" in await asyncio.to_thread(run, TF1, str(directory))


@pytest.mark.slow
async def test_parameter_servers_of_tensorflow_2_on_two_nodes(
    on_hdfs: Site, unused_tcp_port_factory: object
) -> None:
    assert callable(unused_tcp_port_factory)
    await stage_live(on_hdfs.store(), on_hdfs.live(), None)
    # Tasks of two nodes are told one path; here each process gets its own node's mount at that path.
    shared = on_hdfs.home / "shared"
    shared.mkdir()
    with on_hdfs.mounted(node="n1") as one, on_hdfs.mounted(node="n2") as two:
        for life in (1, 2):
            ports = [unused_tcp_port_factory() for _ in range(4)]
            cluster = {
                "chief": [f"127.0.0.1:{ports[3]}"],
                "ps": [f"127.0.0.1:{port}" for port in ports[:2]],
                "worker": [f"127.0.0.1:{ports[2]}"],
            }
            said = await asyncio.to_thread(train, json.dumps(cluster), shared, one, two)
            assert f"saved {40 * life} {4.0 * life}" in said
            assert ("restored 40 4.0" in said) == (life == 2)
        saving = Saving(on_hdfs, one)
        assert isinstance(await saving.watcher.look(), Idle | Unfinished)
        saving.watcher._eyes._roots = (str(shared), str(shared))
        taken = await saving.take()
        assert isinstance(taken, TakenCheckpoint)
        assert taken.manifest.ref.step == 80
        assert len([file for file in taken.manifest.files if ".data-" in file.name]) >= 2
        assert taken.manifest.tensors >= 5


def train(cluster: str, shared: Path, one: Path, two: Path) -> str:
    """A chief on node 1, a parameter server on each node, each with its node's mount at `shared`."""

    def on(node: Path, program: str, *arguments: str) -> list[str]:
        script = f'mount --bind {node} {shared} && exec "$@"'
        python = [sys.executable, "-c", textwrap.dedent(BEGIN) + program, *arguments]
        return ["unshare", "--mount", "sh", "-c", script, "sh", *python]

    servers = [
        subprocess.Popen(on(node, SERVER, cluster, role, index), stderr=subprocess.DEVNULL)
        for node, role, index in ((one, "ps", "0"), (two, "ps", "1"), (two, "worker", "0"))
    ]
    try:
        done = subprocess.run(
            on(one, COORDINATOR, cluster, str(shared)),
            check=False,
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout
    finally:
        for server in servers:
            server.kill()
            server.wait()
