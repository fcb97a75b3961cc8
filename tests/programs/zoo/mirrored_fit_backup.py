"""tf.keras fit() on MultiWorkerMirroredStrategy with BackupAndRestore; a chief is in TF_CONFIG."""

import os
import time

import numpy as np
import tensorflow as tf


class Slow(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
    model.compile(tf.keras.optimizers.SGD(0.1), "mse", steps_per_execution=1)
x = np.random.default_rng(3).uniform(-1, 1, (640, 1)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, 3 * x + 2)).repeat().batch(64)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
backup = tf.keras.callbacks.BackupAndRestore(
    os.path.join(os.environ["CHECKPOINT_DIR"], "backup"), save_freq=10, delete_checkpoint=False
)
model.fit(data.with_options(options), epochs=8, steps_per_epoch=20, callbacks=[backup, Slow()], verbose=2)
weight, bias = model.get_weights()
print(f"fit: {weight[0][0]:.2f} x + {bias[0]:.2f}", flush=True)
