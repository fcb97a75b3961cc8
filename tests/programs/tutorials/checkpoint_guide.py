"""As TensorFlow's guide "Training checkpoints" describes it: a Net, a toy dataset, and ./tf_ckpts."""

import time

import tensorflow as tf


class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.l1 = tf.keras.layers.Dense(5)

    def call(self, x):
        return self.l1(x)


def toy_dataset():
    inputs = tf.range(10.0)[:, None] / 10
    labels = inputs * 5.0 + tf.range(5.0)[None, :]
    return tf.data.Dataset.from_tensor_slices({"x": inputs, "y": labels}).repeat().batch(2)


def train_step(net, example, optimizer):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.abs(net(example["x"]) - example["y"]))
    gradients = tape.gradient(loss, net.trainable_variables)
    optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
    return loss


net = Net()
opt = tf.keras.optimizers.Adam(0.1)
iterator = iter(toy_dataset())
ckpt = tf.train.Checkpoint(step=tf.Variable(1), optimizer=opt, net=net, iterator=iterator)
manager = tf.train.CheckpointManager(ckpt, "./tf_ckpts", max_to_keep=3)
ckpt.restore(manager.latest_checkpoint)
if manager.latest_checkpoint:
    print("Restored from", manager.latest_checkpoint)
else:
    print("Initializing from scratch.")
while int(ckpt.step) < 200:
    loss = train_step(net, next(iterator), opt)
    ckpt.step.assign_add(1)
    if int(ckpt.step) % 10 == 0:
        path = manager.save()
        print(f"Saved checkpoint for step {int(ckpt.step)}: {path}")
        print(f"loss {loss.numpy():1.2f}")
    time.sleep(0.04)
print(f"trained for {int(ckpt.step)} steps")
