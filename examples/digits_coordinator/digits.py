"""The handwritten digits that ship with scikit-learn, and the model that learns them."""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def load_data():
    """Images as rows of 64 floats in 0..1, and their digits; a fifth is held out."""
    images, digits = load_digits(return_X_y=True)
    return train_test_split(
        (images / 16).astype(np.float32), digits.astype(np.int64), test_size=0.2, random_state=0
    )


def training_set(images, digits, batch_size):
    """Batches in a random order, for ever."""
    examples = tf.data.Dataset.from_tensor_slices((images, digits))
    return examples.shuffle(len(images)).repeat().batch(batch_size).prefetch(2)


def build_model():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((64,)),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def accuracy(model, images, digits):
    """The share of `digits` that `model` reads right."""
    return float(np.mean(np.argmax(model(images), axis=1) == digits))
