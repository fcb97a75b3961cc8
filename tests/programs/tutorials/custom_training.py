"""As the tutorial "Custom training with tf.distribute.Strategy" describes it: MirroredStrategy in one process."""

import os
import time

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
print(f"Number of devices: {strategy.num_replicas_in_sync}")
EPOCHS = 12
GLOBAL_BATCH_SIZE = 32 * strategy.num_replicas_in_sync
rng = np.random.default_rng(0)
images = rng.normal(size=(480, 8)).astype("float32")
labels = (images.sum(axis=1) > 0).astype("int64")
train_dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(480).batch(GLOBAL_BATCH_SIZE)
train_dist_dataset = strategy.experimental_distribute_dataset(train_dataset)
checkpoint_dir = os.environ.get("CHECKPOINT_DIR", "./training_checkpoints")
checkpoint_prefix = os.path.join(checkpoint_dir, "ckpt")

with strategy.scope():
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    model = tf.keras.Sequential(
        [tf.keras.layers.Input((8,)), tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(2)]
    )
    optimizer = tf.keras.optimizers.Adam(learning_rate=0.01)
    optimizer.build(model.trainable_variables)
    checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model)


def train_step(inputs):
    x, y = inputs
    with tf.GradientTape() as tape:
        predictions = model(x, training=True)
        loss = tf.nn.compute_average_loss(loss_object(y, predictions), global_batch_size=GLOBAL_BATCH_SIZE)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    train_accuracy.update_state(y, predictions)
    return loss


@tf.function
def distributed_train_step(dataset_inputs):
    per_replica_losses = strategy.run(train_step, args=(dataset_inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


latest = tf.train.latest_checkpoint(checkpoint_dir)
if latest:
    checkpoint.restore(latest)
first = optimizer.iterations.numpy() // 15
for epoch in range(first, EPOCHS):
    total_loss, num_batches = 0.0, 0
    for x in train_dist_dataset:
        total_loss += distributed_train_step(x)
        num_batches += 1
        time.sleep(0.04)
    if epoch % 2 == 0 or epoch == EPOCHS - 1:
        checkpoint.save(checkpoint_prefix)
    print(f"Epoch {epoch + 1}, Loss: {total_loss / num_batches}, Accuracy: {train_accuracy.result() * 100}")
    train_accuracy.reset_state()
right = np.mean(np.argmax(model(images), axis=1) == labels)
print(f"Optimizer made {optimizer.iterations.numpy()} steps, accuracy {'good' if right > 0.9 else right}")
