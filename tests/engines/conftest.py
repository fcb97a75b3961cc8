"""A Slurm for the tests of a process, a YARN for those of a module, and a Spark for a test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.slurm import SlurmCluster
from chaos.spark import SparkCluster
from chaos.yarn import AGENT_MIB, Secured, YarnCluster
from supervisor.cli.local.cluster import LocalCluster
from supervisor.engines import pools
from supervisor.engines.engine import Pool
from supervisor.engines.yarn.yarn import Yarn
from tests.engines.spark_shell import SparkShell
from tests.engines.suite import noting


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Shared by the tests of this process: leave it as you found it."""
    with tempfile.TemporaryDirectory(prefix="tfsup-slurm-") as directory:
        Path(directory).chmod(0o755)
        with SlurmCluster(Path(directory) / "slurm") as found:
            yield found


@pytest.fixture(scope="module")
def secured() -> Secured | None:
    """The HDFS with Kerberos beside the YARN of a module. A module that has one overrides this."""
    return None


@pytest.fixture(scope="module")
def yarn_cluster(secured: Secured | None) -> Iterator[YarnCluster]:
    """Shared by the tests of a module: leave it as you found it."""
    with YarnCluster(secured) as found:
        yield found


@pytest.fixture
def yarn(yarn_cluster: YarnCluster) -> Iterator[Yarn]:
    """A client of that YARN. After the test no agent is left, and no file of the pool `digits`."""
    found = Yarn(yarn_cluster.environment)
    yield found
    for name in {each.pool for each in pools.live(found)}:
        pools.end(found, name, 0)
    found.forget("digits")
    found.close()


@pytest.fixture
def yarn_pool(tmp_path: Path) -> Pool:
    """The pool `digits`, whose agents note what they hear."""
    return noting(tmp_path, AGENT_MIB)


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
