"""Logs with Python's logging to standard error; a shell script starts it and adds its flags."""

import argparse
import logging
import time

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--output-dir", required=True)
parser.add_argument("--max-steps", type=int, required=True)
args = parser.parse_args()
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s: %(message)s")
log = logging.getLogger("trainer")

w, b, step = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(w=w, b=b, step=step)
manager = tf.train.CheckpointManager(checkpoint, args.output_dir, max_to_keep=3)
if manager.restore_or_initialize():
    log.info("Resuming at step %d", int(step))
while int(step) < args.max_steps:
    x = tf.random.uniform([32], -1, 1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
    dw, db = tape.gradient(loss, [w, b])
    w.assign_sub(0.1 * dw)
    b.assign_sub(0.1 * db)
    step.assign_add(1)
    log.info("step %d/%d loss %.5f lr 1.00e-01", int(step), args.max_steps, float(loss))
    if int(step) % 20 == 0:
        log.info("checkpoint: %s", manager.save(checkpoint_number=step))
    time.sleep(0.05)
log.info("training finished, w=%.2f b=%.2f", float(w), float(b))
