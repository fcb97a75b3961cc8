"""As the tutorial "Deep Convolutional Generative Adversarial Network" describes it, with two tiny networks.

`./training_checkpoints/ckpt` is saved every few epochs, a picture of each epoch beside it.
"""

import os
import time

import numpy as np
import tensorflow as tf

EPOCHS = 24
rng = np.random.default_rng(0)
train_images = rng.normal(1.0, 0.1, size=(256, 4)).astype("float32")
train_dataset = tf.data.Dataset.from_tensor_slices(train_images).shuffle(256).batch(32)
generator = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(4)])
discriminator = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
cross_entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True)
generator_optimizer = tf.keras.optimizers.Adam(1e-2)
discriminator_optimizer = tf.keras.optimizers.Adam(1e-2)
epochs_done = tf.Variable(0, dtype=tf.int64)

checkpoint_dir = "./training_checkpoints"
checkpoint_prefix = os.path.join(checkpoint_dir, "ckpt")
checkpoint = tf.train.Checkpoint(
    generator_optimizer=generator_optimizer,
    discriminator_optimizer=discriminator_optimizer,
    generator=generator,
    discriminator=discriminator,
    epochs_done=epochs_done,
)


@tf.function
def train_step(images):
    noise = tf.random.normal([32, 2])
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        generated_images = generator(noise, training=True)
        real_output = discriminator(images, training=True)
        fake_output = discriminator(generated_images, training=True)
        gen_loss = cross_entropy(tf.ones_like(fake_output), fake_output)
        disc_loss = cross_entropy(tf.ones_like(real_output), real_output) + cross_entropy(
            tf.zeros_like(fake_output), fake_output
        )
    for tape, loss, network, optimizer in (
        (gen_tape, gen_loss, generator, generator_optimizer),
        (disc_tape, disc_loss, discriminator, discriminator_optimizer),
    ):
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))


checkpoint.restore(tf.train.latest_checkpoint(checkpoint_dir))
while int(epochs_done) < EPOCHS:
    start = time.time()
    for image_batch in train_dataset:
        train_step(image_batch)
        time.sleep(0.04)
    epochs_done.assign_add(1)
    np.savetxt(f"image_at_epoch_{int(epochs_done):04d}.txt", generator(tf.ones([1, 2])).numpy())
    if int(epochs_done) % 3 == 0:
        checkpoint.save(file_prefix=checkpoint_prefix)
    print(f"Time for epoch {int(epochs_done)} is {time.time() - start} sec")
print(f"{int(epochs_done)} epochs of the game are over")
