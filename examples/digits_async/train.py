"""Handwritten digits, learnt by asynchronous replicas that share their variables on parameter servers.

Every process runs this file with its own TF_CONFIG: the parameter servers hold the variables, the chief and
the workers train, and the chief also saves checkpoints to $CHECKPOINT_DIR and measures the accuracy at the
end. Without TF_CONFIG it trains in one process.
"""

import argparse
import contextlib
import json
import os
import pathlib
import time

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=3000, help="stop at this global step")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=0.002)
    parser.add_argument("--save-steps", type=int, default=200, help="global steps between checkpoints")
    parser.add_argument(
        "--save-secs", type=float, help="seconds between checkpoints, instead of --save-steps"
    )
    parser.add_argument("--print-every", type=int, default=20, help="local steps between printed lines")
    parser.add_argument("--step-delay-ms", type=float, default=0, help="pause after each local step")
    parser.add_argument("--report", type=pathlib.Path, help="write the accuracy to this JSON file")
    return parser.parse_args()


def load_data():
    """Images as rows of 64 floats in 0..1, and their digits; a fifth is held out."""
    images, digits = load_digits(return_X_y=True)
    return train_test_split(
        (images / 16).astype(np.float32),
        digits.astype(np.int32),
        test_size=0.2,
        random_state=0,
        stratify=digits,
    )


def dense(inputs, units, name):
    size = int(inputs.shape[-1])
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [size, units], initializer=tf.glorot_uniform_initializer())
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
    return tf.matmul(inputs, kernel) + bias


class ReportAccuracy(tf.train.SessionRunHook):
    """Measure the accuracy on the held-out images when training has ended."""

    def __init__(self, accuracy, step, feed, report):
        self.fetches = [accuracy, step]
        self.feed = feed
        self.report = report

    def end(self, session):
        accuracy, step = session.run(self.fetches, self.feed)
        print(f"test accuracy {accuracy:.4f}", flush=True)
        if self.report:
            self.report.write_text(json.dumps({"accuracy": float(accuracy), "step": int(step)}) + "\n")


def open_step_log(role, index):
    """A file in $STEP_LOG that gets a line `monotonic_ns global_step` after each step of this process."""
    directory = os.environ.get("STEP_LOG")
    if not directory:
        return contextlib.nullcontext()
    # Not the pid, which is the same for many processes in containers.
    path = pathlib.Path(directory, f"{role}-{index}.{time.monotonic_ns()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", buffering=1, encoding="ascii")


def train(flags, cluster, role, index, target):
    train_images, test_images, train_digits, test_digits = load_data()
    device = tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:{role}/task:{index}")
    with tf.device(device if cluster else None):
        step = tf.train.get_or_create_global_step()
        images = tf.placeholder(tf.float32, [None, train_images.shape[1]])
        digits = tf.placeholder(tf.int32, [None])
        logits = dense(tf.nn.relu(dense(images, 128, "hidden")), 10, "logits")
        loss = tf.losses.sparse_softmax_cross_entropy(digits, logits)
        update = tf.train.AdamOptimizer(flags.learning_rate).minimize(loss, global_step=step)
        with tf.control_dependencies([update]):
            step_after = tf.identity(step.read_value())
        predicted = tf.argmax(logits, axis=1, output_type=tf.int32)
        accuracy = tf.reduce_mean(tf.cast(tf.equal(predicted, digits), tf.float32))

    is_chief = role == "chief"
    hooks = [tf.train.StopAtStepHook(last_step=flags.steps)]
    if is_chief:
        hooks.append(ReportAccuracy(accuracy, step, {images: test_images, digits: test_digits}, flags.report))
    # A replica waits for the parameter servers alone, never for the other replicas.
    config = tf.ConfigProto(
        device_filters=["/job:ps", f"/job:{role}/task:{index}"] if cluster else [],
        intra_op_parallelism_threads=1,
    )
    random = np.random.default_rng()
    session = tf.train.MonitoredTrainingSession(
        master=target,
        is_chief=is_chief,
        checkpoint_dir=os.environ.get("CHECKPOINT_DIR"),
        # The chief writes whole checkpoints: the parameter servers need not see its directory.
        scaffold=tf.train.Scaffold(saver=tf.train.Saver(max_to_keep=5)),
        hooks=hooks,
        config=config,
        save_checkpoint_steps=None if flags.save_secs else flags.save_steps,
        save_checkpoint_secs=flags.save_secs,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
    )
    local_step = 0
    with session, open_step_log(role, index) as step_log:
        while not session.should_stop():
            batch = random.integers(len(train_images), size=flags.batch_size)
            feed = {images: train_images[batch], digits: train_digits[batch]}
            _, now_at, batch_loss = session.run([update, step_after, loss], feed)
            if step_log:
                step_log.write(f"{time.monotonic_ns()} {now_at}\n")
            if local_step % flags.print_every == 0:
                print(f"step {now_at} loss {batch_loss:.4f}", flush=True)
            local_step += 1
            if flags.step_delay_ms:
                time.sleep(flags.step_delay_ms / 1000)


def main():
    flags = parse_flags()
    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf_config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    if not tf_config:
        train(flags, None, "chief", 0, "")
        return
    cluster = tf.train.ClusterSpec(tf_config["cluster"])
    role, index = tf_config["task"]["type"], tf_config["task"]["index"]
    server = tf.distribute.Server(cluster, job_name=role, task_index=index)
    if role == "ps":
        server.join()
    else:
        train(flags, cluster, role, index, server.target)


if __name__ == "__main__":
    main()
