"""SavedModels as a program exports them, written without TensorFlow."""

from __future__ import annotations

import os
from pathlib import Path

from chaos.bundles import bundle, number, plain, text
from recovery.formats.meta_graph import SAVED_MODEL

UINT8 = 4
LONG_AGO_NS = 1_700_000_000_000_000_000


def graph() -> bytes:
    """A `saved_model.pb` with one graph of nothing."""
    return number(1, 1) + text(2, text(1, text(5, b"2.21.0")) + text(2, text(4, b"v")))


def saved_model(weights: bytes) -> dict[str, bytes]:
    """The files of a SavedModel with these weights."""
    variables = bundle("variables/variables", [{b"w": plain(UINT8, [len(weights)], weights)}])
    return {**variables, "assets/words.txt": b"one\ntwo\n", SAVED_MODEL: graph()}


def export(directory: Path, source: str, weights: bytes, age: int = 0) -> dict[str, bytes]:
    """Export a model; of two the one of higher `age` is the later one. Its last write is long ago."""
    files = saved_model(weights)
    for name, data in files.items():
        path = directory / source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        at = LONG_AGO_NS + age * 1_000_000_000
        os.utime(path, ns=(at, at))
    return files
