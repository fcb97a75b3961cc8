"""A training program in one process whose checkpoints are large.

It writes its steps to $STEP_LOG like examples/digits_async/train.py.
"""

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

import numpy as np

tf = importlib.import_module("tensorflow.compat.v1")  # it ships without types

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--megabytes", type=int, required=True)
parser.add_argument("--save-secs", type=float, required=True)
parser.add_argument("--step-delay-ms", type=float, required=True)
flags = parser.parse_args()

tf.disable_eager_execution()
step = tf.train.get_or_create_global_step()
noise = np.random.default_rng(0).random((flags.megabytes, 1 << 18), np.float32)
# Random bytes do not become fewer on their way; a feed keeps them out of the graph, whose size is bounded.
filling = tf.placeholder(tf.float32, noise.shape)
tf.get_variable("noise", initializer=filling)
update = tf.assign_add(step, 1)
session = tf.train.MonitoredTrainingSession(
    checkpoint_dir=os.environ["CHECKPOINT_DIR"],
    scaffold=tf.train.Scaffold(saver=tf.train.Saver(max_to_keep=2), init_feed_dict={filling: noise}),
    hooks=[tf.train.StopAtStepHook(last_step=flags.steps)],
    config=tf.ConfigProto(intra_op_parallelism_threads=1),
    save_checkpoint_secs=flags.save_secs,
    save_summaries_steps=None,
    save_summaries_secs=None,
    log_step_count_steps=None,
)
log = Path(os.environ["STEP_LOG"], f"chief-0.{os.getpid()}")
log.parent.mkdir(parents=True, exist_ok=True)
with session, log.open("a", buffering=1) as steps:
    while not session.should_stop():
        now_at = session.run(update)
        steps.write(f"{time.monotonic_ns()} {now_at}\n")
        sys.stdout.write(f"step {now_at}\n")
        time.sleep(flags.step_delay_ms / 1000)
