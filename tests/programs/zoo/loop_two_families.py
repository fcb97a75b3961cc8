"""Two CheckpointManagers in one directory: the model alone for serving, and the whole state to go on from."""

import os
import time

import tensorflow as tf

OUT = os.environ["CHECKPOINT_DIR"]
model = tf.Module()
model.w, model.b = tf.Variable(0.0), tf.Variable(0.0)
optimizer = tf.keras.optimizers.Adam(0.1)
optimizer.build([model.w, model.b])
step = tf.Variable(0, dtype=tf.int64)
whole = tf.train.CheckpointManager(
    tf.train.Checkpoint(model=model, optimizer=optimizer, step=step),
    os.path.join(OUT, "train"),
    max_to_keep=3,
)
alone = tf.train.CheckpointManager(
    tf.train.Checkpoint(model=model), os.path.join(OUT, "model"), max_to_keep=1, checkpoint_name="model"
)
if whole.restore_or_initialize():
    print("continuing at", int(step), flush=True)
while int(step) < 160:
    x = tf.random.uniform([32], -1, 1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model.w * x + model.b - (3 * x + 2)))
    variables = [model.w, model.b]
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    step.assign_add(1)
    if int(step) % 10 == 0:
        whole.save(checkpoint_number=step)
        print(f"[train] step={int(step)} loss={float(loss):.5f}", flush=True)
    if int(step) % 40 == 0:
        alone.save(checkpoint_number=int(step) // 40)
    time.sleep(0.04)
print(f"end of training: w {float(model.w):.1f}, b {float(model.b):.1f}", flush=True)
