"""Writes to one name again and again (`Checkpoint.write`), and reads it back if it is there."""

import os
import time

import tensorflow as tf

PATH = os.path.join(os.environ["CHECKPOINT_DIR"], "last")
w, b, iterations = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(w=w, b=b, iterations=iterations)
if os.path.exists(PATH + ".index"):
    checkpoint.read(PATH).assert_consumed()
    print(f"read {PATH}: {int(iterations)} iterations done", flush=True)
while int(iterations) < 160:
    x = tf.random.uniform([32], -1, 1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
    dw, db = tape.gradient(loss, [w, b])
    w.assign_sub(0.1 * dw)
    b.assign_sub(0.1 * db)
    iterations.assign_add(1)
    if int(iterations) % 20 == 0:
        checkpoint.write(PATH)
        print(f"[{int(iterations)}/160] loss: {float(loss):.5f}", flush=True)
    time.sleep(0.05)
print(f"final step {int(iterations)} w {float(w):.2f} b {float(b):.2f}", flush=True)
