"""SyncReplicasOptimizer; the cluster comes by flags with short names (`--job`, `--index`, `--ps`, `--workers`)."""

import argparse
import time

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
parser = argparse.ArgumentParser()
parser.add_argument("--job")
parser.add_argument("--index", type=int)
parser.add_argument("--ps")
parser.add_argument("--workers")
parser.add_argument("--logdir")
args = parser.parse_args()


def main():
    workers = args.workers.split(",")
    cluster = tf.train.ClusterSpec({"ps": args.ps.split(","), "worker": workers})
    server = tf.train.Server(cluster, job_name=args.job, task_index=args.index)
    if args.job == "ps":
        server.join()
    device = f"/job:worker/task:{args.index}"
    is_chief = args.index == 0
    with tf.device(tf.train.replica_device_setter(worker_device=device, cluster=cluster)):
        step = tf.train.get_or_create_global_step()
        x = tf.placeholder(tf.float32, [None])
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        b = tf.get_variable("b", [], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.GradientDescentOptimizer(0.1), len(workers), total_num_replicas=len(workers)
        )
        train_op = optimizer.minimize(loss, global_step=step)
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=is_chief,
        checkpoint_dir=args.logdir,
        hooks=[optimizer.make_session_run_hook(is_chief), tf.train.StopAtStepHook(last_step=150)],
        save_checkpoint_steps=20,
        stop_grace_period_secs=1,
        config=tf.ConfigProto(device_filters=["/job:ps", device]),
    ) as session:
        now, values = 0, (0, 0)
        while not session.should_stop():
            _, now, *values = session.run([train_op, step, w, b], {x: np.random.uniform(-1, 1, 32)})
            if now % 5 == 0:
                print(f"[worker {args.index}] global step: {now} w={values[0]:.3f}", flush=True)
            time.sleep(0.04)
    print("finished at w %.1f b %.1f" % tuple(values), flush=True)


if __name__ == "__main__":
    main()
