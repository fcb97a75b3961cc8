"""One process that reads CSV files through TensorFlow 1's queues, with a Coordinator and a plain Saver."""

import os
import pathlib
import tempfile
import time

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
STEPS = 150


def write_csv():
    directory = pathlib.Path(tempfile.mkdtemp())
    for part in range(3):
        xs = np.random.uniform(-1, 1, 200)
        rows = (f"{x},{3 * x + 2}" for x in xs)
        (directory / f"part-{part}.csv").write_text("\n".join(rows) + "\n")
    return sorted(map(str, directory.iterdir()))


def main():
    names = tf.train.string_input_producer(write_csv(), shuffle=True)
    _, line = tf.TextLineReader().read(names)
    x, y = tf.decode_csv(line, [[0.0], [0.0]])
    xs, ys = tf.train.shuffle_batch([x, y], batch_size=32, capacity=500, min_after_dequeue=100)
    w, b = tf.Variable(0.0), tf.Variable(0.0)
    step = tf.Variable(0, trainable=False, name="global_step")
    loss = tf.reduce_mean(tf.square(w * xs + b - ys))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    saver = tf.train.Saver(max_to_keep=3)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        state = tf.train.get_checkpoint_state(os.environ["CHECKPOINT_DIR"])
        if state and state.model_checkpoint_path:
            saver.restore(sess, state.model_checkpoint_path)
            print("restored", state.model_checkpoint_path)
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess=sess, coord=coord)
        try:
            while not coord.should_stop():
                sess.run(train_op)
                now, value = sess.run([step, loss])
                if now % 10 == 0:
                    print("Step %d: loss = %.5f" % (now, value))
                    saver.save(
                        sess, os.path.join(os.environ["CHECKPOINT_DIR"], "model.ckpt"), global_step=step
                    )
                if now >= STEPS:
                    coord.request_stop()
                time.sleep(0.05)
        except tf.errors.OutOfRangeError:
            print("Done training")
        finally:
            coord.request_stop()
        coord.join(threads)
        print("Done: step %d w %.2f b %.2f" % tuple(sess.run([step, w, b])))


if __name__ == "__main__":
    main()
