"""The code of another revision, to measure it beside today's."""

from __future__ import annotations

import io
import subprocess
import tarfile
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
