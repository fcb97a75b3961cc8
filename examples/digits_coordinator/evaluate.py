"""Judge each checkpoint of train.py, beside training, and print how many held-out digits it reads right.

It never ends by itself: it is stopped when training is over, after it could judge the last checkpoint.
"""

import argparse
import os
import time

import tensorflow as tf
from digits import accuracy, build_model, load_data


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--summaries", help="write the accuracy for TensorBoard below this directory")
    flags = parser.parse_args()
    _, images, _, digits = load_data()
    model = build_model()
    checkpoint = tf.train.Checkpoint(model=model)
    writer = tf.summary.create_file_writer(flags.summaries) if flags.summaries else None
    judged = None
    while True:
        newest = tf.train.latest_checkpoint(os.environ["CHECKPOINT_DIR"])
        if newest in (None, judged):
            time.sleep(0.2)
            continue
        try:
            checkpoint.restore(newest).expect_partial()
        except (tf.errors.NotFoundError, ValueError):
            continue  # training has deleted it meanwhile, for a newer one
        judged = newest
        step = int(newest.rpartition("-")[2])
        result = accuracy(model, images, digits)
        print(f"evaluated step {step}: test accuracy {result:.4f}", flush=True)
        if writer:
            with writer.as_default(step=step):
                tf.summary.scalar("accuracy", result)
            writer.flush()


if __name__ == "__main__":
    main()
