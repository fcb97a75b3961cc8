"""A custom loop with a progress bar that rewrites one line with carriage returns, as tqdm does."""

import os
import sys
import time

import tensorflow as tf

TOTAL = 160
w, b, step = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)
manager = tf.train.CheckpointManager(
    tf.train.Checkpoint(w=w, b=b, step=step), os.environ["CHECKPOINT_DIR"], max_to_keep=2, step_counter=step
)
manager.restore_or_initialize()


def bar(done, total, started, first):
    rate = (done - first) / max(time.time() - started, 1e-6)
    left = (total - done) / max(rate, 1e-6)
    filled = "#" * (20 * done // total)
    text = f"\r{100 * done // total:3d}%|{filled:<20}| {done}/{total} [00:{time.time() - started:02.0f}<00:{left:02.0f}, {rate:.2f}it/s]"
    sys.stderr.write(text)
    sys.stderr.flush()


started, first = time.time(), int(step)
while int(step) < TOTAL:
    x = tf.random.uniform([32], -1, 1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
    dw, db = tape.gradient(loss, [w, b])
    w.assign_sub(0.1 * dw)
    b.assign_sub(0.1 * db)
    step.assign_add(1)
    bar(int(step), TOTAL, started, first)
    if int(step) % 20 == 0:
        manager.save()
    time.sleep(0.04)
sys.stderr.write("\n")
print(f"Done, w={float(w):.2f}, b={float(b):.2f}")
