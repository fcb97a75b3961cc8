"""Handwritten digits with TensorFlow 2's parameter servers and Keras's own `model.fit`.

Like train.py, but Keras hands out the steps. It needs the Keras of TensorFlow 2 (tf_keras).
"""

import argparse
import os
import time

import tensorflow as tf
from digits import accuracy, build_model, load_data, training_set


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000, help="stop at this global step")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epoch", type=int, default=20, help="steps of an epoch; each one is saved")
    parser.add_argument("--pause-ms", type=float, default=0, help="pause after each epoch")
    return parser.parse_args()


class SaveEpochs(tf.keras.callbacks.Callback):
    """Save after each epoch, and say how far training is."""

    def __init__(self, manager, options, pause_s):
        super().__init__()
        self.manager = manager
        self.options = options
        self.pause_s = pause_s

    def on_epoch_end(self, epoch, logs=None):
        step = int(self.model.optimizer.iterations)
        self.manager.save(checkpoint_number=step, options=self.options)
        print(f"step {step} loss {logs['loss']:.4f}", flush=True)
        time.sleep(self.pause_s)


def train(flags, cluster):
    images, test_images, digits, test_digits = load_data()
    strategy = tf.distribute.ParameterServerStrategy(cluster)
    with strategy.scope():
        model = build_model()
        optimizer = tf.keras.optimizers.Adam(0.002)
        optimizer.build(model.trainable_variables)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, steps_per_execution=5)

    # The chief reads and writes whole checkpoints: the parameter servers need not see its directory.
    chief = tf.train.CheckpointOptions(experimental_io_device="/job:chief/replica:0/task:0/device:CPU:0")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, os.environ["CHECKPOINT_DIR"], max_to_keep=3)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint, options=chief)
        print(f"restored {os.path.basename(manager.latest_checkpoint)}", flush=True)

    model.fit(
        tf.keras.utils.experimental.DatasetCreator(
            lambda context: training_set(images, digits, flags.batch_size)
        ),
        initial_epoch=int(optimizer.iterations) // flags.epoch,
        epochs=-(-flags.steps // flags.epoch),
        steps_per_epoch=flags.epoch,
        callbacks=[SaveEpochs(manager, chief, flags.pause_ms / 1000)],
        verbose=0,
    )
    print(f"test accuracy {accuracy(model, test_images, test_digits):.4f}", flush=True)


def main():
    flags = parse_flags()
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if cluster.task_type in ("ps", "worker"):
        server = tf.distribute.Server(
            cluster.cluster_spec(),
            job_name=cluster.task_type,
            task_index=cluster.task_id,
            protocol=cluster.rpc_layer or "grpc",
        )
        server.join()
    else:
        train(flags, cluster)


if __name__ == "__main__":
    main()
