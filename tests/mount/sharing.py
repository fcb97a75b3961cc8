"""A directory whose mounts show in containers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def shared(directory: Path) -> Iterator[None]:
    """A directory whose mounts show in containers that have it, as docs/docker.md says."""
    directory.mkdir()
    subprocess.run(["mount", "--bind", directory, directory], check=True)
    try:
        subprocess.run(["mount", "--make-shared", directory], check=True)
        yield
    finally:
        subprocess.run(["umount", directory], check=True)
