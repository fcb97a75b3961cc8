"""Keras 3: ModelCheckpoint keeps the best model, TensorBoard gets the curves, CSVLogger the numbers."""

import argparse
import os
import time

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--model_dir", required=True)
parser.add_argument("--log_dir", required=True)
args = parser.parse_args()


class Pace(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.04)


def main():
    best = os.path.join(args.model_dir, "best.keras")
    if os.path.exists(best):
        model = keras.models.load_model(best)
        print("going on from the best model so far")
    else:
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.linspace(-1, 1, 320).reshape(-1, 1)
    done = int(model.optimizer.iterations) // 10
    model.fit(
        x,
        3 * x + 2,
        epochs=18,
        initial_epoch=done,
        batch_size=32,
        validation_data=(x[::7], 3 * x[::7] + 2),
        callbacks=[
            Pace(),
            keras.callbacks.ModelCheckpoint(best, monitor="val_loss", save_best_only=True, verbose=1),
            keras.callbacks.TensorBoard(args.log_dir),
            keras.callbacks.CSVLogger(os.path.join(args.log_dir, "history.csv"), append=True),
        ],
        verbose=1,
    )
    weight, bias = model.get_weights()
    print(f"\nlearnt {weight[0][0]:.2f} x + {bias[0]:.2f}")


if __name__ == "__main__":
    main()
