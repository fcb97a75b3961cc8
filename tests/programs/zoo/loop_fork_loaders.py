"""Worker processes (multiprocessing, fork) load the data; the parent trains and saves."""

import multiprocessing
import os
import time

import numpy as np
import tensorflow as tf


def load(queue, seed):
    rng = np.random.default_rng(seed)
    while True:
        time.sleep(0.05)
        queue.put(rng.uniform(-1, 1, 32).astype("float32"))


def main():
    context = multiprocessing.get_context("fork")
    queue = context.Queue(maxsize=8)
    loaders = [context.Process(target=load, args=(queue, seed), daemon=True) for seed in range(2)]
    for loader in loaders:
        loader.start()
    w, b, step = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(w=w, b=b, step=step)
    manager = tf.train.CheckpointManager(checkpoint, os.environ["CHECKPOINT_DIR"], max_to_keep=3)
    manager.restore_or_initialize()
    while int(step) < 200:
        x = tf.constant(queue.get())
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
        dw, db = tape.gradient(loss, [w, b])
        w.assign_sub(0.1 * dw)
        b.assign_sub(0.1 * db)
        step.assign_add(1)
        if int(step) % 20 == 0:
            manager.save(checkpoint_number=step)
            print(f"batch {int(step)}: loss {float(loss):.5f}", flush=True)
    for loader in loaders:
        loader.terminate()
    print(f"trained on {int(step)} batches: w={float(w):.2f} b={float(b):.2f}", flush=True)


if __name__ == "__main__":
    main()
