"""MonitoredTrainingSession with TensorFlow's own logging hooks; the chief is called `master` in TF_CONFIG."""

import json
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
tf.logging.set_verbosity(tf.logging.INFO)
STEPS = 300


def main():
    config = json.loads(os.environ["TF_CONFIG"])
    role, index = config["task"]["type"], config["task"]["index"]
    cluster = tf.train.ClusterSpec(config["cluster"])
    server = tf.train.Server(cluster, job_name=role, task_index=index)
    if role == "ps":
        server.join()
    with tf.device(
        tf.train.replica_device_setter(worker_device=f"/job:{role}/task:{index}", cluster=cluster)
    ):
        global_step = tf.train.get_or_create_global_step()
        x = tf.placeholder(tf.float32, [None])
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        b = tf.get_variable("b", [], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
        train_op = tf.train.AdagradOptimizer(0.5).minimize(loss, global_step=global_step)
    hooks = [
        tf.train.StopAtStepHook(last_step=STEPS),
        tf.train.LoggingTensorHook({"loss": loss, "step": global_step}, every_n_iter=10),
    ]
    filters = ["/job:ps", f"/job:{role}/task:{index}"]
    values = None
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=role == "master",
        checkpoint_dir=os.environ["CHECKPOINT_DIR"],
        save_checkpoint_secs=1,
        save_summaries_secs=None,
        save_summaries_steps=100,
        log_step_count_steps=50,
        hooks=hooks,
        config=tf.ConfigProto(device_filters=filters),
    ) as session:
        while not session.should_stop():
            values = session.run([train_op, w, b], {x: np.random.uniform(-1, 1, 32)})
            time.sleep(0.05)
    if role == "master":
        print("learnt w %.1f b %.1f" % tuple(values[1:]))


if __name__ == "__main__":
    main()
