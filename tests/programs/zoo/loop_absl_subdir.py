"""absl's flags and logging, thousands separators, and checkpoints in a subdirectory named after the run."""

import os
import time

import tensorflow as tf
from absl import app, flags, logging

flags.DEFINE_string("model_dir", None, "where everything goes", required=True)
flags.DEFINE_string("run_name", "baseline", "subdirectory of this run")
flags.DEFINE_integer("train_steps", 1600, "steps, counted in tens")
FLAGS = flags.FLAGS


def main(_):
    logging.set_verbosity(logging.INFO)
    w, b = tf.Variable(0.0), tf.Variable(0.0)
    optimizer = tf.keras.optimizers.SGD(0.1)
    step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(w=w, b=b, optimizer=optimizer, step=step)
    directory = os.path.join(FLAGS.model_dir, FLAGS.run_name, "checkpoints")
    manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=3, step_counter=step)
    if manager.restore_or_initialize():
        logging.info("Restored from %s", manager.latest_checkpoint)
    while int(step) < FLAGS.train_steps:
        x = tf.random.uniform([32], -1, 1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b], strict=True))
        step.assign_add(10)
        logging.info("step = %s, loss = %.5f (%.1f examples/sec)", f"{int(step):,}", float(loss), 640.0)
        if int(step) % 200 == 0:
            manager.save(checkpoint_number=step)
        time.sleep(0.05)
    logging.info("finished: w=%.2f b=%.2f", float(w), float(b))


if __name__ == "__main__":
    app.run(main)
