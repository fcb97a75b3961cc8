"""A Scaffold with its own saver and init function; an evaluator polls for new checkpoints and judges them."""

import json
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
MODEL_DIR = os.environ["CHECKPOINT_DIR"]
LAST_STEP = 250


def model():
    global_step = tf.train.get_or_create_global_step()
    x = tf.placeholder(tf.float32, [None], "x")
    w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    b = tf.get_variable("b", [], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
    return global_step, x, loss


def evaluate():
    step, x, loss = model()
    saver = tf.train.Saver()
    seen = 0
    while seen < LAST_STEP:
        path = tf.train.latest_checkpoint(MODEL_DIR)
        if path and int(path.rpartition("-")[2]) > seen:
            with tf.Session() as session:
                saver.restore(session, path)
                seen, value = session.run([step, loss], {x: np.linspace(-1, 1, 100)})
            print(f"Saving dict for global step {seen}: global_step = {seen}, loss = {value:.5f}", flush=True)
        time.sleep(0.2)


def train(role, index, cluster, target):
    setter = tf.train.replica_device_setter(worker_device=f"/job:{role}/task:{index}", cluster=cluster)
    with tf.device(setter):
        step, x, loss = model()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    scaffold = tf.train.Scaffold(
        saver=tf.train.Saver(max_to_keep=2, save_relative_paths=True),
        init_fn=lambda _, session: print("variables are initialised", flush=True),
    )
    with tf.train.MonitoredTrainingSession(
        master=target,
        is_chief=role == "chief",
        checkpoint_dir=MODEL_DIR,
        scaffold=scaffold,
        save_checkpoint_steps=25,
        hooks=[tf.train.StopAtStepHook(last_step=LAST_STEP)],
        config=tf.ConfigProto(device_filters=["/job:ps", f"/job:{role}/task:{index}"]),
    ) as session:
        while not session.should_stop():
            _, now, value = session.run([train_op, step, loss], {x: np.random.uniform(-1, 1, 32)})
            print(f"global_step {now}, loss {value:.4f}", flush=True)
            time.sleep(0.05)
    if role == "chief":
        saved = tf.train.load_checkpoint(MODEL_DIR)
        step, w, b = (saved.get_tensor(name) for name in ("global_step", "w", "b"))
        print(f"Done: step {step} w {w:.2f} b {b:.2f}", flush=True)


if __name__ == "__main__":
    config = json.loads(os.environ["TF_CONFIG"])
    task = config["task"]
    if task["type"] == "evaluator":
        evaluate()
    else:
        spec = tf.train.ClusterSpec({k: v for k, v in config["cluster"].items() if k != "evaluator"})
        server = tf.train.Server(spec, job_name=task["type"], task_index=task["index"])
        if task["type"] == "ps":
            server.join()
        train(task["type"], task["index"], spec, server.target)
