"""Handwritten digits with MultiWorkerMirroredStrategy in a custom loop, the same to the last bit every time.

What a step computes depends on its number and on the checkpoint alone: the batch is drawn by the step's
number, and the momentum is saved with the weights. However often training is killed and started again, it
ends with the weights of an undisturbed run; their sha256 is printed.
"""

import argparse
import hashlib
import os
import time

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400, help="stop after this step")
    parser.add_argument("--batch-size", type=int, default=64, help="examples of a step, all workers together")
    parser.add_argument("--save-steps", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--pause-ms", type=float, default=0, help="pause after each step")
    return parser.parse_args()


def load_data():
    """Images as rows of 64 floats in 0..1, and their digits; a fifth is held out."""
    images, digits = load_digits(return_X_y=True)
    return train_test_split(
        (images / 16).astype(np.float32), digits.astype(np.int64), test_size=0.2, random_state=0
    )


def share(step, flags, context):
    """The examples of `step` that this worker trains with."""
    images, _, digits, _ = DATA
    chosen = np.random.default_rng(step).integers(len(images), size=flags.batch_size)
    mine = chosen[context.replica_id_in_sync_group :: context.num_replicas_in_sync]
    return tf.constant(images[mine]), tf.constant(digits[mine])


def train(flags):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index = strategy.cluster_resolver.task_id
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((64,)),
                tf.keras.layers.Dense(128, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)

    # All workers save at the same time, and only the first one's files count.
    directory = os.environ["CHECKPOINT_DIR"]
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    own = directory if index == 0 else os.path.join(directory, f"unused-{index}")
    manager = tf.train.CheckpointManager(checkpoint, own, max_to_keep=3)
    newest = tf.train.latest_checkpoint(directory)
    if newest:
        checkpoint.restore(newest)
        print(f"restored {os.path.basename(newest)}", flush=True)

    @tf.function
    def train_step(images, digits):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(digits, model(images, training=True))
            loss = tf.reduce_sum(losses) / flags.batch_size
        gradients = tape.gradient(loss, model.trainable_variables)
        # The optimizer adds up the gradients of all workers.
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for step in range(int(optimizer.iterations.numpy()), flags.steps):
        batch = strategy.experimental_distribute_values_from_function(
            lambda context, step=step: share(step, flags, context)
        )
        loss = strategy.reduce("SUM", strategy.run(train_step, args=batch), axis=None)
        print(f"step {step + 1} loss {float(loss):.4f}", flush=True)
        if (step + 1) % flags.save_steps == 0 or step + 1 == flags.steps:
            manager.save(checkpoint_number=step + 1)
        time.sleep(flags.pause_ms / 1000)

    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights()))
    print(f"weights sha256 {digest.hexdigest()}", flush=True)
    _, images, _, digits = DATA
    print(f"test accuracy {np.mean(np.argmax(model(images), axis=1) == digits):.4f}", flush=True)


DATA = load_data()

if __name__ == "__main__":
    train(parse_flags())
