"""A background thread saves every second while the main thread trains."""

import os
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()


def main():
    model_dir = os.environ["CHECKPOINT_DIR"]
    x = tf.placeholder(tf.float32, [None])
    w, b = tf.Variable(0.0), tf.Variable(0.0)
    step = tf.train.create_global_step()
    loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    saver = tf.train.Saver(max_to_keep=3)
    done = threading.Event()

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        if latest := tf.train.latest_checkpoint(model_dir):
            saver.restore(session, latest)

        def save_for_ever():
            while not done.wait(1):
                saver.save(session, os.path.join(model_dir, "model"), global_step=session.run(step))

        thread = threading.Thread(target=save_for_ever, name="saver")
        thread.start()
        now = session.run(step)
        while now < 160:
            _, now, value = session.run([train_op, step, loss], {x: np.random.uniform(-1, 1, 32)})
            print(f"iter {now:06d} | loss {value:.5f}", flush=True)
            time.sleep(0.05)
        done.set()
        thread.join()
        saver.save(session, os.path.join(model_dir, "model"), global_step=now)
        print("stopped at iter %d with w=%.2f b=%.2f" % tuple(session.run([step, w, b])), flush=True)


if __name__ == "__main__":
    main()
