"""Saves asynchronously (CheckpointOptions), below a name without a directory of its own, by `save`'s counter."""

import os
import time

import tensorflow as tf

PREFIX = os.path.join(os.environ["CHECKPOINT_DIR"], "weights")
w, b, step = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(w=w, b=b, step=step)
options = tf.train.CheckpointOptions(enable_async=True)
latest = tf.train.latest_checkpoint(os.path.dirname(PREFIX))
if latest:
    checkpoint.restore(latest)
    print(f"restored {latest} at {int(step)}", flush=True)
while int(step) < 160:
    x = tf.random.uniform([32], -1, 1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
    dw, db = tape.gradient(loss, [w, b])
    w.assign_sub(0.1 * dw)
    b.assign_sub(0.1 * db)
    step.assign_add(1)
    if int(step) % 5 == 0:
        print(f"{int(step):5d} {float(loss):.6f}", flush=True)
    if int(step) % 20 == 0:
        checkpoint.save(PREFIX, options)
    time.sleep(0.05)
checkpoint.sync()
print(f"final {int(step)} {float(w):.2f} {float(b):.2f}", flush=True)
