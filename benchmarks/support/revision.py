"""The code of another revision, and its turns with today's."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def export(revision: str, to: Path, paths: tuple[str, ...] = ("agent", "recovery", "supervisor")) -> Path:
    """Write those paths of a revision below `to`, which is returned. Raises CalledProcessError."""
    raw = subprocess.run(
        ["git", "archive", revision, *paths], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        archive.extractall(to, filter="data")
    return to


def in_turns(before: str | None, blocks: int) -> Iterator[tuple[str, Path]]:
    """So many blocks of `now`, and of `before` where a revision is given: the name and the tree of each turn.

    Each block is in the other order, so that what else this machine does hits both.
    """
    with tempfile.TemporaryDirectory(prefix="revision-") as directory:
        trees = {"now": ROOT}
        if before:
            trees = {"before": export(before, Path(directory)), **trees}
        for block in range(blocks):
            for name in list(trees)[:: 1 if block % 2 else -1]:
                print(f"block {block + 1} of {blocks}: {name}", file=sys.stderr, flush=True)
                yield name, trees[name]
