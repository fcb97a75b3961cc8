"""As the tutorial "Multi-worker training with Keras" describes it: fit(), and BackupAndRestore to /tmp/backup."""

import json
import os
import time

import numpy as np
import tensorflow as tf

per_worker_batch_size = 32
num_workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])


def mnist_like_dataset(batch_size):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1024, 8)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("int64")
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1024).repeat().batch(batch_size)


def build_and_compile_model():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(input_shape=(8,)),
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.Dense(2),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.1),
        metrics=["accuracy"],
    )
    return model


class SlowBatches(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
multi_worker_dataset = mnist_like_dataset(per_worker_batch_size * num_workers)
with strategy.scope():
    multi_worker_model = build_and_compile_model()
callbacks = [tf.keras.callbacks.BackupAndRestore(backup_dir="/tmp/backup"), SlowBatches()]
history = multi_worker_model.fit(
    multi_worker_dataset, epochs=10, steps_per_epoch=15, callbacks=callbacks, verbose=2
)
loss, accuracy = multi_worker_model.evaluate(mnist_like_dataset(64), steps=8, verbose=0)
print(f"evaluated: accuracy {'good' if accuracy > 0.9 else accuracy}")
