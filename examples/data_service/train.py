"""Handwritten digits, learnt from data that other processes read, shuffle and cut into batches.

Each epoch is one job of tf.data's service: its workers share the images among them. An image that is lost on
its way, because a data worker was killed, is left out of that epoch and comes in the next; which images have
been seen at all is part of the checkpoint.
"""

import argparse
import os
import time

import tensorflow as tf
from sklearn.datasets import load_digits

service = tf.data.experimental.service


def read_epoch(dispatcher, name, images, digits):
    """Batches of (row, image, digit), made by the data workers and shared out among them."""
    rows = tf.range(len(digits), dtype=tf.int64)
    dataset = tf.data.Dataset.from_tensor_slices((rows, images, digits)).shuffle(len(digits)).batch(32)
    return dataset.apply(
        service.distribute(
            processing_mode=service.ShardingPolicy.DYNAMIC,
            service=f"grpc://{dispatcher}",
            job_name=name,
        )
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dispatcher", required=True, help="host:port of the dispatcher")
    parser.add_argument("--steps", type=int, default=500, help="stop at this step")
    parser.add_argument("--save-steps", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--pause-ms", type=float, default=0, help="pause after each step")
    flags = parser.parse_args()

    images, digits = load_digits(return_X_y=True)
    images = tf.constant(images / 16, tf.float32)
    kernel = tf.Variable(tf.zeros([64, 10]))
    bias = tf.Variable(tf.zeros([10]))
    step = tf.Variable(0, dtype=tf.int64)
    seen = tf.Variable(tf.zeros([len(digits)], tf.bool))
    checkpoint = tf.train.Checkpoint(kernel=kernel, bias=bias, step=step, seen=seen)
    manager = tf.train.CheckpointManager(checkpoint, os.environ["CHECKPOINT_DIR"], max_to_keep=3)
    if manager.restore_or_initialize():
        print(f"goes on from step {int(step)}", flush=True)

    @tf.function
    def learn(rows, batch, answers):
        with tf.GradientTape() as tape:
            logits = tf.matmul(batch, kernel) + bias
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(answers, logits))
        for variable, gradient in zip((kernel, bias), tape.gradient(loss, (kernel, bias)), strict=True):
            variable.assign_sub(0.5 * gradient)
        seen.scatter_update(tf.IndexedSlices(tf.ones_like(rows, tf.bool), rows))
        step.assign_add(1)
        return loss

    while int(step) < flags.steps:
        for rows, batch, answers in read_epoch(flags.dispatcher, f"from-{int(step)}", images, digits):
            loss = learn(rows, batch, answers)
            print(f"step {int(step)} loss {float(loss):.4f}", flush=True)
            if int(step) % flags.save_steps == 0:
                manager.save(checkpoint_number=int(step))
            if int(step) >= flags.steps:
                break
            time.sleep(flags.pause_ms / 1000)
    visited = int(tf.math.count_nonzero(seen))
    right = tf.equal(tf.argmax(tf.matmul(images, kernel) + bias, axis=1), digits)
    print(f"visited {visited} of {len(digits)} images")
    print(f"training accuracy {float(tf.reduce_mean(tf.cast(right, tf.float32))):.4f}", flush=True)


if __name__ == "__main__":
    main()
