"""tf.data's service on two data workers; the trainer makes one epoch after another from it."""

import argparse
import os
import time

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("role", choices=["dispatcher", "data", "train"])
parser.add_argument("--dispatcher")
parser.add_argument("--address")
parser.add_argument("--work_dir")
args = parser.parse_args()
service = tf.data.experimental.service

if args.role == "dispatcher":
    port = int(args.address.rpartition(":")[2])
    config = service.DispatcherConfig(port=port, work_dir=args.work_dir, fault_tolerant_mode=True)
    service.DispatchServer(config).join()
elif args.role == "data":
    port = int(args.address.rpartition(":")[2])
    config = service.WorkerConfig(args.dispatcher, args.address, port, heartbeat_interval_ms=500)
    service.WorkerServer(config).join()
else:
    w, b, step = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(w=w, b=b, step=step)
    manager = tf.train.CheckpointManager(checkpoint, os.environ["CHECKPOINT_DIR"], max_to_keep=3)
    manager.restore_or_initialize()
    while int(step) < 200:
        epoch = tf.data.Dataset.range(50).map(lambda _: tf.random.uniform([32], -1, 1))
        epoch = epoch.apply(service.distribute(service.ShardingPolicy.DYNAMIC, f"grpc://{args.dispatcher}"))
        for x in epoch:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(w * x + b - (3 * x + 2)))
            dw, db = tape.gradient(loss, [w, b])
            w.assign_sub(0.1 * dw)
            b.assign_sub(0.1 * db)
            step.assign_add(1)
            print(f"step {int(step)} loss {float(loss):.5f}", flush=True)
            if int(step) % 20 == 0:
                manager.save(checkpoint_number=step)
            if int(step) >= 200:
                break
            time.sleep(0.05)
    print(f"final step {int(step)} w {float(w):.2f} b {float(b):.2f}", flush=True)
