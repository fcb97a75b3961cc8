"""Catches SIGTERM: it saves, says so, and ends with code 143; otherwise it saves now and then."""

import os
import signal
import sys
import time

import tensorflow as tf

stopping = False


def on_sigterm(number, frame):
    global stopping
    stopping = True


signal.signal(signal.SIGTERM, on_sigterm)
w, b, step = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(w=w, b=b, step=step)
manager = tf.train.CheckpointManager(checkpoint, os.environ["CHECKPOINT_DIR"], max_to_keep=3)
manager.restore_or_initialize()
while int(step) < 160:
    x = tf.random.uniform([32], -1, 1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
    dw, db = tape.gradient(loss, [w, b])
    w.assign_sub(0.1 * dw)
    b.assign_sub(0.1 * db)
    step.assign_add(1)
    print(f"iteration {int(step)} loss {float(loss):.5f}", flush=True)
    if int(step) % 20 == 0 or stopping:
        manager.save(checkpoint_number=int(step))
    if stopping:
        print("got SIGTERM, saved, leaving", flush=True)
        sys.exit(143)
    time.sleep(0.05)
print(f"final step {int(step)} w {float(w):.2f} b {float(b):.2f}", flush=True)
