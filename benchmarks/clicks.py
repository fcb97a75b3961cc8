"""Synthetic clicks, learnt from hashed features by asynchronous replicas that share embedding tables.

Written as a user would write it, for `benchmarks.partial`: it reads TF_CONFIG, and the chief saves to
$CHECKPOINT_DIR. Four features have a table of 100,000 rows each, cut in two slices, so that each parameter
server has one. The model that makes the clicks is known: weights of each value, and products of pairs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FEATURES, VALUES, ROWS, WIDTH, HIDDEN = 4, 200_000, 100_000, 16, 32
_FACTORS = 3
_SKEW = 12.0
"""The skew of the values: some come so much more often than others."""

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "digits_async"))
tf = importlib.import_module("tensorflow.compat.v1")  # it ships without types
digits = importlib.import_module("train")
Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Clicks:
    """The generating model."""

    weights: Floats
    factors: Floats

    @classmethod
    def make(cls) -> Clicks:
        """Always the same."""
        chance = np.random.default_rng(7)
        weights = chance.normal(0, 0.6, (FEATURES, VALUES)).astype(np.float32)
        factors = chance.normal(0, 0.5, (FEATURES, VALUES, _FACTORS)).astype(np.float32)
        return cls(weights, factors)

    def draw(self, chance: np.random.Generator, count: int) -> tuple[Ids, Floats, Floats]:
        """Rows of the tables, clicks, and the probabilities that the clicks were drawn with."""
        values = (VALUES * chance.random((count, FEATURES)) ** _SKEW).astype(np.int64)
        each = np.arange(FEATURES)
        factors = self.factors[each, values]
        pairs = (factors.sum(axis=1) ** 2 - (factors**2).sum(axis=1)).sum(axis=1) / 2
        logits = self.weights[each, values].sum(axis=1) + pairs - 0.5
        probabilities = 1 / (1 + np.exp(-logits))
        clicks = (chance.random(count) < probabilities).astype(np.float32)
        # The hash of a feature's value: some values share a row.
        return values * 2_654_435_761 % 4_294_967_291 % ROWS, clicks, probabilities.astype(np.float32)


def held_out(count: int = 50_000) -> tuple[Ids, Floats, Floats]:
    """Examples that nobody trains on."""
    return Clicks.make().draw(np.random.default_rng(11), count)


def _train(flags: argparse.Namespace, role: str, index: int, cluster: object, target: str) -> None:
    with tf.device(
        tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:{role}/task:{index}")
    ):
        step = tf.train.get_or_create_global_step()
        rows = tf.placeholder(tf.int64, [None, FEATURES])
        clicks = tf.placeholder(tf.float32, [None])
        parts = []
        for feature in range(FEATURES):
            table = tf.get_variable(
                f"table_{feature}",
                [ROWS, WIDTH],
                initializer=tf.random_normal_initializer(stddev=0.05),
                partitioner=tf.fixed_size_partitioner(2),
            )
            parts.append(tf.nn.embedding_lookup(table, rows[:, feature], partition_strategy="div"))
        inner = tf.nn.relu(digits.dense(tf.concat(parts, axis=1), HIDDEN, "hidden"))
        logits = digits.dense(inner, 1, "logits")[:, 0]
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=clicks, logits=logits))
        update = tf.train.AdagradOptimizer(flags.learning_rate, initial_accumulator_value=1e-6).minimize(
            loss, global_step=step
        )
        with tf.control_dependencies([update]):
            step_after = tf.identity(step.read_value())
    session = tf.train.MonitoredTrainingSession(
        master=target,
        is_chief=role == "chief",
        checkpoint_dir=os.environ.get("CHECKPOINT_DIR"),
        scaffold=tf.train.Scaffold(saver=tf.train.Saver(max_to_keep=3)),
        hooks=[tf.train.StopAtStepHook(last_step=flags.steps)],
        config=tf.ConfigProto(
            device_filters=["/job:ps", f"/job:{role}/task:{index}"], intra_op_parallelism_threads=1
        ),
        save_checkpoint_steps=flags.save_steps,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
    )
    made, chance = Clicks.make(), np.random.default_rng()
    with session, digits.open_step_log(role, index) as step_log:
        while not session.should_stop():
            batch, labels, _ = made.draw(chance, flags.batch_size)
            _, now_at = session.run([update, step_after], {rows: batch, clicks: labels})
            if step_log:
                step_log.write(f"{time.monotonic_ns()} {now_at}\n")


def main() -> None:
    """One task."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--save-steps", type=int, default=100)
    flags = parser.parse_args()
    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf_config = json.loads(os.environ["TF_CONFIG"])
    cluster = tf.train.ClusterSpec(tf_config["cluster"])
    role, index = tf_config["task"]["type"], tf_config["task"]["index"]
    server = tf.distribute.Server(cluster, job_name=role, task_index=index)
    if role == "ps":
        server.join()
    else:
        _train(flags, role, index, cluster, server.target)


if __name__ == "__main__":
    main()
