"""As the example of the strategy API describes itself: fit() on MultiWorkerMirroredStrategy, a file for each epoch."""

import argparse
import json
import os

import tensorflow as tf
from mnist_like import load_data


def build_model():
    model = tf.keras.models.Sequential(
        [
            tf.keras.layers.Conv2D(8, (3, 3), activation="relu", input_shape=(28, 28, 1)),
            tf.keras.layers.MaxPooling2D((2, 2)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class Report(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(
            f"{epoch + 1} epochs, step size {self.model.optimizer.lr.numpy():g}, accuracy {logs['accuracy']:.4f}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--saved_model_dir", required=True)
    parser.add_argument("--checkpoint_dir", required=True)
    args = parser.parse_args()
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CollectiveCommunication.AUTO
        )
    )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    train = load_data(2000, seed=1).batch(64 * strategy.num_replicas_in_sync).repeat().with_options(options)
    with strategy.scope():
        model = build_model()
    callbacks = [
        tf.keras.callbacks.ModelCheckpoint(
            filepath=os.path.join(args.checkpoint_dir, "ckpt_{epoch}"), save_weights_only=True
        ),
        tf.keras.callbacks.LearningRateScheduler(lambda epoch: 1e-2 if epoch < 3 else 1e-3),
        Report(),
    ]
    model.fit(train, epochs=6, steps_per_epoch=12, callbacks=callbacks, verbose=0)
    own = args.saved_model_dir if index == 0 else f"{args.saved_model_dir}/worker_tmp_{index}"
    model.save(own)
    print(f"saved {own}", flush=True)


if __name__ == "__main__":
    main()
