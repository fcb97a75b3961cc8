"""tf.keras on MultiWorkerMirroredStrategy: ModelCheckpoint writes `ckpt_EPOCH` in TensorFlow's format."""

import json
import os
import re
import time

import numpy as np
import tensorflow as tf

DIRECTORY = os.environ["CHECKPOINT_DIR"]
STEPS_PER_EPOCH, EPOCHS = 10, 12


class PrintLR(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"\nLearning rate for epoch {epoch + 1} is {self.model.optimizer.lr.numpy():.3f}", flush=True)

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)


def dataset():
    x = np.random.default_rng(1).uniform(-1, 1, (640, 1)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, 3 * x + 2)).shuffle(640).repeat().batch(64)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.with_options(options)


def main():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
        model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
    first = 0
    latest = tf.train.latest_checkpoint(DIRECTORY)
    if latest:
        model.load_weights(latest)
        first = int(re.search(r"ckpt_(\d+)", latest)[1])
        print(f"loaded {latest}", flush=True)
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    target = DIRECTORY if index == 0 else f"/tmp/ckpt-of-worker-{index}"
    callbacks = [
        PrintLR(),
        tf.keras.callbacks.ModelCheckpoint(os.path.join(target, "ckpt_{epoch}"), save_weights_only=True),
    ]
    model.fit(
        dataset(),
        epochs=EPOCHS,
        initial_epoch=first,
        steps_per_epoch=STEPS_PER_EPOCH,
        callbacks=callbacks,
        verbose=2,
    )
    weight, bias = model.get_weights()
    print(f"Trained: {weight[0][0]:.2f} x + {bias[0]:.2f}", flush=True)


if __name__ == "__main__":
    main()
