"""MultiWorkerMirroredStrategy in a custom loop; only worker 0 saves, the others wait at the next collective."""

import os
import time

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = strategy.cluster_resolver.task_id
with strategy.scope():
    w, b = tf.Variable(0.0), tf.Variable(0.0)
    step = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(w=w, b=b, step=step)
root = os.environ["CHECKPOINT_DIR"]
directory = root if task == 0 else os.path.join(root, f"workertemp_{task}")
manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
latest = tf.train.latest_checkpoint(root)
if latest:
    checkpoint.restore(latest)


@tf.function
def train_step():
    def replica():
        x = tf.random.uniform([32], -1, 1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
        gradients = tape.gradient(loss, [w, b])
        context = tf.distribute.get_replica_context()
        dw, db = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
        w.assign_sub(0.1 * dw)
        b.assign_sub(0.1 * db)
        step.assign_add(1)
        return loss

    return strategy.reduce("MEAN", strategy.run(replica), axis=None)


while int(step.numpy()) < 160:
    loss = train_step()
    if step.numpy() % 4 == 0:
        print(f"[{task}] step: {step.numpy()} loss: {loss.numpy():.5f}", flush=True)
    if step.numpy() % 20 == 0:
        manager.save(checkpoint_number=int(step.numpy()))
    time.sleep(0.05)
print(f"[{task}] final {step.numpy()} w {w.numpy():.2f} b {b.numpy():.2f}", flush=True)
