"""Saves numbered checkpoints with TF1's Saver as fast as it can, keeping only the newest; then loads others.

Arguments: directory, number of saves. After the last save it prints a line, reads directories from its
standard input and prints for each what `tf.train.load_checkpoint` finds there, as JSON.
"""

import importlib
import json
import sys

import numpy as np

tf = importlib.import_module("tensorflow.compat.v1")  # it ships without types

directory, saves = sys.argv[1], int(sys.argv[2])
tf.disable_eager_execution()
step = tf.train.get_or_create_global_step()
weights = tf.get_variable("weights", [256, 1024], initializer=tf.zeros_initializer())
update = tf.group(tf.assign_add(step, 1), tf.assign_add(weights, tf.ones_like(weights)))
saver = tf.train.Saver(max_to_keep=1)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(saves):
        session.run(update)
        saver.save(session, f"{directory}/model.ckpt", global_step=step)
sys.stdout.write("saved\n")
sys.stdout.flush()
for line in sys.stdin:
    restored = line.strip()
    reader = tf.train.load_checkpoint(restored)
    values = np.unique(reader.get_tensor("weights"))
    newest = tf.train.latest_checkpoint(restored)
    found = [newest, int(reader.get_tensor("global_step")), values.tolist()]
    sys.stdout.write(f"{json.dumps(found)}\n")
    sys.stdout.flush()
