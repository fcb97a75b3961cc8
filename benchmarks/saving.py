"""TensorFlow for a benchmark, in a process of its own: one written checkpoint, or a training loop.

    python -m benchmarks.saving write DIR --tensors 8 --mib 1024
    python -m benchmarks.saving train DIR --tensors 8 --mib 1024 --saves 3 --between-s 10

`train` prints a JSON line for each step and each save: when it began (`ns`, CLOCK_MONOTONIC) and how long it
took (`ms`). It ends when its standard input does, or after the last save.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
tf = importlib.import_module("tensorflow")  # it ships without types

MIB = 1 << 20
FLOAT_BYTES = 4
SIDE = 512
"""Of the matrices that a step multiplies: some milliseconds on one core."""


def main() -> None:
    """Write or train."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.saving")
    parser.add_argument("what", choices=("write", "train"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tensors", type=int, required=True)
    parser.add_argument("--mib", type=int, required=True, help="all tensors together")
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--between-s", type=float, default=10.0)
    flags = parser.parse_args()
    flags.directory.mkdir(parents=True, exist_ok=True)
    if flags.what == "write":
        write(flags.directory, flags.tensors, flags.mib)
    else:
        train(flags.directory, flags.tensors, flags.mib, flags.saves, flags.between_s)


def write(directory: Path, tensors: int, mib: int) -> None:
    """A checkpoint of step 1 as TensorFlow's Saver leaves it, of random bytes."""
    prefix = directory / "model.ckpt-1"
    values = _values(tensors, mib)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=[f"layer_{number:03d}/kernel" for number in range(tensors)],
        shape_and_slices=[""] * tensors,
        tensors=[tf.constant(value) for value in values],
    )
    (directory / "checkpoint").write_text(f'model_checkpoint_path: "{prefix.name}"\n')


def train(directory: Path, tensors: int, mib: int, saves: int, between_s: float) -> None:
    """Steps, and saves between them; what came before is deleted as TensorFlow does it."""
    values = _values(tensors, mib)
    variables = {f"layer_{number:03d}": tf.Variable(value) for number, value in enumerate(values)}
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(**variables), str(directory), max_to_keep=2)
    left, right = (tf.constant(_values(1, 1)[0][: SIDE * SIDE].reshape(SIDE, SIDE)) for _ in range(2))
    multiply = tf.function(lambda: tf.reduce_sum(tf.matmul(left, right)))

    def step() -> None:
        float(multiply())

    step()
    for number in range(1, saves + 1):
        _steps(step, between_s)
        _timed("save", partial(manager.save, checkpoint_number=number))
    _steps(step, between_s)


def _steps(step: Callable[[], None], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _timed("step", step)


def _timed(what: str, work: Callable[[], object]) -> None:
    began = time.monotonic_ns()
    work()
    took_ms = (time.monotonic_ns() - began) / 1e6
    print(json.dumps({"what": what, "ns": began, "ms": round(took_ms, 3)}), flush=True)


def _values(tensors: int, mib: int) -> list[npt.NDArray[np.float32]]:
    """Float32 vectors of random numbers that add up to so many MiB."""
    random = np.random.default_rng(1)
    total = mib * MIB // FLOAT_BYTES
    sizes = [total // tensors + (number < total % tensors) for number in range(tensors)]
    return [random.random(size, dtype=np.float32) for size in sizes]


if __name__ == "__main__":
    main()
