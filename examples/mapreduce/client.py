"""The mean brightness of handwritten digits, by map and reduce.

A batch is fed into a placeholder and split over the mappers, each of which computes the mean of its part; the
client reduces the partial means to one. It keeps no checkpoint: when it is restarted, it begins again.
"""

import argparse
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits


def map_means(batch, mappers):
    """For each mapper the mean of every `mappers`-th row, and how many rows these are."""
    partial = []
    for index in range(mappers):
        with tf.device(f"/job:mapper/task:{index}"):
            part = batch[index::mappers]
            partial.append((tf.reduce_mean(part), tf.shape(part)[0]))
    return partial


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mappers", required=True, help="comma-separated host:port of the mappers")
    parser.add_argument("--steps", type=int, default=20, help="batches that the images are cut into")
    parser.add_argument("--pause-ms", type=float, default=0, help="pause after each batch")
    flags = parser.parse_args()
    tf.disable_eager_execution()

    images = load_digits().data
    mappers = flags.mappers.split(",")
    batch = tf.placeholder(tf.float64, [None, images.shape[1]])
    partial = map_means(batch, len(mappers))

    protocol = os.environ.get("TFSUP_PROTOCOL", "grpc")
    # TF_CONFIG names the client too, which runs no server: the session is to wait for the mappers alone.
    config = tf.ConfigProto(device_filters=["/job:mapper"])
    means, rows = [], []
    with tf.Session(f"{protocol}://{mappers[0]}", config=config) as session:
        for step, part in enumerate(np.array_split(images, flags.steps), start=1):
            for mean, count in session.run(partial, {batch: part}):
                means.append(mean)
                rows.append(count)
            print(f"step {step} of {flags.steps}", flush=True)
            time.sleep(flags.pause_ms / 1000)
    print(f"mean {np.average(means, weights=rows):.6f} of {sum(rows)} images", flush=True)


if __name__ == "__main__":
    main()
