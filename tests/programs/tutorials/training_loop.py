"""As Keras's guide "Writing a training loop from scratch" describes it: it saves nothing at all."""

import time

import keras
import numpy as np
import tensorflow as tf

batch_size = 32
rng = np.random.default_rng(0)
x_train = rng.normal(size=(1600, 8)).astype("float32")
y_train = (x_train.sum(axis=1) > 0).astype("int64")
train_dataset = (
    tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(buffer_size=1024).batch(batch_size)
)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(2)])
optimizer = keras.optimizers.Adam(learning_rate=1e-2)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
train_acc_metric = keras.metrics.SparseCategoricalAccuracy()

epochs = 3
for epoch in range(epochs):
    print(f"\nStart of epoch {epoch}")
    start_time = time.time()
    for step, (x_batch_train, y_batch_train) in enumerate(train_dataset):
        with tf.GradientTape() as tape:
            logits = model(x_batch_train, training=True)
            loss_value = loss_fn(y_batch_train, logits)
        grads = tape.gradient(loss_value, model.trainable_weights)
        optimizer.apply(grads, model.trainable_weights)
        train_acc_metric.update_state(y_batch_train, logits)
        if step % 10 == 0:
            print(f"Training loss (for 1 batch) at step {step}: {float(loss_value):.4f}")
            print(f"Seen so far: {(step + 1) * batch_size} samples")
        time.sleep(0.05)
    train_acc = train_acc_metric.result()
    print(f"Training acc over epoch: {float(train_acc):.4f}")
    train_acc_metric.reset_state()
    print(f"Time taken: {time.time() - start_time:.2f}s")
print(f"trained for {epochs} epochs, accuracy {'good' if train_acc > 0.9 else train_acc}")
