"""Handwritten digits from TFRecords in a directory that the job's `data` names."""

import argparse
import os
import time

import tensorflow as tf

SHAPE = {"image": tf.io.FixedLenFeature([64], tf.float32), "digit": tf.io.FixedLenFeature([], tf.int64)}


def parsed(record):
    found = tf.io.parse_single_example(record, SHAPE)
    return found["image"], found["digit"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", required=True, help="a pattern of files")
    parser.add_argument("--steps", type=int, default=300, help="stop at this step; an epoch has 57")
    parser.add_argument("--save-steps", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--pause-ms", type=float, default=0, help="pause after each step")
    flags = parser.parse_args()

    files = tf.data.Dataset.list_files(flags.records, seed=1)
    records = tf.data.TFRecordDataset(files, num_parallel_reads=4)
    batches = iter(records.map(parsed).shuffle(2000).batch(32).repeat().prefetch(2))

    kernel, bias = tf.Variable(tf.zeros([64, 10])), tf.Variable(tf.zeros([10]))
    step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(kernel=kernel, bias=bias, step=step)
    manager = tf.train.CheckpointManager(checkpoint, os.environ["CHECKPOINT_DIR"], max_to_keep=3)
    manager.restore_or_initialize()
    while int(step) < flags.steps:
        images, digits = next(batches)
        with tf.GradientTape() as tape:
            logits = tf.matmul(images, kernel) + bias
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(digits, logits))
        for variable, gradient in zip((kernel, bias), tape.gradient(loss, (kernel, bias)), strict=True):
            variable.assign_sub(0.5 * gradient)
        step.assign_add(1)
        print(f"step {int(step)} loss {float(loss):.4f}", flush=True)
        if int(step) % flags.save_steps == 0:
            manager.save(checkpoint_number=int(step))
        time.sleep(flags.pause_ms / 1000)


if __name__ == "__main__":
    main()
