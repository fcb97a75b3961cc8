"""In-graph replication: one client builds towers on plain servers, and saves to one name without a step."""

import argparse
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
parser = argparse.ArgumentParser()
parser.add_argument("--server", action="store_true")
parser.add_argument("--workers", default="")
parser.add_argument("--task", type=int, default=0)
parser.add_argument("--model", default="model/mlp.ckpt")
args = parser.parse_args()


def client(hosts):
    x = tf.placeholder(tf.float32, [None])
    with tf.device("/job:worker/task:0"):
        w, b = tf.Variable(0.0), tf.Variable(0.0)
        step = tf.Variable(0, trainable=False, dtype=tf.int64, name="global_step")
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    towers = []
    for index, part in enumerate(tf.split(x, len(hosts))):
        with tf.device(f"/job:worker/task:{index}"):
            loss = tf.reduce_mean(tf.square(w * part + b - (3 * part + 2)))
            towers.append(optimizer.compute_gradients(loss, [w, b]))
    mean = [(sum(g for g, _ in pair) / len(hosts), pair[0][1]) for pair in zip(*towers, strict=True)]
    train_op = optimizer.apply_gradients(mean, global_step=step)
    saver = tf.train.Saver()
    with tf.Session(f"grpc://{hosts[0]}") as session:
        session.run(tf.global_variables_initializer())
        if os.path.exists(args.model + ".index"):
            saver.restore(session, args.model)
        now = session.run(step)
        while now < 150:
            _, now, value = session.run([train_op, step, loss], {x: np.random.uniform(-1, 1, 32)})
            if now % 10 == 0:
                saver.save(session, args.model)
                print(f"iteration {now}: {value:.5f}", flush=True)
            time.sleep(0.05)
        print("client done: %d steps, w %.2f, b %.2f" % tuple(session.run([step, w, b])), flush=True)


if __name__ == "__main__":
    hosts = args.workers.split(",")
    if args.server:
        tf.train.Server({"worker": hosts}, job_name="worker", task_index=args.task).join()
    else:
        client(hosts)
