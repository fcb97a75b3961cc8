"""Handwritten digits, learnt asynchronously, in the way of TensorFlow's first distributed examples.

The cluster comes by flags; TF_CONFIG is not read. Worker 0 is the chief: it initialises the variables, saves
them to --train_dir, and measures the accuracy at the end.
"""

import argparse
import time

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ps_hosts", required=True, help="comma-separated host:port of parameter servers")
    parser.add_argument("--worker_hosts", required=True, help="comma-separated host:port of workers")
    parser.add_argument("--job_name", required=True, choices=["ps", "worker"])
    parser.add_argument("--task_index", type=int, required=True)
    parser.add_argument("--train_dir", required=True, help="where checkpoints go")
    parser.add_argument("--steps", type=int, default=2000, help="stop at this global step")
    parser.add_argument("--save-steps", type=int, default=100, help="global steps between checkpoints")
    parser.add_argument("--pause-ms", type=float, default=0, help="pause after each local step")
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


def train(flags, cluster, target):
    images, digits = load_digits(return_X_y=True)
    train_images, test_images, train_digits, test_digits = train_test_split(
        images / 16, digits, test_size=0.2, random_state=0, stratify=digits
    )
    me = f"/job:worker/task:{flags.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=me, cluster=cluster)):
        step = tf.train.get_or_create_global_step()
        image_batch = tf.placeholder(tf.float32, [None, 64])
        digit_batch = tf.placeholder(tf.int32, [None])
        loss, accuracy = build_model(image_batch, digit_batch)
        update = tf.train.AdamOptimizer(0.002).minimize(loss, global_step=step)

    is_chief = flags.task_index == 0
    random = np.random.default_rng()
    with tf.train.MonitoredTrainingSession(
        master=target,
        is_chief=is_chief,
        checkpoint_dir=flags.train_dir,
        hooks=[tf.train.StopAtStepHook(last_step=flags.steps)],
        save_checkpoint_steps=flags.save_steps,
        save_summaries_steps=None,
        log_step_count_steps=None,
        # A worker waits for the parameter servers alone, never for the other workers.
        config=tf.ConfigProto(device_filters=["/job:ps", me]),
    ) as session:
        while not session.should_stop():
            batch = random.integers(len(train_images), size=64)
            feed = {image_batch: train_images[batch], digit_batch: train_digits[batch]}
            _, now_at, batch_loss = session.run([update, step, loss], feed)
            print(f"step {now_at} loss {batch_loss:.4f}", flush=True)
            if is_chief and now_at % 50 == 0:
                right = session.run(accuracy, {image_batch: test_images, digit_batch: test_digits})
                print(f"test accuracy {right:.4f}", flush=True)
            time.sleep(flags.pause_ms / 1000)


def main():
    flags = parse_flags()
    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)
    cluster = tf.train.ClusterSpec({"ps": flags.ps_hosts.split(","), "worker": flags.worker_hosts.split(",")})
    server = tf.distribute.Server(cluster, job_name=flags.job_name, task_index=flags.task_index)
    if flags.job_name == "ps":
        server.join()
    else:
        train(flags, cluster, server.target)


if __name__ == "__main__":
    main()
