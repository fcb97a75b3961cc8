"""Keras 3: ModelCheckpoint writes the whole model of each epoch; a restart loads the newest and counts on."""

import os
import pathlib
import re
import time

import keras
import numpy as np

MODELS = pathlib.Path(os.environ["CHECKPOINT_DIR"])
EPOCHS = 16


class SlowData(keras.utils.PyDataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        time.sleep(0.05)
        x = np.random.default_rng(index).uniform(-1, 1, (32, 1))
        return x, 3 * x + 2


def main():
    saved = sorted(MODELS.glob("model-*.keras"))
    if saved:
        model = keras.models.load_model(saved[-1])
        first = int(re.search(r"model-(\d+)", saved[-1].name)[1])
    else:
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        first = 0
    callbacks = [keras.callbacks.ModelCheckpoint(MODELS / "model-{epoch:03d}.keras")]
    model.fit(SlowData(), epochs=EPOCHS, initial_epoch=first, callbacks=callbacks, verbose=2)
    weight, bias = model.get_weights()
    print(f"after {int(model.optimizer.iterations)} batches: {weight[0][0]:.2f} x + {bias[0]:.2f}")


if __name__ == "__main__":
    main()
