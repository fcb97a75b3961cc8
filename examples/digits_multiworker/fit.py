"""Handwritten digits with MultiWorkerMirroredStrategy, Keras's `model.fit` and its `BackupAndRestore`.

It needs the Keras of TensorFlow 2 (tf_keras). BackupAndRestore keeps its files in a directory below the one
that it is given: `checkpoint.pattern` in fit.yaml says which they are.
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
    parser.add_argument("--epoch", type=int, default=20, help="steps of an epoch; each one is saved")
    parser.add_argument("--pause-ms", type=float, default=0, help="pause after each step")
    return parser.parse_args()


def load_data():
    """Images as rows of 64 floats in 0..1, and their digits; a fifth is held out."""
    images, digits = load_digits(return_X_y=True)
    return train_test_split(
        (images / 16).astype(np.float32), digits.astype(np.int64), test_size=0.2, random_state=0
    )


class ShowSteps(tf.keras.callbacks.Callback):
    """Print each step, and take a little time."""

    def __init__(self, pause_s):
        super().__init__()
        self.pause_s = pause_s

    def on_train_batch_end(self, batch, logs=None):
        print(f"step {self.model.optimizer.iterations.numpy()} loss {logs['loss']:.4f}", flush=True)
        time.sleep(self.pause_s)


def main():
    flags = parse_flags()
    images, test_images, digits, test_digits = load_data()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tf.keras.utils.set_random_seed(0)
    # An epoch begins at the first example, so that it does not matter whether the one before ran here.
    examples = tf.data.Dataset.from_tensor_slices((images, digits)).repeat().batch(flags.batch_size)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((64,)),
                tf.keras.layers.Dense(128, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.SGD(0.1, momentum=0.9), loss)

    backup = tf.keras.callbacks.BackupAndRestore(
        os.path.join(os.environ["CHECKPOINT_DIR"], "backup"), save_freq="epoch", delete_checkpoint=False
    )
    model.fit(
        examples.take(flags.epoch).with_options(options),
        epochs=flags.steps // flags.epoch,
        callbacks=[backup, ShowSteps(flags.pause_ms / 1000)],
        verbose=0,
    )

    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights()))
    print(f"weights sha256 {digest.hexdigest()}", flush=True)
    print(f"test accuracy {np.mean(np.argmax(model(test_images), axis=1) == test_digits):.4f}", flush=True)


if __name__ == "__main__":
    main()
