"""Trains, and exports a SavedModel and a table of predictions at the end."""

import argparse
import os
import pathlib
import time

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--export_dir", required=True)
args = parser.parse_args()


class Line(tf.Module):
    def __init__(self):
        self.w, self.b = tf.Variable(0.0), tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def predict(self, x):
        return self.w * x + self.b


line, step = Line(), tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(line=line, step=step)
manager = tf.train.CheckpointManager(checkpoint, os.environ["CHECKPOINT_DIR"], max_to_keep=3)
manager.restore_or_initialize()
while int(step) < 160:
    x = tf.random.uniform([32], -1, 1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(line.predict(x) - (3 * x + 2)))
    for variable, gradient in zip((line.w, line.b), tape.gradient(loss, (line.w, line.b)), strict=True):
        variable.assign_sub(0.1 * gradient)
    step.assign_add(1)
    if int(step) % 10 == 0:
        print(f"step {int(step)}/160 - loss {float(loss):.5f}", flush=True)
        manager.save(checkpoint_number=step)
    time.sleep(0.05)
tf.saved_model.save(line, os.path.join(args.export_dir, "1"))
predictions = line.predict(tf.constant([0.0, 1.0, 2.0])).numpy()
pathlib.Path(args.export_dir, "predictions.csv").write_text("".join(f"{p:.1f}\n" for p in predictions))
print("exported; f(0), f(1), f(2) =", " ".join(f"{p:.1f}" for p in predictions), flush=True)
