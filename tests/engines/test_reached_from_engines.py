"""Agents on a real Spark and a real YARN reach the cluster of their driver, or of their gateway, over TLS."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.spark import SparkCluster
from chaos.yarn import AGENT_MIB, YarnCluster
from supervisor.cli.local.cluster import LocalCluster
from tests.engines.pool_shell import PoolShell, wait_long
from tests.engines.spark_shell import SparkShell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
JOB = f"""
name: counts
command: [{sys.executable}, -c, "print('step 1')"]
strategy: plain
roles: {{worker: {{count: 2}}}}
preload: []
restart: {{max: 0}}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="tfsup-m-") as scratch:
        found = LocalCluster(tmp_path / "state", nodes=0)
        found.advertise, found.scratch = "127.0.0.2", scratch
        with found:
            yield found


def certified(shell: PoolShell) -> list[str]:
    """The nodes that supervisors have certified."""
    found = shell.json("pool", "list")["certificates"]
    assert isinstance(found, list)
    return sorted(found[0]["certified"])


def test_executors_of_spark(cluster: LocalCluster, tmp_path: Path) -> None:
    with SparkCluster(tmp_path / "spark", cores=2) as spark:
        shell = SparkShell(cluster, spark, tmp_path)
        driver = shell.drive(JOB, options=("--agents", "2"))
        try:
            assert driver.wait(300) == 0, shell.told()
        finally:
            driver.kill()
            driver.wait()
        assert "ended: counts succeeded" in shell.told()
        shell.all_given_back()


def test_containers_of_yarn(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    with YarnCluster() as yarn:
        shell = PoolShell(cluster, "yarn", yarn.variables)
        shell("pool", "up", "p", "--agents", "2", "--notice", "40", "--memory", f"{AGENT_MIB}MiB")
        wait_long(lambda: len(shell.ready()) == 2, "two agents join")
        assert certified(shell) == sorted(f"p.{place}" for place in shell.ready())
        shell("run", str(tmp_path / "job.yaml"))
        told = shell("pool", "down", "p", "--within", "20").stdout
        assert "the engine has everything back; its certificates are revoked" in told
        assert shell.json("pool", "list")["certificates"] == []
