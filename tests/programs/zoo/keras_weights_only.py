"""Keras 3: weights alone after each epoch, under one name that is overwritten; the epoch is in a file beside it."""

import os
import pathlib
import time

import keras
import numpy as np

OUT = pathlib.Path(os.environ["CHECKPOINT_DIR"])
WEIGHTS, EPOCH = OUT / "latest.weights.h5", OUT / "epoch.json"


class RememberEpoch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        EPOCH.write_text(f"{epoch + 1}\n")
        print(f"epoch {epoch + 1} saved, loss {logs['loss']:.5f}", flush=True)


def batches():
    while True:
        time.sleep(0.05)
        x = np.random.uniform(-1, 1, (32, 1))
        yield x, 3 * x + 2


def main():
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.2), "mse")
    first = 0
    if WEIGHTS.exists():
        model.load_weights(WEIGHTS)
        first = int(EPOCH.read_text()) if EPOCH.exists() else 0
    callbacks = [keras.callbacks.ModelCheckpoint(WEIGHTS, save_weights_only=True), RememberEpoch()]
    model.fit(batches(), steps_per_epoch=10, epochs=16, initial_epoch=first, callbacks=callbacks, verbose=0)
    weight, bias = model.get_weights()
    print(f"epoch 16 of 16: {weight[0][0]:.2f} x + {bias[0]:.2f}")


if __name__ == "__main__":
    main()
