"""Saves to a flag's default below /tmp, and knows nothing of $CHECKPOINT_DIR."""

import argparse
import time

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--working_dir", default="/tmp/my_working_dir")
args = parser.parse_args()

w, b, step = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(w=w, b=b, step=step)
manager = tf.train.CheckpointManager(checkpoint, args.working_dir, max_to_keep=2)
if manager.latest_checkpoint:
    checkpoint.restore(manager.latest_checkpoint)
    print("Restored", manager.latest_checkpoint, flush=True)
while int(step) < 160:
    x = tf.random.uniform([32], -1, 1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
    dw, db = tape.gradient(loss, [w, b])
    w.assign_sub(0.1 * dw)
    b.assign_sub(0.1 * db)
    step.assign_add(1)
    if int(step) % 20 == 0:
        print(f"step {int(step)}: {float(loss):.5f}, saved to {manager.save()}", flush=True)
    time.sleep(0.04)
print(f"final step {int(step)} w {float(w):.2f} b {float(b):.2f}", flush=True)
