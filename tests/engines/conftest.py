"""A Slurm for the tests of a process, and a Spark for a test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.slurm import SlurmCluster
from chaos.spark import SparkCluster
from supervisor.cli.local.cluster import LocalCluster
from tests.engines.spark_shell import SparkShell


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Shared by the tests of this process: leave it as you found it."""
    with tempfile.TemporaryDirectory(prefix="tfsup-slurm-") as directory:
        Path(directory).chmod(0o755)
        with SlurmCluster(Path(directory) / "slurm") as found:
            yield found


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[SparkShell]:
    """An embedded cluster, and a Spark that is not started, for tests of pools on Spark."""
    with LocalCluster(tmp_path / "state", nodes=1, supervisors=2) as cluster:
        yield SparkShell(cluster, SparkCluster(tmp_path / "spark", cores=2), tmp_path)


@pytest.fixture
def shell(idle: SparkShell) -> Iterator[SparkShell]:
    """An embedded cluster, and a Spark with room for three executors of two processors."""
    with idle.spark:
        yield idle
