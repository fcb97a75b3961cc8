"""Handwritten digits with Keras 3 in one process, as its documentation has it.

`BackupAndRestore` overwrites its file in place: killed while it writes, the program finds half a file and
cannot go on. Here it finds the last one that was whole.
"""

import argparse
import os
import time

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=460, help="stop after this step; 23 are an epoch")
    parser.add_argument("--units", type=int, default=128, help="width of the hidden layer")
    parser.add_argument("--pause-ms", type=float, default=0, help="pause after each step")
    parser.add_argument("--output", help="write summaries and the exported model below this directory")
    return parser.parse_args()


class ShowSteps(keras.callbacks.Callback):
    """Print each step, and take a little time."""

    def __init__(self, pause_s):
        super().__init__()
        self.pause_s = pause_s

    def on_train_batch_end(self, batch, logs=None):
        print(f"step {int(self.model.optimizer.iterations)} loss {logs['loss']:.4f}", flush=True)
        time.sleep(self.pause_s)


def main():
    flags = parse_flags()
    images, digits = load_digits(return_X_y=True)
    images, test_images, digits, test_digits = train_test_split(
        (images / 16).astype(np.float32), digits, test_size=0.2, random_state=0
    )
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(flags.units, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    backup = keras.callbacks.BackupAndRestore(
        os.path.join(os.environ["CHECKPOINT_DIR"], "backup"), delete_checkpoint=False
    )
    callbacks = [backup, ShowSteps(flags.pause_ms / 1000)]
    if flags.output:
        callbacks.append(keras.callbacks.TensorBoard(os.path.join(flags.output, "summaries")))
    model.fit(
        images,
        digits,
        batch_size=64,
        epochs=-(-flags.steps // 23),
        callbacks=callbacks,
        verbose=0,
    )
    _, accuracy = model.evaluate(test_images, test_digits, verbose=0)
    print(f"test accuracy {accuracy:.4f}", flush=True)
    if flags.output:
        model.export(os.path.join(flags.output, "export"), verbose=False)


if __name__ == "__main__":
    main()
