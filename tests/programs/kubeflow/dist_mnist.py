"""As the example dist-mnist describes itself: a chief coordinates workers by ParameterServerStrategy and fit()."""

import argparse
import os

import tensorflow as tf
from mnist_like import build_model, load_data


def serve(resolver):
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        start=True,
    )
    server.join()


def coordinate(resolver, args):
    shards = resolver.cluster_spec().num_tasks("ps")
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=256 << 10, max_shards=shards
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    train = load_data(2000, seed=1).repeat().batch(args.batch_size)
    test = load_data(500, seed=2).repeat().batch(args.batch_size)
    with strategy.scope():
        model = build_model(args.dropout, args.learning_rate)
    model.fit(train, epochs=args.epochs, steps_per_epoch=20, verbose=2)

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        accuracy = tf.keras.metrics.Accuracy()

    @tf.function
    def evaluate(iterator):
        def replica(images, labels):
            found = tf.argmax(model(images, training=False), axis=1, output_type=tf.int64)
            accuracy.update_state(labels, found)

        strategy.run(replica, args=next(iterator))

    batches = iter(coordinator.create_per_worker_dataset(test))
    for _ in range(10):
        coordinator.schedule(evaluate, args=(batches,))
    coordinator.join()
    print(f"Evaluation accuracy: {accuracy.result():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dropout", type=float, default=0.9)
    parser.add_argument("--batch_size", type=int, default=100)
    parser.add_argument("--learning_rate", type=float, default=0.001)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
    else:
        coordinate(resolver, args)


if __name__ == "__main__":
    main()
