"""TF2 parameter servers; TF_CONFIG is parsed by hand, with what cloud platforms add to it."""

import json
import os
import time

import tensorflow as tf

config = json.loads(os.environ["TF_CONFIG"])
config.update({"environment": "cloud", "rpc_layer": "grpc", "job": {"args": ["--steps"], "region": "here"}})
os.environ["TF_CONFIG"] = json.dumps(config)
STEPS = 160


def serve(resolver):
    options = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=4)
    tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        config=options,
    ).join()


def coordinate(resolver):
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        w = tf.Variable(0.0)
        b = tf.Variable(0.0)
        step = tf.Variable(0, dtype=tf.int64)
    # The chief reads and writes whole checkpoints: the servers need not see its directory.
    io = tf.train.CheckpointOptions(experimental_io_device="/job:chief/replica:0/task:0/device:CPU:0")
    checkpoint = tf.train.Checkpoint(w=w, b=b, step=step)
    latest = tf.train.latest_checkpoint(os.environ["CHECKPOINT_DIR"])
    if latest:
        checkpoint.restore(latest, options=io)

    @tf.function
    def train_step():
        x = tf.random.uniform([32], -1, 1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
        dw, db = tape.gradient(loss, [w, b])
        w.assign_sub(0.1 * dw)
        b.assign_sub(0.1 * db)
        step.assign_add(1)
        return loss

    while step.numpy() < STEPS:
        for _ in range(4):
            loss = coordinator.schedule(train_step)
        coordinator.join()
        print(f"Step: {step.numpy()}, loss: {loss.fetch():.5f}", flush=True)
        if step.numpy() % 20 == 0:
            checkpoint.save(os.path.join(os.environ["CHECKPOINT_DIR"], "model"), options=io)
        time.sleep(0.2)
    print(f"coordinator: {step.numpy()} steps, w {w.numpy():.2f}, b {b.numpy():.2f}", flush=True)


if __name__ == "__main__":
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
    else:
        coordinate(resolver)
