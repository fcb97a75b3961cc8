"""Handwritten digits with TensorFlow 2's parameter servers: one coordinator hands steps to the workers.

The chief runs this program; parameter servers and workers only serve. A worker that dies and comes back gets
steps again. When a parameter server dies the program ends with an error, as its variables are gone: it is
started again with all servers, and goes on from the last checkpoint.
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
    parser.add_argument("--round", type=int, default=10, help="steps that are handed out at once")
    parser.add_argument("--save-steps", type=int, default=50, help="global steps between checkpoints")
    parser.add_argument("--pause-ms", type=float, default=0, help="pause after each round")
    parser.add_argument("--summaries", help="write the loss for TensorBoard below this directory")
    return parser.parse_args()


def train(flags, cluster):
    images, test_images, digits, test_digits = load_data()
    strategy = tf.distribute.ParameterServerStrategy(cluster)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = build_model()
        optimizer = tf.keras.optimizers.Adam(0.002)
        optimizer.build(model.trainable_variables)

    # The chief reads and writes whole checkpoints: the parameter servers need not see its directory.
    chief = tf.train.CheckpointOptions(experimental_io_device="/job:chief/replica:0/task:0/device:CPU:0")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, os.environ["CHECKPOINT_DIR"], max_to_keep=3)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint, options=chief)
        print(f"restored {os.path.basename(manager.latest_checkpoint)}", flush=True)

    @tf.function
    def step(iterator):
        def replica(batch_images, batch_digits):
            with tf.GradientTape() as tape:
                logits = model(batch_images, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch_digits, logits)
                loss = tf.reduce_mean(losses)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.run(replica, args=next(iterator))

    dataset = coordinator.create_per_worker_dataset(lambda: training_set(images, digits, flags.batch_size))
    batches = iter(dataset)
    writer = tf.summary.create_file_writer(flags.summaries) if flags.summaries else None
    saved = now_at = int(optimizer.iterations)
    while now_at < flags.steps:
        losses = [coordinator.schedule(step, args=(batches,)) for _ in range(flags.round)]
        coordinator.join()
        now_at = int(optimizer.iterations)
        loss = sum(float(each.fetch()) for each in losses) / len(losses)
        print(f"step {now_at} loss {loss:.4f}", flush=True)
        if writer:
            with writer.as_default(step=now_at):
                tf.summary.scalar("loss", loss)
            writer.flush()
        if now_at - saved >= flags.save_steps or now_at >= flags.steps:
            manager.save(checkpoint_number=now_at, options=chief)
            saved = now_at
        time.sleep(flags.pause_ms / 1000)
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
