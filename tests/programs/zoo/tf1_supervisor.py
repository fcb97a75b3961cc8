"""Between-graph replication with tf.train.Supervisor, as programs of 2016 have it: worker 0 is the chief."""

import time

import numpy as np
import tensorflow.compat.v1 as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "comma-separated host:port")
flags.DEFINE_string("worker_hosts", "", "comma-separated host:port")
flags.DEFINE_string("job_name", None, "ps or worker")
flags.DEFINE_integer("task_index", 0, "index within the job")
flags.DEFINE_string("train_dir", "/tmp/train_logs", "directory for checkpoints and summaries")
flags.DEFINE_integer("train_steps", 500, "global steps")
FLAGS = flags.FLAGS


def main(_):
    tf.disable_eager_execution()
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    is_chief = FLAGS.task_index == 0
    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        global_step = tf.Variable(0, name="global_step", trainable=False)
        x = tf.placeholder(tf.float32, [None])
        y = tf.placeholder(tf.float32, [None])
        w = tf.Variable(0.0, name="w")
        b = tf.Variable(0.0, name="b")
        loss = tf.reduce_mean(tf.square(w * x + b - y))
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=global_step)
        init_op = tf.global_variables_initializer()
    sv = tf.train.Supervisor(
        is_chief=is_chief,
        logdir=FLAGS.train_dir,
        init_op=init_op,
        recovery_wait_secs=1,
        global_step=global_step,
        save_model_secs=1,
        save_summaries_secs=0,
    )
    print(f"Worker {FLAGS.task_index}: waiting for the session", flush=True)
    sess = sv.prepare_or_wait_for_session(server.target)
    print(f"Worker {FLAGS.task_index}: session is ready", flush=True)
    local_step, step = 0, 0
    while step < FLAGS.train_steps:
        batch = np.random.uniform(-1, 1, 32)
        _, step, value = sess.run([train_op, global_step, loss], {x: batch, y: 3 * batch + 2})
        local_step += 1
        now = time.time()
        print(
            f"{now:f}: Worker {FLAGS.task_index}: training step {local_step} done (global step: {step}) loss {value:.5f}"
        )
        time.sleep(0.05)
    if is_chief:
        print("Final w %.2f b %.2f, global step reached" % tuple(sess.run([w, b])))
    sv.stop()


if __name__ == "__main__":
    tf.app.run()
