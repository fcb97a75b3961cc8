"""Saves as programs do, under all kinds of names, and says what it finds in a directory that was restored.

Arguments: directory. Each shape gets a directory of its own there. Then, for each line `SHAPE PATH` on its
standard input, it restores from PATH as the program would, and writes [path, weights] as JSON.
"""

import importlib
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

tf = importlib.import_module("tensorflow")  # it ships without types
keras = importlib.import_module("tf_keras")
tf1 = tf.compat.v1

ROOT = pathlib.Path(sys.argv[1])
SAVES = 3


def tf1_saver(directory: str, save: bool) -> list[Any]:
    """One name, overwritten each time."""
    with tf.Graph().as_default(), tf1.Session() as session:
        weights = tf1.get_variable("weights", initializer=0.0)
        saver = tf1.train.Saver()
        for n in range(SAVES if save else 0):
            session.run(weights.assign(n))
            saver.save(session, f"{directory}/mlp.ckpt")
        path = tf1.train.latest_checkpoint(directory)
        saver.restore(session, path)
        return [path, float(session.run(weights))]


def manager(directory: str, save: bool) -> list[Any]:
    """A CheckpointManager in a subdirectory; its names count saves, its variable `step` steps."""
    weights, step = tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(weights=weights, step=step)
    found = tf.train.CheckpointManager(checkpoint, f"{directory}/run/ckpts", max_to_keep=2)
    for n in range(SAVES if save else 0):
        weights.assign(n)
        step.assign(10 * (n + 1))
        found.save()
    path = found.restore_or_initialize()
    return [path, float(weights.numpy())]


def written(directory: str, save: bool) -> list[Any]:
    """`Checkpoint.write`, which makes no state file."""
    weights = tf.Variable(0.0)
    checkpoint = tf.train.Checkpoint(weights=weights)
    if save:
        weights.assign(2.0)
        checkpoint.write(f"{directory}/final")
    checkpoint.read(f"{directory}/final").assert_consumed()
    return [tf.train.latest_checkpoint(directory), float(weights.numpy())]


def callback(directory: str, save: bool) -> list[Any]:
    """Keras' ModelCheckpoint: each epoch, and the best, in directories of their own."""
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, input_shape=(1,))])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    if save:
        every = keras.callbacks.ModelCheckpoint(f"{directory}/ckpt_{{epoch}}", save_weights_only=True)
        best = keras.callbacks.ModelCheckpoint(
            f"{directory}/best/cp.ckpt", save_weights_only=True, save_best_only=True, monitor="loss"
        )
        data = tf.ones([40, 1]), tf.ones([40, 1])
        model.fit(*data, batch_size=4, epochs=SAVES, verbose=0, callbacks=[every, best])
    model.load_weights(f"{directory}/best/cp.ckpt").expect_partial()
    path = tf.train.latest_checkpoint(directory)
    model.load_weights(path).expect_partial()
    return [path, round(float(model.get_weights()[0][0][0]), 5)]


def say(found: object) -> None:
    sys.stdout.write(f"{json.dumps(found)}\n")
    sys.stdout.flush()


SHAPES: dict[str, Callable[[str, bool], list[Any]]] = {
    shape.__name__: shape for shape in (tf1_saver, manager, written, callback)
}
saved = {}
for name, shape in SHAPES.items():
    (ROOT / name).mkdir(parents=True)
    saved[name] = shape(str(ROOT / name), True)
say(saved)
for line in sys.stdin:
    name, path = line.split()
    say(SHAPES[name](path, False))
