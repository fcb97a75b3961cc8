"""examples/digits_async/train.py with a variable of $BALLAST_MIB more, for checkpoints of that size."""

import importlib
import os
import sys
from pathlib import Path

FLOATS_PER_MIB = 1 << 18

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "digits_async"))
tf = importlib.import_module("tensorflow.compat.v1")  # it ships without types
train = importlib.import_module("train")
dense = train.dense


def dense_and_ballast(inputs: object, units: int, name: str) -> object:
    """A layer; with the first one, where its variables go, the ballast."""
    if name == "hidden":
        floats = int(os.environ["BALLAST_MIB"]) * FLOATS_PER_MIB
        tf.get_variable("ballast", [floats], initializer=tf.random_uniform_initializer(), trainable=False)
    return dense(inputs, units, name)


vars(train)["dense"] = dense_and_ballast
train.main()
