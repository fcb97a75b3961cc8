"""Images that are made, of the size of MNIST's, and the model that two of the programs train."""

import numpy as np
import tensorflow as tf

CLASSES = 10


def load_data(count, seed):
    """Each class is an image of its own with noise over it."""
    classes = np.random.default_rng(0).random((CLASSES, 28, 28, 1), dtype=np.float32)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    images = classes[labels] + rng.normal(0, 0.3, (count, 28, 28, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(count)


def build_model(dropout, learning_rate):
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input(shape=(28, 28, 1)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dropout(1 - dropout),
            tf.keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.Adam(learning_rate=learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model
