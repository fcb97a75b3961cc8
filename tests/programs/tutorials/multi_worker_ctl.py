"""As the tutorial "Custom training loop with Keras and MultiWorkerMirroredStrategy" describes it.

Its checkpoint holds epoch and step_in_epoch; workers other than the chief save to `workertemp_N`.
"""

import json
import os
import time

import numpy as np
import tensorflow as tf

per_worker_batch_size = 32
num_epochs, num_steps_per_epoch = 3, 50
tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])
global_batch_size = per_worker_batch_size * num_workers
checkpoint_dir = os.path.join(os.environ["CHECKPOINT_DIR"], "ckpt")


def is_chief(task_type, task_id):
    return task_type is None or (task_type == "worker" and task_id == 0)


def write_filepath(path, task_type, task_id):
    if is_chief(task_type, task_id):
        return path
    return os.path.join(os.path.dirname(path), f"workertemp_{task_id}", os.path.basename(path))


def dataset_fn(global_batch_size, context):
    x = np.random.default_rng(0).normal(size=(2000, 8)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("int64")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(2000).repeat()
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return dataset.batch(context.get_per_replica_batch_size(global_batch_size))


strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.Input((8,)), tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(2)]
    )
    dataset = strategy.distribute_datasets_from_function(
        lambda context: dataset_fn(global_batch_size, context)
    )
    optimizer = tf.keras.optimizers.RMSprop(learning_rate=0.005)
    optimizer.build(model.trainable_variables)
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")


@tf.function
def train_step(iterator):
    def step_fn(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            per_example = tf.keras.losses.sparse_categorical_crossentropy(y, predictions, from_logits=True)
            loss = tf.nn.compute_average_loss(per_example, global_batch_size=global_batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        train_accuracy.update_state(y, predictions)
        return loss

    return strategy.reduce(
        tf.distribute.ReduceOp.SUM, strategy.run(step_fn, args=(next(iterator),)), axis=None
    )


epoch = tf.Variable(initial_value=tf.constant(0, dtype=tf.int64), name="epoch")
step_in_epoch = tf.Variable(initial_value=tf.constant(0, dtype=tf.int64), name="step_in_epoch")
task_type, task_id = strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id
checkpoint = tf.train.Checkpoint(model=model, epoch=epoch, step_in_epoch=step_in_epoch)
manager = tf.train.CheckpointManager(
    checkpoint, directory=write_filepath(checkpoint_dir, task_type, task_id), max_to_keep=1
)
latest_checkpoint = tf.train.latest_checkpoint(checkpoint_dir)
if latest_checkpoint:
    checkpoint.restore(latest_checkpoint)

while epoch.numpy() < num_epochs:
    iterator = iter(dataset)
    total_loss, num_batches = 0.0, 0
    while step_in_epoch.numpy() < num_steps_per_epoch:
        total_loss += train_step(iterator)
        num_batches += 1
        step_in_epoch.assign_add(1)
        time.sleep(0.05)
        if step_in_epoch.numpy() % 10 == 0:
            manager.save()
    train_loss = total_loss / max(num_batches, 1)
    print(f"Epoch: {epoch.numpy()}, accuracy: {train_accuracy.result():f}, train_loss: {train_loss:f}.")
    train_accuracy.reset_state()
    epoch.assign_add(1)
    step_in_epoch.assign(0)
print(f"Trained {epoch.numpy()} epochs.")
