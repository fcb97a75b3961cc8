"""Starts a child that makes the data, as a pipe, and another that writes a log of its own."""

import os
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf

PRODUCER = """
import random, sys, time
while True:
    print(*(f"{random.uniform(-1, 1):.4f}" for _ in range(32)), flush=True)
    time.sleep(0.04)
"""


def main():
    producer = subprocess.Popen([sys.executable, "-c", PRODUCER], stdout=subprocess.PIPE, text=True)
    monitor = subprocess.Popen(["sh", "-c", "while sleep 1; do date >/dev/null; done"])
    w, b, step = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(w=w, b=b, step=step)
    manager = tf.train.CheckpointManager(checkpoint, os.environ["CHECKPOINT_DIR"], max_to_keep=3)
    manager.restore_or_initialize()
    while int(step) < 180:
        x = np.array(producer.stdout.readline().split(), "float32")
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
        dw, db = tape.gradient(loss, [w, b])
        w.assign_sub(0.1 * dw)
        b.assign_sub(0.1 * db)
        step.assign_add(1)
        if int(step) % 10 == 0:
            print(f"processed {int(step)} batches, loss={float(loss):.5f}", flush=True)
        if int(step) % 20 == 0:
            manager.save()
        time.sleep(0.01)
    monitor.terminate()
    producer.kill()
    print(f"RESULT steps={int(step)} w={float(w):.2f} b={float(b):.2f}", flush=True)


if __name__ == "__main__":
    main()
