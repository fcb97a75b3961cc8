"""Handwritten digits with TensorFlow 2's parameter servers, each of which saves a part of its own.

This is what TensorFlow does when it is not told otherwise: no variable passes through the chief at a save.
All tasks must see one directory for it, which `checkpoint.mode: mounted` gives them.
"""

import argparse
import os
import time

import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000, help="stop at this global step")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--round", type=int, default=10, help="steps that are handed out at once")
    parser.add_argument("--save-steps", type=int, default=50, help="global steps between checkpoints")
    parser.add_argument("--pause-ms", type=float, default=0, help="pause after each round")
    return parser.parse_args()


def load_data():
    images, digits = load_digits(return_X_y=True)
    return train_test_split(
        (images / 16).astype("float32"), digits.astype("int64"), test_size=0.2, random_state=0
    )


def training_set(images, digits, batch_size):
    """Batches in a random order, for ever."""
    examples = tf.data.Dataset.from_tensor_slices((images, digits))
    return examples.shuffle(len(images)).repeat().batch(batch_size).prefetch(2)


class Model(tf.Module):
    """Two layers, whose variables are dealt out to the parameter servers."""

    def __init__(self):
        super().__init__()
        self.hidden = tf.Variable(tf.random.normal((64, 128), stddev=0.1, seed=1), name="hidden")
        self.hidden_bias = tf.Variable(tf.zeros(128), name="hidden_bias")
        self.out = tf.Variable(tf.random.normal((128, 10), stddev=0.1, seed=2), name="out")
        self.out_bias = tf.Variable(tf.zeros(10), name="out_bias")
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")

    def __call__(self, images):
        inner = tf.nn.relu(tf.matmul(images, self.hidden) + self.hidden_bias)
        return tf.matmul(inner, self.out) + self.out_bias


def train(flags, cluster):
    images, test_images, digits, test_digits = load_data()
    strategy = tf.distribute.ParameterServerStrategy(cluster)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = Model()

    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model), os.environ["CHECKPOINT_DIR"], max_to_keep=3
    )
    if manager.latest_checkpoint:
        manager.checkpoint.restore(manager.latest_checkpoint).assert_existing_objects_matched()
        print(f"restored {os.path.basename(manager.latest_checkpoint)}", flush=True)

    @tf.function
    def step(iterator):
        def replica(batch_images, batch_digits):
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch_digits, model(batch_images))
                loss = tf.reduce_mean(losses)
            variables = model.trainable_variables
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(0.1 * gradient)
            model.step.assign_add(1)
            return loss

        return strategy.run(replica, args=next(iterator))

    dataset = coordinator.create_per_worker_dataset(lambda: training_set(images, digits, flags.batch_size))
    batches = iter(dataset)
    saved = now_at = int(model.step)
    while now_at < flags.steps:
        losses = [coordinator.schedule(step, args=(batches,)) for _ in range(flags.round)]
        coordinator.join()
        now_at = int(model.step)
        print(
            f"step {now_at} loss {sum(float(each.fetch()) for each in losses) / len(losses):.4f}", flush=True
        )
        if now_at - saved >= flags.save_steps or now_at >= flags.steps:
            manager.save(checkpoint_number=now_at)
            saved = now_at
        time.sleep(flags.pause_ms / 1000)
    right = tf.equal(tf.argmax(model(test_images), axis=1), test_digits)
    print(f"test accuracy {float(tf.reduce_mean(tf.cast(right, tf.float32))):.4f}", flush=True)


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
