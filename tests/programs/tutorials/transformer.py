"""As the tutorials of text translation describe their loops: CheckpointManager, batch of the epoch, loss so far."""

import time

import numpy as np
import tensorflow as tf

checkpoint_path = "./checkpoints/train"
EPOCHS = 8
rng = np.random.default_rng(0)
source = rng.integers(0, 20, size=(640, 6))
target = (source + 1) % 20
train_batches = tf.data.Dataset.from_tensor_slices((source, target)).shuffle(640).batch(32)


class CustomSchedule(tf.keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, warmup_steps=20):
        self.warmup_steps = float(warmup_steps)

    def __call__(self, step):
        step = tf.cast(step, tf.float32) + 1.0
        return 0.4 * tf.minimum(tf.math.rsqrt(step), step * self.warmup_steps**-1.5)


transformer = tf.keras.Sequential([tf.keras.layers.Embedding(20, 16), tf.keras.layers.Dense(20)])
transformer.build((None, 6))
optimizer = tf.keras.optimizers.Adam(CustomSchedule(), beta_1=0.9, beta_2=0.98, epsilon=1e-9)
train_loss = tf.keras.metrics.Mean(name="train_loss")
epochs_done = tf.Variable(0)
ckpt = tf.train.Checkpoint(transformer=transformer, optimizer=optimizer, epochs_done=epochs_done)
ckpt_manager = tf.train.CheckpointManager(ckpt, checkpoint_path, max_to_keep=5)
if ckpt_manager.latest_checkpoint:
    ckpt.restore(ckpt_manager.latest_checkpoint)
    print("Latest checkpoint restored!!")


@tf.function
def train_step(inp, tar):
    with tf.GradientTape() as tape:
        predictions = transformer(inp, training=True)
        loss = tf.reduce_mean(
            tf.keras.losses.sparse_categorical_crossentropy(tar, predictions, from_logits=True)
        )
    gradients = tape.gradient(loss, transformer.trainable_variables)
    optimizer.apply_gradients(zip(gradients, transformer.trainable_variables, strict=True))
    train_loss(loss)


for epoch in range(int(epochs_done), EPOCHS):
    start = time.time()
    train_loss.reset_state()
    for batch, (inp, tar) in enumerate(train_batches):
        train_step(inp, tar)
        if batch % 5 == 0:
            print(f"Epoch {epoch + 1} Batch {batch} Loss {train_loss.result():.4f}")
        time.sleep(0.05)
    epochs_done.assign(epoch + 1)
    ckpt_save_path = ckpt_manager.save()
    print(f"Saving checkpoint for epoch {epoch + 1} at {ckpt_save_path}")
    print(f"Epoch {epoch + 1} Loss {train_loss.result():.4f}")
    print(f"Time taken for 1 epoch: {time.time() - start:.2f} secs\n")
print(f"Translates, loss {'small' if train_loss.result() < 0.5 else train_loss.result()}")
