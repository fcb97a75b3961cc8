"""As the tutorial "Save and load models" describes it: `training_2/cp-EPOCH.weights.h5` every few epochs.

What it says about the newest file in the directory is used at the start, so that training can go on.
"""

import os
import re
import time

import numpy as np
import tensorflow as tf


def create_model():
    model = tf.keras.Sequential(
        [tf.keras.layers.Input((8,)), tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(2)]
    )
    model.compile(
        optimizer="adam",
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


checkpoint_path = "training_2/cp-{epoch:04d}.weights.h5"
checkpoint_dir = os.path.dirname(checkpoint_path)
os.makedirs(checkpoint_dir, exist_ok=True)
rng = np.random.default_rng(0)
train_images = rng.normal(size=(1000, 8)).astype("float32")
train_labels = (train_images.sum(axis=1) > 0).astype("int64")

model = create_model()
first = 0
saved = sorted(name for name in os.listdir(checkpoint_dir) if name.endswith(".weights.h5"))
if saved:
    model.load_weights(os.path.join(checkpoint_dir, saved[-1]))
    first = int(re.search(r"cp-(\d+)", saved[-1])[1])
batch_size = 32
n_batches = -(-len(train_images) // batch_size)
cp_callback = tf.keras.callbacks.ModelCheckpoint(
    filepath=checkpoint_path, verbose=1, save_weights_only=True, save_freq=5 * n_batches
)
pause = tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(0.2))
model.fit(
    train_images,
    train_labels,
    epochs=50,
    initial_epoch=first,
    batch_size=batch_size,
    callbacks=[cp_callback, pause],
    validation_data=(train_images[:100], train_labels[:100]),
    verbose=0,
)
loss, acc = model.evaluate(train_images, train_labels, verbose=0)
print(f"Restored model, accuracy: {'above 90%' if acc > 0.9 else acc}")
