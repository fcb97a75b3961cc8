"""Keras 3: fit() with BackupAndRestore every few batches and Keras's own progress bar."""

import os
import time

import keras
import numpy as np


class Data(keras.utils.PyDataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        time.sleep(0.05)
        x = np.random.uniform(-1, 1, (32, 1))
        return x, 3 * x + 2


def main():
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    backup = keras.callbacks.BackupAndRestore(
        os.path.join(os.environ["CHECKPOINT_DIR"], "backup"), delete_checkpoint=False
    )
    model.fit(Data(), epochs=8, callbacks=[backup], verbose=1)
    weight, bias = model.get_weights()
    print(f"\nlearnt {weight[0][0]:.2f} x + {bias[0]:.2f}")


if __name__ == "__main__":
    main()
