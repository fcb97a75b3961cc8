"""As the example mnist_with_summaries describes itself: one process, fit(), summaries for TensorBoard."""

import argparse
import os

import tensorflow as tf
from mnist_like import build_model, load_data


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--learning_rate", type=float, default=0.001)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.9)
    parser.add_argument(
        "--log_dir", default=os.path.join(os.getenv("TEST_TMPDIR", "/tmp"), "tensorflow/mnist/logs")
    )
    args = parser.parse_args()
    model = build_model(args.dropout, args.learning_rate)
    history = model.fit(
        load_data(2000, seed=1).batch(args.batch_size),
        epochs=args.epochs,
        validation_data=load_data(500, seed=2).batch(args.batch_size),
        callbacks=[tf.keras.callbacks.TensorBoard(log_dir=args.log_dir, histogram_freq=1)],
        verbose=2,
    )
    print(f"Validation accuracy: {history.history['val_accuracy'][-1]:.4f}", flush=True)


if __name__ == "__main__":
    main()
