"""As the tutorial "Parameter server training with ParameterServerStrategy" describes its custom loop.

Checkpoints are written by the coordinator as the guide of `Checkpoint` has it; a restart of the program
restores the newest.
"""

import os
import time

import tensorflow as tf

cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster_resolver.task_type in ("worker", "ps"):
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    server = tf.distribute.Server(
        cluster_resolver.cluster_spec(),
        job_name=cluster_resolver.task_type,
        task_index=cluster_resolver.task_id,
        protocol=cluster_resolver.rpc_layer or "grpc",
        start=True,
    )
    server.join()

strategy = tf.distribute.ParameterServerStrategy(cluster_resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1, activation="sigmoid")])
    optimizer = tf.keras.optimizers.Adam(learning_rate=0.05)
    optimizer.build(model.trainable_variables)
    accuracy = tf.keras.metrics.BinaryAccuracy()


@tf.function
def step_fn(iterator):
    def replica_fn(batch_data, labels):
        with tf.GradientTape() as tape:
            pred = model(batch_data, training=True)
            loss = tf.nn.compute_average_loss(tf.keras.losses.binary_crossentropy(labels, pred))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, pred)
        return loss

    batch_data, labels = next(iterator)
    losses = strategy.run(replica_fn, args=(batch_data, labels))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


def dataset_fn(context):
    def example(_):
        x = tf.random.normal([32, 3])
        return x, tf.cast(tf.reduce_sum(x, axis=1, keepdims=True) > 0, tf.float32)

    return tf.data.Dataset.range(10).repeat().map(example)


@tf.function
def per_worker_dataset_fn():
    return strategy.distribute_datasets_from_function(dataset_fn)


per_worker_iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))
io = tf.train.CheckpointOptions(experimental_io_device="/job:chief/replica:0/task:0/device:CPU:0")
epoch = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
manager = tf.train.CheckpointManager(checkpoint, os.environ["CHECKPOINT_DIR"], max_to_keep=3)
if manager.latest_checkpoint:
    checkpoint.restore(manager.latest_checkpoint, options=io)
num_epochs, steps_per_epoch = 16, 10
while int(epoch) < num_epochs:
    accuracy.reset_state()
    for _ in range(steps_per_epoch):
        coordinator.schedule(step_fn, args=(per_worker_iterator,))
    coordinator.join()
    epoch.assign_add(1)
    print(f"Finished epoch {int(epoch)}, accuracy is {accuracy.result().numpy():f}.")
    manager.save(options=io)
    time.sleep(0.5)
loss = coordinator.schedule(step_fn, args=(per_worker_iterator,))
print(f"Trained {int(epoch)} epochs, final loss is {'small' if loss.fetch() < 0.4 else loss.fetch()}")
