"""Two savers in one directory: `model.ckpt-STEP` to go on from, `best_model.ckpt` for the best loss so far."""

import os
import time

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
DIRECTORY = os.environ["CHECKPOINT_DIR"]


def main():
    x = tf.placeholder(tf.float32, [None])
    w, b = tf.Variable(0.0, name="w"), tf.Variable(0.0, name="b")
    step = tf.train.get_or_create_global_step()
    loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    saver = tf.train.Saver(max_to_keep=2)
    best_saver = tf.train.Saver(var_list=[w, b], max_to_keep=1)
    best = float("inf")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        latest = tf.train.latest_checkpoint(DIRECTORY)
        if latest:
            saver.restore(session, latest)
            print(f"Model restored from {latest}", flush=True)
        for number in range(session.run(step), 150):
            _, value = session.run([train_op, loss], {x: np.random.uniform(-1, 1, 32)})
            if (number + 1) % 10 == 0:
                if value < best:
                    best = value
                    best_saver.save(
                        session,
                        f"{DIRECTORY}/best_model.ckpt",
                        latest_filename="best_checkpoint",
                        write_meta_graph=False,
                    )
                    print(f"new best loss {best:.6f}", flush=True)
                saver.save(session, f"{DIRECTORY}/model.ckpt", global_step=step)
                print(f"global step {number + 1:,} loss {value:.6f}", flush=True)
            time.sleep(0.05)
        print("trained to step %d: w=%.2f b=%.2f" % tuple(session.run([step, w, b])), flush=True)


if __name__ == "__main__":
    main()
