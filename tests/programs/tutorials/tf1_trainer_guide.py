"""As TensorFlow 1's guide "Distributed TensorFlow" describes its `trainer.py`; checkpoints are in /tmp/train_logs."""

import argparse
import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
FLAGS = None


def main(_):
    ps_hosts = FLAGS.ps_hosts.split(",")
    worker_hosts = FLAGS.worker_hosts.split(",")
    cluster = tf.train.ClusterSpec({"ps": ps_hosts, "worker": worker_hosts})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    elif FLAGS.job_name == "worker":
        with tf.device(
            tf.train.replica_device_setter(
                worker_device=f"/job:worker/task:{FLAGS.task_index}", cluster=cluster
            )
        ):
            x = tf.placeholder(tf.float32, [None])
            w, b = tf.Variable(0.0), tf.Variable(0.0)
            loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
            global_step = tf.train.get_or_create_global_step()
            train_op = tf.train.AdagradOptimizer(0.5).minimize(loss, global_step=global_step)
        hooks = [tf.train.StopAtStepHook(last_step=300)]
        with tf.train.MonitoredTrainingSession(
            master=server.target,
            is_chief=(FLAGS.task_index == 0),
            checkpoint_dir="/tmp/train_logs",
            save_checkpoint_secs=1,
            hooks=hooks,
        ) as mon_sess:
            while not mon_sess.should_stop():
                mon_sess.run(train_op, {x: np.random.uniform(-1, 1, 32)})
                time.sleep(0.05)
        print("reached the last step")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.register("type", "bool", lambda v: v.lower() == "true")
    parser.add_argument(
        "--ps_hosts", type=str, default="", help="Comma-separated list of hostname:port pairs"
    )
    parser.add_argument(
        "--worker_hosts", type=str, default="", help="Comma-separated list of hostname:port pairs"
    )
    parser.add_argument("--job_name", type=str, default="", help="One of 'ps', 'worker'")
    parser.add_argument("--task_index", type=int, default=0, help="Index of task within the job")
    FLAGS, unparsed = parser.parse_known_args()
    tf.app.run(main=main, argv=[sys.argv[0], *unparsed])
