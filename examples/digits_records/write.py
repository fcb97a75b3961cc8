"""Write the handwritten digits as TFRecords: `python write.py DIRECTORY`."""

import pathlib
import sys

import tensorflow as tf
from sklearn.datasets import load_digits

FILES = 8


def example(image, digit):
    pixels = tf.train.Feature(float_list=tf.train.FloatList(value=image / 16))
    answer = tf.train.Feature(int64_list=tf.train.Int64List(value=[digit]))
    return tf.train.Example(features=tf.train.Features(feature={"image": pixels, "digit": answer}))


def main():
    directory = pathlib.Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    images, digits = load_digits(return_X_y=True)
    for part in range(FILES):
        with tf.io.TFRecordWriter(str(directory / f"part-{part:05d}.tfrecord")) as writer:
            for image, digit in zip(images[part::FILES], digits[part::FILES], strict=True):
                writer.write(example(image, digit).SerializeToString())


if __name__ == "__main__":
    main()
