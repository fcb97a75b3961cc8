"""Handwritten digits, each image once per epoch, also when training is killed and goes on.

The order of an epoch is drawn by the epoch's number, and TFSUP_BASE_STEP says after which step this process
goes on. So it knows which images that step has left over, before it has built a model or read a checkpoint.
"""

import argparse
import os
import pathlib
import time

import tensorflow as tf
from sklearn.datasets import load_digits

BATCH = 32


def batches_after(step, images, digits):
    """Endless batches (rows, images, digits), from the one that follows step number `step`."""
    rows = tf.range(len(digits), dtype=tf.int64)
    data = tf.data.Dataset.from_tensor_slices((rows, images, digits))
    per_epoch = -(-len(digits) // BATCH)
    epoch, used = divmod(step, per_epoch)
    while True:
        shuffled = data.shuffle(len(digits), seed=epoch + 1, reshuffle_each_iteration=False)
        yield from shuffled.batch(BATCH).skip(used)
        epoch, used = epoch + 1, 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="stop at this step; an epoch has 57")
    parser.add_argument("--save-steps", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--pause-ms", type=float, default=0, help="pause after each step")
    parser.add_argument("--rows-log", type=pathlib.Path, help="append `step row row ...` for each step")
    flags = parser.parse_args()

    # -1 where there is no checkpoint to go on from; absent without tf-supervisor.
    begin = max(0, int(os.environ.get("TFSUP_BASE_STEP", "-1")))
    images, digits = load_digits(return_X_y=True)
    images = tf.constant(images / 16, tf.float32)
    batches = batches_after(begin, images, digits)

    kernel, bias = tf.Variable(tf.zeros([64, 10])), tf.Variable(tf.zeros([10]))
    step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(kernel=kernel, bias=bias, step=step)
    manager = tf.train.CheckpointManager(checkpoint, os.environ["CHECKPOINT_DIR"], max_to_keep=3)
    manager.restore_or_initialize()
    assert int(step) == begin

    while int(step) < flags.steps:
        rows, batch, answers = next(batches)
        with tf.GradientTape() as tape:
            logits = tf.matmul(batch, kernel) + bias
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(answers, logits))
        for variable, gradient in zip((kernel, bias), tape.gradient(loss, (kernel, bias)), strict=True):
            variable.assign_sub(0.5 * gradient)
        step.assign_add(1)
        if flags.rows_log:
            with flags.rows_log.open("a") as log:
                print(int(step), *rows.numpy(), file=log)
        print(f"step {int(step)} loss {float(loss):.4f}", flush=True)
        if int(step) % flags.save_steps == 0:
            manager.save(checkpoint_number=int(step))
        time.sleep(flags.pause_ms / 1000)
    right = tf.equal(tf.argmax(tf.matmul(images, kernel) + bias, axis=1), digits)
    print(f"training accuracy {float(tf.reduce_mean(tf.cast(right, tf.float32))):.4f}", flush=True)


if __name__ == "__main__":
    main()
