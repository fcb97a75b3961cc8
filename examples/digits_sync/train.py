"""Handwritten digits, learnt by replicas whose gradients are averaged before each step.

Every step waits for all replicas (SyncReplicasOptimizer), so the loss of any process stops all of them.
"""

import argparse
import json
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500, help="stop at this global step")
    parser.add_argument("--save-steps", type=int, default=25, help="global steps between checkpoints")
    parser.add_argument("--pause-ms", type=float, default=0, help="pause after each step")
    return parser.parse_args()


def build_model(images, digits):
    """Two dense layers: returns the loss and the share of right answers."""
    hidden_kernel = tf.get_variable("hidden/kernel", [64, 128])
    hidden_bias = tf.get_variable("hidden/bias", [128], initializer=tf.zeros_initializer())
    kernel = tf.get_variable("logits/kernel", [128, 10])
    bias = tf.get_variable("logits/bias", [10], initializer=tf.zeros_initializer())
    logits = tf.matmul(tf.nn.relu(tf.matmul(images, hidden_kernel) + hidden_bias), kernel) + bias
    loss = tf.losses.sparse_softmax_cross_entropy(digits, logits)
    right = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), digits)
    return loss, tf.reduce_mean(tf.cast(right, tf.float32))


class ReportAccuracy(tf.train.SessionRunHook):
    """Print the accuracy on the held-out images when training has ended."""

    def __init__(self, accuracy, feed):
        self.accuracy = accuracy
        self.feed = feed

    def end(self, session):
        print(f"test accuracy {session.run(self.accuracy, self.feed):.4f}", flush=True)


def train(flags, cluster, role, index, target):
    images, digits = load_digits(return_X_y=True)
    train_images, test_images, train_digits, test_digits = train_test_split(
        images / 16, digits, test_size=0.2, random_state=0, stratify=digits
    )
    me = f"/job:{role}/task:{index}"
    is_chief = role == "chief"
    replicas = cluster.num_tasks("chief") + cluster.num_tasks("worker")
    with tf.device(tf.train.replica_device_setter(worker_device=me, cluster=cluster)):
        step = tf.train.get_or_create_global_step()
        image_batch = tf.placeholder(tf.float32, [None, 64])
        digit_batch = tf.placeholder(tf.int32, [None])
        loss, accuracy = build_model(image_batch, digit_batch)
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.AdamOptimizer(0.005), replicas_to_aggregate=replicas, total_num_replicas=replicas
        )
        update = optimizer.minimize(loss, global_step=step)

    hooks = [optimizer.make_session_run_hook(is_chief), tf.train.StopAtStepHook(last_step=flags.steps)]
    if is_chief:
        hooks.append(ReportAccuracy(accuracy, {image_batch: test_images, digit_batch: test_digits}))
    random = np.random.default_rng()
    with tf.train.MonitoredTrainingSession(
        master=target,
        is_chief=is_chief,
        checkpoint_dir=os.environ.get("CHECKPOINT_DIR"),
        hooks=hooks,
        save_checkpoint_steps=flags.save_steps,
        save_summaries_steps=None,
        log_step_count_steps=None,
        # The chief's thread that applies gradients never ends by itself: do not wait two minutes for it.
        stop_grace_period_secs=1,
        # A replica's session has no part in the other replicas, which may leave before it.
        config=tf.ConfigProto(device_filters=["/job:ps", me]),
    ) as session:
        while not session.should_stop():
            batch = random.integers(len(train_images), size=64)
            feed = {image_batch: train_images[batch], digit_batch: train_digits[batch]}
            _, now_at, batch_loss = session.run([update, step, loss], feed)
            print(f"step {now_at} loss {batch_loss:.4f}", flush=True)
            time.sleep(flags.pause_ms / 1000)


def main():
    flags = parse_flags()
    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf_config = json.loads(os.environ["TF_CONFIG"])
    cluster = tf.train.ClusterSpec(tf_config["cluster"])
    role, index = tf_config["task"]["type"], tf_config["task"]["index"]
    server = tf.distribute.Server(cluster, job_name=role, task_index=index)
    if role == "ps":
        server.join()
    else:
        train(flags, cluster, role, index, server.target)


if __name__ == "__main__":
    main()
