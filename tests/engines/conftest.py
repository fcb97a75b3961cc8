"""A Slurm for the tests of a process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.slurm import SlurmCluster


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Shared by the tests of this process: leave it as you found it."""
    with tempfile.TemporaryDirectory(prefix="tfsup-slurm-") as directory:
        Path(directory).chmod(0o755)
        with SlurmCluster(Path(directory) / "slurm") as found:
            yield found
