"""A custom loop that prints epoch and step of the epoch, so that its numbers fall at each new epoch."""

import os
import time

import tensorflow as tf

EPOCHS, STEPS = 4, 40
w, b = tf.Variable(0.0), tf.Variable(0.0)
epoch_var, step_var = tf.Variable(0), tf.Variable(0)
checkpoint = tf.train.Checkpoint(w=w, b=b, epoch=epoch_var, step=step_var)
manager = tf.train.CheckpointManager(checkpoint, os.environ["CHECKPOINT_DIR"], max_to_keep=3)


@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
    dw, db = tape.gradient(loss, [w, b])
    w.assign_sub(0.1 * dw)
    b.assign_sub(0.1 * db)
    return loss


checkpoint.restore(manager.latest_checkpoint)
for epoch in range(int(epoch_var), EPOCHS):
    for step in range(int(step_var), STEPS):
        loss = train_step(tf.random.uniform([32], -1, 1))
        step_var.assign(step + 1)
        if (step + 1) % 2 == 0:
            print(f"Epoch {epoch + 1}, Step {step + 1}, Loss: {loss:.5f}", flush=True)
        if (step + 1) % 10 == 0:
            manager.save()
        time.sleep(0.05)
    step_var.assign(0)
    epoch_var.assign(epoch + 1)
print(f"Finished {int(epoch_var)} epochs: w={float(w):.2f} b={float(b):.2f}", flush=True)
