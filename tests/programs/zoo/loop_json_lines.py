"""A custom loop that writes one JSON document a line, and its own checkpoints numbered by global step."""

import json
import os
import time

import tensorflow as tf

w, b = tf.Variable(0.0), tf.Variable(0.0)
global_step = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(w=w, b=b, global_step=global_step)
directory = os.environ["CHECKPOINT_DIR"]
newest = tf.train.latest_checkpoint(directory)
if newest:
    checkpoint.read(newest)
manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=4, checkpoint_name="state")

while int(global_step) < 160:
    x = tf.random.uniform([32], -1, 1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
    for variable, gradient in zip((w, b), tape.gradient(loss, (w, b)), strict=True):
        variable.assign_sub(0.1 * gradient)
    global_step.assign_add(1)
    line = {"time": time.time(), "event": "train", "global_step": int(global_step), "loss": float(loss)}
    print(json.dumps(line), flush=True)
    if int(global_step) % 15 == 0:
        manager.save(checkpoint_number=int(global_step))
    time.sleep(0.04)
print(json.dumps({"event": "end", "w": round(float(w), 2), "b": round(float(b), 2)}), flush=True)
